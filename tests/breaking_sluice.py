"""Sluice with a policy engine that breaks on demand: while the file FLAG is there, every question to it raises that
has the text of the file in it.

    python breaking_sluice.py FLAG serve -c sluice.yaml
"""

import sys
from pathlib import Path
from typing import Any

import casbin

from sluicegate.cli import main

flag = Path(sys.argv.pop(1))
whole = casbin.Enforcer.enforce


def enforce(self: Any, *request: Any) -> Any:
    if flag.exists() and any(flag.read_text() in str(part) for part in request):
        raise RuntimeError("the engine is broken")
    return whole(self, *request)


casbin.Enforcer.enforce = enforce
main()
