"""The audit log as its sink hears it, record by record: each is the next link of the chain, and what it says adds up.

All lines are kept in a file that `sluice audit verify` reads at the end, those included that retention has deleted from
the log meanwhile. Knows the audit record (docs/reference/audit-record.md), and no Sluice.
"""

import json
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]
ENDED: Final = frozenset({"consumed", "denied", "expired", "cancelled", "superseded"})


class RecordLedger:
    def __init__(self, file: Path) -> None:
        self._file = file.open("ab")
        self._before = b""
        self.seq = 0
        self.problems: list[str] = []
        self.types: Counter[str] = Counter()
        self.outcomes: Counter[str] = Counter()
        self.open: dict[str, str] = {}
        """Calls with an intent and without an outcome, and whose server they are for."""
        self._ended: set[str] = set()
        self.intents: dict[tuple[str, int], int] = {}
        """How many intents there are for a server with that number among the arguments."""
        self.approvals: dict[str, list[str]] = {}

    def take(self, body: bytes) -> None:
        """Lines of one writer. What comes twice counts once."""
        for line in body.splitlines():
            record = json.loads(line)
            if record["seq"] > self.seq:
                self._link(line, record)
                self._count(record)
        self._file.flush()

    def _link(self, line: bytes, record: Json) -> None:
        expected = sha256(self._before).hexdigest() if self.seq else "0" * 64
        if record["seq"] != self.seq + 1 or record["prev"] != expected:
            self.problems.append(f"record {record['seq']} does not follow {self.seq}")
        self.seq, self._before = record["seq"], line
        self._file.write(line + b"\n")

    def _count(self, record: Json) -> None:
        kind, call = record["type"], record.get("call", "")
        self.types[kind] += 1
        if kind == "intent":
            if call in self.open:
                self.problems.append(f"call {call} has two intents")
            self.open[call] = record.get("server", "")
            number = record.get("arguments", {}).get("n")
            if isinstance(number, int):
                key = record.get("server", ""), number
                self.intents[key] = self.intents.get(key, 0) + 1
        elif kind == "outcome":
            self.outcomes[record["outcome"]] += 1
            self.open.pop(call, None)
            if call in self._ended:
                self.problems.append(f"call {call} has two outcomes")
            self._ended.add(call)
        if "approval" in record and "state" in record["approval"]:
            self._approval(record["approval"])

    def _approval(self, said: Json) -> None:
        states = self.approvals.setdefault(said["id"], [])
        if "void" in said:  # it did not take effect
            if said["void"] in states:
                del states[len(states) - 1 - states[::-1].index(said["void"])]
        elif said["state"] != "revealed":
            states.append(said["state"])

    def finish(self, folder: Path) -> None:
        """Takes what was written after the sink had its last word."""
        segments = [*sorted(folder.glob("sluice.jsonl.*")), folder / "sluice.jsonl"]
        for segment in segments:
            self.take(segment.read_bytes())
        self.close()

    def close(self) -> None:
        self._file.close()

    def ends(self) -> Counter[str]:
        """How approvals ended."""
        return Counter(state for states in self.approvals.values() for state in states if state in ENDED)

    def not_ended_once(self) -> list[str]:
        """Approvals that have no end, or several."""
        return [f"{id}: {' '.join(states)}" for id, states in self.approvals.items()
                if sum(state in ENDED for state in states) != 1]  # fmt: skip

    def not_recorded(self, server: str, seen: Counter[int]) -> list[str]:
        """Calls that a server got more or less often than there are intents for them; `seen` counts the numbers among
        their arguments. A server that died may not have got one that has an intent."""
        return [f"{server} got {number} {count} times, with {self.intents.get((server, number), 0)} intents"
                for number, count in seen.items() if count != self.intents.get((server, number), 0)]  # fmt: skip
