"""The bars of the soak can be missed: planted leaks are found, in figures and in a process that leaks, and so is what
is wrong in an audit log."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from soak.figures import FLAT, flatness, of_process
from soak.ledger import RecordLedger
from soak.run import BUGS, GAUGES, WORKED, failures, not_worked
from soak.town import FAST_CLOCK

Json = dict[str, Any]

# The kernel divides shared pages among the processes that map them: when another Python ends, the share of this one
# grows. Beside 128 MiB of its own that is no leak.
LEAK = """
import os, sys, threading
held, over = [bytearray(os.urandom(1 << 20)) * 128], threading.Event()
for line in sys.stdin:
    what = line.strip()
    if what == "memory":
        held.append(bytearray(os.urandom(8 << 20)))
    elif what == "descriptors":
        held.append(open(os.devnull))
    elif what == "threads":
        threading.Thread(target=over.wait, daemon=True).start()
    print(flush=True)
"""


def steady(**changes: float) -> dict[str, float]:
    return dict.fromkeys(FLAT, 100.0) | changes


def missed(samples: list[dict[str, float]], names: tuple[str, ...] = FLAT) -> list[str]:
    return [row.name for row in flatness(samples, names) if not row.is_held]


def test_what_swings_and_what_only_grows_in_the_first_quarter_is_flat() -> None:
    assert missed([steady(tasks=90 + 20 * (number % 2), rss=min(100, 60 + number * 4)) for number in range(40)]) == []


@pytest.mark.parametrize("name", FLAT)
def test_a_slow_leak_is_found_and_so_is_a_fall(name: str) -> None:
    assert missed([steady(**{name: 100 + number * 0.3}) for number in range(40)]) == [name]
    assert missed([steady(**{name: 100 - number * 0.3}) for number in range(40)]) == [name]
    assert missed([steady(**{name: 0.0}) for _ in range(20)] + [steady(**{name: 1.0}) for _ in range(20)]) == [name]


def test_of_few_samples_nothing_is_said() -> None:
    with pytest.raises(ValueError, match="too few"):
        flatness([steady()] * 7)


@contextmanager
def leaking() -> Iterator["subprocess.Popen[Any]"]:
    command = [sys.executable, "-I", "-S", "-c", LEAK]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


@pytest.mark.parametrize(("leak", "found"), [
    ("nothing", []), ("memory", ["rss", "pss"]), ("descriptors", ["descriptors"]), ("threads", ["threads"]),
])  # fmt: skip
def test_a_process_that_leaks_is_found(leak: str, found: list[str]) -> None:
    samples = []
    with leaking() as process:
        assert process.stdin is not None and process.stdout is not None
        for _ in range(16):
            process.stdin.write(f"{leak}\n")
            process.stdin.flush()
            process.stdout.readline()
            samples.append(of_process(process.pid))
    assert missed(samples, ("rss", "pss", "descriptors", "threads")) == found


def test_a_sluice_that_refuses_everything_is_found() -> None:
    series = {*GAUGES, *BUGS}
    tally = Counter(dict.fromkeys(WORKED, 1)) | Counter({"tools/call: ok": 70, "tools/call: denied": 28})
    assert not_worked(tally, series) == []
    assert not_worked(tally | Counter({"tools/call: server_unavailable": 30}), series) != []
    assert not_worked(tally - Counter(["held: ok"]), series) == ["never: held: ok"]
    assert not_worked(tally, series - {"sluice_sessions"}) == ["no metric sluice_sessions"]
    assert len(not_worked(Counter(), ())) == 1 + len(WORKED) + len(GAUGES) + len(BUGS)


# ---------------------------------------------------------------- the audit log


def intent(call: str, number: int) -> Json:
    return {"type": "intent", "call": call, "server": "rec", "arguments": {"n": number}}


def outcome(call: str) -> Json:
    return {"type": "outcome", "call": call, "outcome": "ok"}


def approval(state: str, **more: str) -> Json:
    return {"type": "approval", "approval": {"id": "apr_1", "state": state, **more}}


def ledger(folder: Path, *records: Json) -> RecordLedger:
    """What a sink is sent, in two parts that overlap."""
    lines: list[bytes] = []
    for number, record in enumerate(records, 1):
        before = sha256(lines[-1]).hexdigest() if lines else "0" * 64
        lines.append(json.dumps({"seq": number, "prev": before, **record}).encode())
    kept = RecordLedger(folder / "sluice.jsonl")
    kept.take(b"\n".join(lines[:2]))
    kept.take(b"\n".join(lines[1:]))
    kept.close()
    return kept


def test_a_log_that_adds_up(tmp_path: Path) -> None:
    found = ledger(tmp_path, intent("a", 1), outcome("a"), approval("pending"), approval("approved"),
                   approval("consumed"), approval("expired"), approval("consumed", void="expired"))  # fmt: skip
    assert (found.problems, found.open, found.not_ended_once()) == ([], {}, [])
    assert found.not_recorded("rec", Counter({1: 1})) == []


def test_what_is_missing_or_there_twice_is_found(tmp_path: Path) -> None:
    found = ledger(tmp_path, intent("a", 1), outcome("a"), outcome("a"), intent("b", 2), approval("consumed"),
                   approval("denied"), {"type": "admin", "prev": "0" * 64})  # fmt: skip
    assert found.problems == ["call a has two outcomes", "record 7 does not follow 6"]
    assert found.open == {"b": "rec"} and found.not_ended_once() == ["apr_1: consumed denied"]
    assert len(found.not_recorded("rec", Counter({1: 2, 2: 1, 3: 1}))) == 2


def test_a_task_that_died_is_found_in_the_log_of_sluice(tmp_path: Path) -> None:
    log = tmp_path / "sluice.log"
    calm = json.dumps({"event": "server ended", "level": "warning"})
    log.write_text(f"Sluice\n{calm}\n")
    assert list(failures(log)) == []
    died = json.dumps({"event": "task crashed", "level": "error", "exception": "ValueError"})
    log.write_text(f"{calm}\n{died}\nTraceback (most recent call last):\n")
    assert len(list(failures(log))) == 2


def test_the_gateway_of_the_soak_starts_from_this_source() -> None:
    """It shortens lifetimes by the names of modules and of their constants, which may move."""
    for seconds in ("450", "60"):
        done = subprocess.run([sys.executable, FAST_CLOCK, seconds, "--version"], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("sluice "), done
