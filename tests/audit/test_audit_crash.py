"""SIGKILL at random moments under load: nothing reached a server unrecorded, and the log can be believed.

SLUICE_CRASH_ROUNDS says how often (50 in CI, 200 in a soak).
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

from audit_kit import check_one, lines, open_audit

ROUNDS = int(os.environ.get("SLUICE_CRASH_ROUNDS", "8"))
HERE = Path(__file__).parent


def run_and_kill(directory: Path, seen: Path, after: float) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent)])}
    command = [sys.executable, str(HERE / "crash_child.py"), str(directory), str(seen)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"ready\n"
        timer = threading.Timer(after, child.send_signal, [signal.SIGKILL])
        timer.start()
        assert child.wait(60) == -signal.SIGKILL


async def test_what_reached_a_server_is_in_the_log_whenever_it_was_killed(tmp_path: Path) -> None:
    seen, moments = tmp_path / "seen", random.Random(ROUNDS)
    for _ in range(ROUNDS):
        run_and_kill(tmp_path, seen, moments.uniform(0.0, 0.15))
    async with open_audit(tmp_path):
        pass
    report = check_one(tmp_path)
    assert report.ok, report.findings
    found = believed(tmp_path)
    reached = set(seen.read_text().split())
    intents = {record["call"] for record in found if record["type"] == "intent"}
    assert len(reached) > ROUNDS and reached <= intents
    outcomes = Counter(record["call"] for record in found if record["type"] == "outcome")
    assert set(outcomes) == intents and set(outcomes.values()) == {1}
    assert any(record.get("reason") == "interrupted" for record in found)
    seqs = [record["seq"] for record in found]
    assert seqs == sorted(set(seqs))


def believed(directory: Path) -> list[dict[str, object]]:
    """Every whole line: a torn one is no record, and the next segment says that it is there."""
    found = []
    for line in lines(directory):
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
