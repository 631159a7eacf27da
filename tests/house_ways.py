"""How often a request enters each room: of a tools/call, a list with a cursor, a notification back, a bridged question.

    python tests/house_ways.py [--before COMMIT]

A room is entered where a function of it is called by one of another room; what is resumed is not entered again. The
client is of 2026-07-28 and the server, on the official SDK, of 2025-11-25, so that every way crosses both adapters.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

FILE = "ROOMS_ENTERED"
WARM_UP = 5


# ---------------------------------------------------------------- inside Sluice


class Entries:
    """Counts from one SIGUSR1 to the next."""

    def __init__(self) -> None:
        self.rooms: Counter[str] = Counter()
        self.files: set[str] = set()
        self._is_on = False

    def toggle(self, *_: object) -> None:
        self._is_on = not self._is_on
        sys.setprofile(self._called if self._is_on else None)
        text = "" if self._is_on else json.dumps([self.rooms, sorted(self.files)])
        if self._is_on:
            self.rooms, self.files = Counter(), set()
        draft = Path(os.environ[FILE] + ".new")
        draft.write_text(text)
        draft.replace(os.environ[FILE])

    def _called(self, frame: FrameType, event: str, arg: object) -> None:
        code = frame.f_code
        if event != "call" or frame.f_lineno != code.co_firstlineno or code.co_name.startswith("<"):
            return
        to = room(code.co_filename)
        if to and not code.co_filename.endswith("telemetry.py"):
            self.files.add(code.co_filename.rpartition("/sluicegate/")[2])
            if to != self._caller(frame):
                self.rooms[to] += 1

    def _caller(self, frame: FrameType) -> str:
        above = frame.f_back
        while above is not None and not room(above.f_code.co_filename):
            above = above.f_back
        return "" if above is None else room(above.f_code.co_filename)


def room(file: str) -> str:
    _, found, rest = file.rpartition("/sluicegate/")
    return rest.partition("/")[0].removesuffix(".py") if found else ""


def look_at_sluice() -> None:
    signal.signal(signal.SIGUSR1, Entries().toggle)
    from sluicegate.__main__ import main

    main()


# ---------------------------------------------------------------- outside


def entered(package: Path, folder: Path) -> dict[str, tuple[Counter[str], list[str]]]:
    """A way -> how often each room is entered on it, and the files it comes through."""
    from e2e import sluice_process
    from e2e.test_asks_of_modern_clients import REVISION, Modern, accept, pipe

    counts = folder / "counts"
    sluice_process.COMMAND[:] = ["env", f"{FILE}={counts}", f"PYTHONPATH={package}", sys.executable, __file__]
    found = {}
    with ExitStack() as stack:
        config = {"servers": {"pipe": pipe(folder)}, "limits": {"page": 3}}
        process = stack.enter_context(sluice_process.sluice(config, folder))
        client = Modern(process)

        def toggle() -> Any:
            process.process.send_signal(signal.SIGUSR1)
            while not counts.exists():
                time.sleep(0.001)
            text = counts.read_text()
            counts.unlink()
            return json.loads(text or "null")

        def answer(asked: tuple[dict[str, Any], str], then: Any) -> Any:
            answers = dict.fromkeys(asked[0], accept("Ada"))
            return then("pipe__two_rounds", inputResponses=answers, requestState=asked[1])

        def measure(way: str, act: Any) -> Any:
            toggle()
            result = act()
            rooms, files = toggle()
            found[way] = Counter[str](rooms), files
            return result

        client.call("pipe__page_first")  # asks for its page at the first call alone
        for _ in range(WARM_UP):
            answer(answer(client.asked("pipe__two_rounds"), client.asked), client.said)
            client.call("pipe__page_first")
            cursor = page(client, REVISION, None)["nextCursor"]
            page(client, REVISION, cursor)
        measure("tools/call", lambda: client.call("pipe__page_first"))
        measure("list with a cursor", lambda: page(client, REVISION, cursor))
        asked = measure("question bridged", lambda: client.asked("pipe__two_rounds"))
        again = measure("its answer, a notification back, and one more question", lambda: answer(asked, client.asked))
        answer(again, client.said)
    return found


def page(client: Any, revision: str, cursor: str | None) -> dict[str, Any]:
    import httpx

    prefix = "io.modelcontextprotocol/"
    meta = {f"{prefix}protocolVersion": revision, f"{prefix}clientInfo": {"name": "raw", "version": "1"}}
    params = {"_meta": meta | {f"{prefix}clientCapabilities": {}}} | ({"cursor": cursor} if cursor else {})
    headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": revision}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
    headers["mcp-method"] = "tools/list"
    return dict(httpx.post(client.url, json=body, headers=headers, timeout=30, trust_env=False).json()["result"])


def main() -> None:
    from house import ROOT, at_commit

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", help="print that commit's entries beside this tree's")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folders = [Path(scratch) / name for name in ("now", "old", "tree")]
        for folder in folders:
            folder.mkdir()
        now = entered(ROOT / "proxy", folders[0])
        old = entered(at_commit(options.before, folders[2]) / "proxy", folders[1]) if options.before else {}
    for way, (rooms, files) in now.items():
        before, names = old.get(way, (Counter[str](), []))
        print(f"{way}: {before.total()} -> {rooms.total()} entries, {len(names)} -> {len(files)} files")
        for name in sorted(before | rooms, key=lambda name: -rooms[name]):
            print(f"  {name:20}{before[name] if old else '':>6}{rooms[name]:>6}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    look_at_sluice() if FILE in os.environ else main()
