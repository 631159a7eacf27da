"""The command `sluice` with counters: the most that any one step of the event loop did, in bytes read, bytes and values
decoded and bytes weighed, and how many large messages. Counts are the same on every machine, times are not.

    python tests/bench/counting_sluice.py FILE pieces serve -c sluice.yaml
"""

import asyncio
import json
import os
import sys
from collections import Counter
from functools import wraps
from pathlib import Path
from typing import Any

from sluicegate.cli import main
from sluicegate.http.client.connection import HttpClientConnection
from sluicegate.listen.http1 import Http1
from sluicegate.protocol import jsonrpc
from sluicegate.runtime import loop_budget
from sluicegate.runtime.loop_budget import LARGE

step: Counter[str] = Counter()
most: Counter[str] = Counter()


def values_of(value: Any) -> int:
    found, left = 0, [value]
    while left:
        one = left.pop()
        found += 1
        if isinstance(one, dict):
            found += len(one)
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
    return found


def count_steps(file: Path) -> None:
    handles: Any = asyncio.Handle
    run = handles._run

    def counted(handle: Any) -> None:
        step.clear()
        run(handle)
        if any(amount > most[name] for name, amount in step.items()):
            most.update({name: amount - most[name] for name, amount in step.items() if amount > most[name]})
            file.write_text(json.dumps(most))

    handles._run = counted


def count(owner: Any, name: str, kind: str, at: int) -> None:
    """`at` is where among its arguments the bytes stand."""
    inner = getattr(owner, name)

    @wraps(inner)
    def noted(*args: Any, **options: Any) -> Any:
        step[f"bytes {kind}"] += len(args[at])
        step[f"large {kind}"] += len(args[at]) > LARGE
        step["large judged"] += kind != "read" and len(args[at]) > LARGE
        found = inner(*args, **options)
        if kind == "decoded":
            step["values decoded"] += values_of(found)
        return found

    setattr(owner, name, noted)


if __name__ == "__main__":
    os.environ["SLUICE_SLOW_TURNS"] = os.devnull  # asyncio's own loop, whose steps can be seen
    count_steps(Path(sys.argv.pop(1)))
    count(Http1, "data_received", "read", 1)
    count(HttpClientConnection, "data_received", "read", 1)
    count(jsonrpc, "from_json", "decoded", 0)
    count(jsonrpc, "_without_strings", "weighed", 0)
    if sys.argv.pop(1) == "pieces":
        loop_budget._SHORT = 0.0  # each piece is a step of its own, however fast the machine is
    main()
