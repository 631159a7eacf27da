"""What `sluice audit search` finds, and what it says where it is asked for something that does not exist."""

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import command_line
import pytest

from sluicegate.audit.chain import ChainHead, link_all
from sluicegate.audit.read import Filter, search

HOURS = (0.5, 3, 30)
Result = CompletedProcess[str]
Search = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path) -> Search:
    """On a log with one record of each of these ages."""
    bodies = []
    for hours in HOURS:
        at = datetime.now(UTC) - timedelta(hours=hours)
        fields: dict[str, Any] = {
            "type": "admin",
            "time": f"{at:%Y-%m-%dT%H:%M:%S}.000000000Z",
            "principal": "key:laptop",
            "by": "",  # as of a definition that no person has accepted
        }
        bodies.append(json.dumps(fields | {"act": str(hours)}, separators=(",", ":")).encode()[1:-1])
    lines, _ = link_all(ChainHead(0, "0" * 64), "sluice", 1, bodies[::-1])
    (tmp_path / "sluice.jsonl").write_bytes(b"".join(lines))
    assert len(list(search(tmp_path, Filter()))) == len(HOURS)
    return lambda *words: command_line.run(tmp_path, "audit", *words, "--dir", str(tmp_path))


def found(result: Result) -> list[float]:
    assert result.returncode == 0, result.stderr
    return [float(json.loads(line)["act"]) for line in result.stdout.splitlines()]


@pytest.mark.parametrize(
    ("words", "hours"),
    [
        (["--since", "1h"], [0.5]),
        (["--since", "60m"], [0.5]),
        (["--since", "4h", "--until", "1h"], [3]),
        (["--until", "1d"], [30]),
        (["--since", "1w"], [30, 3, 0.5]),
        (["--since", f"{datetime.now(UTC) - timedelta(hours=1):%Y-%m-%d %H:%M:%SZ}"], [0.5]),
        (["--since", f"{datetime.now(UTC) + timedelta(hours=4):%Y-%m-%dT%H:%M:%S+05:00}"], [0.5]),
        (["--type", "admin", "--principal", "key:laptop", "--until", "2h"], [30, 3]),
    ],
)
def test_records_are_found_by_when_they_were_written(run: Search, words: list[str], hours: list[float]) -> None:
    assert found(run("search", "--json", *words)) == hours


@pytest.mark.parametrize(
    ("words", "code", "hint"),
    [
        (["--since", "an hour ago"], 2, "30m"),
        (["--until", "2026-02-30"], 2, "no time that exists"),
        (["--since", "1h", "--until", "2h"], 2, "is not before"),
        (["--type", "outcomes"], 2, "outcome, decision"),
        (["--outcome", "error"], 2, "tool_error"),
        (["--principal", "laptop"], 1, "the log has key:laptop"),
        (["--principal", "key:lapdop"], 1, "the log has key:laptop"),
        (["--principal", "zoe"], 1, "the log has key:laptop"),
        (["--principal", "key:laptop", "--until", "2w"], 1, "no such record"),
    ],
)
def test_what_does_not_exist_is_said(run: Search, words: list[str], code: int, hint: str) -> None:
    result = run("search", *words)
    assert result.returncode == code and hint in result.stderr and not result.stdout
    if not {"--since", "--until"} & set(words):
        shown = run("tail", *words)
        assert shown.returncode == code and hint in shown.stderr


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"type": "outcome", "principal": "key:ann", "public": "git__push", "outcome": "denied", "reason": "denied",
          "seconds": 0, "decision": {"verdict": "deny", "rule": "policy.csv:9"}},
         "outcome    key:ann              git__push denied denied 0.000s by policy.csv:9"),
        ({"type": "outcome", "principal": "key:ann", "public": "git__push", "outcome": "ok", "seconds": 1,
          "decision": {"verdict": "allow", "rule": "policy.csv:3"}},
         "outcome    key:ann              git__push ok 1.000s"),
        ({"type": "outcome", "principal": "key:ann", "public": "git__push", "outcome": "denied",
          "reason": "rate_limited", "seconds": 0, "decision": {"verdict": "allow", "rule": "policy.csv:3"}},
         "outcome    key:ann              git__push denied rate_limited 0.000s"),
        ({"type": "outcome", "principal": "key:ann", "public": "git__push", "outcome": "denied",
          "reason": "invalid_arguments", "seconds": 0, "decision": {"verdict": "ask", "rule": "policy.csv:4"}},
         "outcome    key:ann              git__push denied invalid_arguments 0.000s"),
        ({"type": "outcome", "call": "c1-1", "outcome": "unknown", "reason": "interrupted", "intent": 4},
         "outcome    -                    call c1-1 unknown interrupted"),
        ({"type": "identity", "address": "::1", "count": 3, "reasons": {"expired": 2, "audience": 1}},
         "identity   ::1                  refused: expired 2, audience 1"),
        ({"type": "approval", "principal": "key:ann", "server": "git",
          "approval": {"id": "apr_1", "state": "approved", "approver": "key:lea"}},
         "approval   key:ann              git apr_1 approved by key:lea"),
        ({"type": "decision", "principal": "key:ann", "server": "sluice", "object": "admin:pins", "act": "write",
          "decision": {"verdict": "deny", "rule": "no row allows it", "policy": "r7"}},
         "decision   key:ann              sluice admin:pins write denied: no row allows it"),
        ({"type": "admin", "act": "block", "what": "key:ann", "by": "local"},
         "admin      local                block key:ann"),
    ],
)  # fmt: skip
def test_a_line_says_why_a_call_was_refused_and_who_decided(tmp_path: Path, fields: dict[str, Any], line: str) -> None:
    record = {"type": fields["type"], "time": "2026-10-01T12:00:00.000000000Z"} | fields
    body = json.dumps(record, separators=(",", ":")).encode()[1:-1]
    lines, _ = link_all(ChainHead(0, "0" * 64), "sluice", 1, [body])
    (tmp_path / "sluice.jsonl").write_bytes(b"".join(lines))
    done = command_line.run(tmp_path, "audit", "search", "--dir", str(tmp_path))
    assert done.stdout == f"2026-10-01T12:00:00.000 {line}\n"
