"""Logs cannot be forged by what a peer sends, and a crashed task comes back."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from sluicegate import telemetry
from sluicegate.audit.redact import Redactor

FORGED = 'x\n{"level": "info", "event": "forged"}\r\x1b[31m\u2028\x85'


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The process's logging as pytest had it."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    telemetry.redact_with()


def written(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def to_json(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    telemetry.configure(level, "auto", stream)
    return stream


@pytest.mark.parametrize("where", ["event", "field", "key", "nested", "exception", "argument"])
def test_a_forged_line_stays_one_record(where: str) -> None:
    stream = to_json()
    log = logging.getLogger("room")
    if where == "event":
        log.info(FORGED)
    elif where == "field":
        log.info("called", extra={"tool": FORGED})
    elif where == "key":
        log.info("called", extra={FORGED: 1})
    elif where == "nested":
        log.info("called", extra={"arguments": {"a": [FORGED, {FORGED: FORGED}]}})
    elif where == "argument":
        log.info("called %s", FORGED)
    else:
        try:
            raise ValueError(FORGED)
        except ValueError:
            log.exception("broke")
    (record,) = written(stream)
    assert record["event"] != "forged"
    assert "\x1b" not in json.dumps(record, ensure_ascii=False)


def test_no_line_of_the_text_form_starts_with_what_a_peer_said() -> None:
    stream = io.StringIO()
    telemetry.configure("info", "text", stream)
    try:
        raise ValueError("bad\nINFO forged\n\x1b[2J")
    except ValueError:
        logging.getLogger("room").exception("broke\nINFO forged", extra={"tool": "a\nINFO forged"})
    text = stream.getvalue()
    assert "\x1b" not in text
    assert not any(line.startswith("INFO") for line in text.splitlines())


def test_fields_are_bounded_in_length_number_and_depth() -> None:
    stream = to_json()
    deep: Any = "end"
    for _ in range(500):
        deep = {"in": deep}
    logging.getLogger("room").info(
        "called", extra={"long": "a" * 100_000, "many": list(range(10_000)), "deep": deep}
    )
    (record,) = written(stream)
    assert record["long"].endswith("(98000 more)")
    assert len(record["many"]) == telemetry.MAX_ITEMS
    assert len(stream.getvalue()) < 10_000


def test_a_record_has_its_level_its_logger_and_its_fields() -> None:
    stream = to_json()
    logging.getLogger("room").warning("called", extra={"tool": "echo"})
    (record,) = written(stream)
    record.pop("timestamp")
    assert record == {"event": "called", "level": "warning", "logger": "room", "tool": "echo"}


def test_the_level_counts_and_casbin_is_silent() -> None:
    stream = to_json("warning")
    logging.getLogger("room").info("no")
    noisy = logging.getLogger("casbin.enforcer")
    noisy.setLevel(logging.DEBUG)
    noisy.error("no")
    assert stream.getvalue() == ""


def test_logs_go_to_stderr_and_never_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    telemetry.configure("info", "json")
    logging.getLogger("room").info("called")
    captured = capsys.readouterr()
    assert captured.out == "" and json.loads(captured.err)["event"] == "called"


def test_pauses_double_up_to_the_last() -> None:
    pauses = [telemetry.DEFAULT_BACKOFF.pause(failures) for failures in (1, 2, 3, 5, 6, 10_000)]
    assert pauses == [1, 2, 4, 16, 30, 30]


async def test_a_crashed_task_is_logged_counted_and_started_again() -> None:
    stream = to_json()
    runs = 0

    async def flaky() -> None:
        nonlocal runs
        runs += 1
        if runs < 3:
            raise ValueError(f"run {runs}")

    before = telemetry.crashes["flaky"]
    with anyio.fail_after(20):
        await telemetry.supervise("flaky", flaky, backoff=telemetry.Backoff(first=0))
    assert (runs, telemetry.crashes["flaky"] - before) == (3, 2)
    assert [(record["task"], record["failures"]) for record in written(stream)] == [("flaky", 1), ("flaky", 2)]


async def test_cancellation_ends_a_supervised_task() -> None:
    started = anyio.Event()

    async def endless() -> None:
        started.set()
        await anyio.sleep_forever()

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(telemetry.supervise, "endless", endless)
            await started.wait()
            group.cancel_scope.cancel()
    assert ("endless", 0) in telemetry.crashes.items()  # its series is there before it crashes


def test_what_is_logged_again_and_again_is_left_out_and_counted() -> None:
    now = 0.0
    throttle = telemetry.Throttle(burst=3, seconds=10, clock=lambda: now)
    stream = to_json()
    logging.getLogger().handlers[0].filters[:] = [throttle]

    def say(number: int) -> None:
        logging.getLogger("room").info("refused %d", number)

    for number in range(100):
        say(number)
    logging.getLogger("room").info("something else")
    now = 11.0
    say(100)
    now = 22.0
    say(101)
    lines = written(stream)
    assert [line["event"] for line in lines] == [
        "refused 0", "refused 1", "refused 2", "something else", "refused 100", "refused 101",
    ]  # fmt: skip
    assert [line.get("muted_for") for line in lines] == [None, None, 10, None, None, None], "the last one says so"
    assert [line.get("left_out") for line in lines] == [None, None, None, None, 97, None]


def test_what_is_said_of_one_server_silences_nothing_of_another() -> None:
    stream = to_json()
    logging.getLogger().handlers[0].filters[:] = [telemetry.Throttle(burst=3, seconds=10, clock=lambda: 0.0)]
    for server in (*["bad"] * 100, "good"):
        logging.getLogger("room").warning("definition withheld", extra={"server": server})
    assert [line["server"] for line in written(stream)] == ["bad", "bad", "bad", "good"]


def test_what_is_logged_is_without_secrets() -> None:
    telemetry.redact_with(Redactor(b"k" * 32, ["ssn"]).written)
    stream = to_json()
    log = logging.getLogger("test")
    log.warning("no answer to %s", "https://al:marble1@x.example/", extra={"why": ["password=marble2"], "ssn": 1})
    try:
        raise ValueError('{"token": "marble3"}')
    except ValueError:
        log.exception("SSN: marble4", extra={"long": "x" * 5_000 + " password=marble5"})
    text = stream.getvalue()
    assert "marble" not in text and text.count("[redacted:") >= 4 and "more)" in text
