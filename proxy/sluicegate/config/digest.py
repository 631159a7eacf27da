"""A name for a whole config as it was read: equal ones say the same, of the same file, with the same variables."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from sluicegate.config.models import Config

_LENGTH = 12  # enough to tell configs apart, too little to try secrets on


def digest(config: Config, file: Path) -> str:
    whole = {"file": str(file.resolve()), "config": config.model_dump()}
    return sha256(json.dumps(whole, default=_plain, sort_keys=True).encode()).hexdigest()[:_LENGTH]


def _plain(value: Any) -> Any:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)
