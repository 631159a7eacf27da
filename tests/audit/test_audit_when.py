"""Times as people write them, in the form that the log's own times are compared with."""

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.audit.read import read_time
from sluicegate.audit.record import Stamp

NOW = datetime(2026, 11, 22, 15, 30, 10, 250_000, UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("now", "2026-11-22T15:30:10.250000000Z"),
        ("90s", "2026-11-22T15:28:40.250000000Z"),
        ("30m", "2026-11-22T15:00:10.250000000Z"),
        ("1h", "2026-11-22T14:30:10.250000000Z"),
        ("2d", "2026-11-20T15:30:10.250000000Z"),
        ("1w", "2026-11-15T15:30:10.250000000Z"),
        ("today", "2026-11-22T00:00:00.000000000Z"),
        ("yesterday", "2026-11-21T00:00:00.000000000Z"),
        ("2026-11", "2026-11-01T00:00:00.000000000Z"),
        ("2026-11-20", "2026-11-20T00:00:00.000000000Z"),
        ("2026-11-20T12", "2026-11-20T12:00:00.000000000Z"),
        ("2026-11-20 12:30", "2026-11-20T12:30:00.000000000Z"),
        ("2026-11-20T12:30:01.5Z", "2026-11-20T12:30:01.500000000Z"),
        ("2026-11-20t12:30:01z", "2026-11-20T12:30:01.000000000Z"),
        ("2026-11-20T00:30:00+02:00", "2026-11-19T22:30:00.000000000Z"),
        ("2026-11-20T23:30:00-0130", "2026-11-21T01:00:00.000000000Z"),
        ("2026-11-20 12:30:01 +01:00", "2026-11-20T11:30:01.000000000Z"),
        ("2026-11-20T12:30:01.123456789Z", "2026-11-20T12:30:01.123456789Z"),
    ],
)
def test_a_time_is_read_as_it_is_meant(text: str, meant: str) -> None:
    assert read_time(text, NOW) == meant


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
def test_the_zone_of_the_machine_is_not_that_of_the_log(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert read_time("2026-11-20", NOW) == "2026-11-20T00:00:00.000000000Z"
        assert read_time("2026-11-20 12:30", NOW) == "2026-11-20T12:30:00.000000000Z"
        assert read_time("today", NOW) == "2026-11-22T00:00:00.000000000Z"
        assert Stamp()(0) == "1970-01-01T00:00:00.000000000Z"
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    ["", "1", "h", "1 hour", "-1h", "tomorrow", "2026", "2026-13", "2026-02-30", "2026-11-20T25",
     "2026-11-20T12:30+25:00", "2026-11-20T12:30:01.1234567890Z", "20261120", "0000-01-01", "0001-01-01T00:00+02:00",
     "999999w"],
)  # fmt: skip
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="is no time"):
        read_time(text, NOW)


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.integers(-23 * 60, 23 * 60))
def test_what_is_read_compares_with_what_the_log_writes(moment: datetime, minutes: int) -> None:
    moment = moment.replace(tzinfo=UTC)
    nanoseconds = (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1000
    shifted = moment + timedelta(minutes=minutes)
    sign, (hours, rest) = "-" if minutes < 0 else "+", divmod(abs(minutes), 60)
    text = f"{shifted:%Y-%m-%dT%H:%M:%S}.{shifted.microsecond:06d}{sign}{hours:02d}:{rest:02d}"
    assert read_time(text, NOW) == Stamp()(nanoseconds)
