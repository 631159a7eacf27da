"""The words of the config file that are more than text: durations, sizes, addresses, paths and so on.

Each is a pydantic type that reads text and gives a plain Python value. An error never repeats the value: it may
hold a secret that a variable brought in; line and column say where it is.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_address
from math import inf
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    SecretStr,
    Strict,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

SECONDS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
PER: Final = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
BYTES: Final = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}

_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,3})?)(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d{1,12})(B|KiB|MiB|GiB)")
_RATE = re.compile(r"(\d{1,9})/(s|min|h|d)")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:/\[\]]+)):(\d{1,5})")


_MAX_PATH: Final = 3_000
_MAX_PART: Final = 255  # bytes


class Expanded(str):
    """Text that a `${...}` took part in: a number or a flag may be read from it. `parts` are what they stand for."""

    parts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Address:
    """Where a listener listens. Port 0 lets the system choose."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Rate:
    """So many in so many seconds."""

    amount: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.amount}/{next(unit for unit, seconds in PER.items() if seconds == self.seconds)}"


def problem(code: str, message: str) -> PydanticCustomError:
    """Makes a finding. Its text is a parameter: pydantic would read its braces as placeholders."""
    return PydanticCustomError(code, "{text}", {"text": message})


def sound(is_sound: Callable[[Any], object], code: str, message: str) -> AfterValidator:
    """The type's values, secrets included, are those of which `is_sound` holds."""

    def check(value: Any) -> Any:
        if not is_sound(value.get_secret_value() if isinstance(value, SecretStr) else value):
            raise problem(code, message)
        return value

    return AfterValidator(check)


def read_duration(value: Any) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise problem("bad-duration", "not a duration; write a number and a unit, such as 500ms, 5s, 10m, 1h or 30d")
    return float(match[1]) * SECONDS[match[2]]


def read_idle(value: Any) -> float:
    return inf if value == "never" else read_duration(value)


def read_size(value: Any) -> int:
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise problem("bad-size", "not a size; write a whole number and a unit, such as 512B, 16KiB or 4MiB")
    return int(match[1]) * BYTES[match[2]]


def read_rate(value: Any) -> Rate:
    match = _RATE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise problem("bad-rate", "not a rate; write a whole number and a unit, such as 10/s, 600/min, 1000/h or 1/d")
    return Rate(int(above_zero(int(match[1]))), PER[match[2]])


def read_address(value: Any) -> Address:
    match = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if match is None or int(match[3]) > 65535:
        raise problem("bad-address", 'not an address; write host:port, such as 127.0.0.1:7410 or "[::1]:7410"')
    return Address(match[1] or match[2], int(match[3]))


def read_moment(value: Any) -> datetime:
    """A date is its first second in UTC, as in ISO 8601."""
    try:
        moment = datetime.fromisoformat(value)
    except (TypeError, ValueError):
        raise problem("bad-date", "not a date; write 2027-01-31 or 2027-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def read_path(value: Any, info: ValidationInfo) -> Path:
    """Relative to the config file; `~` is the home directory."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value) or _is_too_long(str(value)):
        raise problem("wrong-type", "expected a path")
    try:
        return base_of(info.context) / Path(value).expanduser()
    except RuntimeError:  # of ~NAME
        raise problem("wrong-type", "there is no such user, or they have no home directory") from None


def _is_too_long(path: str) -> bool:
    """Whether no system has such a path: what a variable brought in may be the contents of a file, and the system's own
    error would repeat it."""
    return len(path) > _MAX_PATH or any(len(part.encode("utf-8", "replace")) > _MAX_PART for part in path.split("/"))


def read_command(value: Any, info: ValidationInfo) -> str:
    """A bare name is looked up on PATH; anything with a slash is a path like every other."""
    if not isinstance(value, str) or not value or "\0" in value:
        raise problem("wrong-type", "expected the name or path of a program; its arguments go into args")
    return str(read_path(value, info)) if "/" in value or value.startswith("~") else value


def base_of(context: Any) -> Path:
    base: Path = (context or {}).get("base", Path())
    return base.absolute()


def _typed(read: Callable[[str], Any]) -> BeforeValidator:
    """What a variable brings in is text; whole numbers and flags are read from it, from nothing else."""
    return BeforeValidator(lambda value: read(value) if isinstance(value, Expanded) else value)


def _flag(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _whole(text: str) -> Any:
    return int(text) if re.fullmatch(r"\d{1,9}", text) else text


def _text(pattern: str, example: str) -> Any:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$", "examples": [example]})


def above_zero(value: float) -> float:
    if value <= 0:
        raise problem("wrong-value", "must be more than zero")
    return value


def write_duration(value: float) -> str:
    return f"{value:g}s"


def write_idle(value: float | None) -> str | None:
    return None if value is None else "never" if value == inf else write_duration(value)


def write_size(value: int) -> str:
    unit = next(unit for unit in reversed(BYTES) if value % BYTES[unit] == 0)
    return f"{value // BYTES[unit]}{unit}"


WHOLE: Final = _typed(_whole)
Flag = Annotated[bool, Strict(), _typed(_flag)]
Count = Annotated[int, Strict(), Field(ge=1, le=10_000_000), WHOLE]
Duration = Annotated[
    float, PlainValidator(read_duration), PlainSerializer(write_duration), _text(_DURATION.pattern, "60s")
]
Timeout = Annotated[Duration, AfterValidator(above_zero)]
# None is the default, never a value
Idle = Annotated[
    float | None, PlainValidator(read_idle), AfterValidator(above_zero), PlainSerializer(write_idle),
    _text(f"(?:never|{_DURATION.pattern})", "10m"),
]  # fmt: skip
Size = Annotated[
    int, PlainValidator(read_size), AfterValidator(above_zero), PlainSerializer(write_size),
    _text(_SIZE.pattern, "4MiB"),
]  # fmt: skip
# None is the default, never a value: a limit that was begun and not written must not mean "no limit".
Limit = Annotated[
    Rate | None, PlainValidator(read_rate), PlainSerializer(lambda rate: rate and str(rate)),
    _text(_RATE.pattern, "600/min"),
]  # fmt: skip
Listener = Annotated[Address, PlainValidator(read_address), PlainSerializer(str), _text(".+:[0-9]+", "127.0.0.1:7410")]
Moment = Annotated[datetime, PlainValidator(read_moment), _text(r"\d{4}-\d{2}-\d{2}.*", "2027-01-31")]
FilePath = Annotated[Path, PlainValidator(read_path), WithJsonSchema({"type": "string", "format": "path"})]
Command = Annotated[str, PlainValidator(read_command), WithJsonSchema({"type": "string", "minLength": 1})]
