"""Points in time as a person writes them, in the form of the log: UTC with nanoseconds, so that texts compare. Pure."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

FORMS: Final = "1h, 30m, 2d (back from now), today, yesterday, 2026-10-01, 2026-10-01T12:30, 2026-10-01T12:30:00+02:00"

_BACK: Final = re.compile(r"(\d{1,6})(s|m|h|d|w)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_POINT: Final = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)(?:[Tt ](\d\d)(?::(\d\d)(?::(\d\d)(\.\d{1,9})?)?)? ?([Zz]|[+-]\d\d:?\d\d)?)?)?"
)


def read_time(text: str, now: datetime) -> str:
    """The time that `text` means, as the log writes times: a duration back from `now`, a day, or RFC 3339 of which the
    end may be missing. A time without an offset is UTC. Raises `ValueError` for anything else."""
    text = text.strip()
    try:
        if (found := _read(text, now)) is not None:
            return found
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no time that exists") from None
    raise ValueError(f"{text[:40]!r} is no time; write {FORMS}")


def _read(text: str, now: datetime) -> str | None:
    if back := _BACK.fullmatch(text):
        return _written(now - timedelta(**{_UNITS[back[2]]: int(back[1])}))
    if text == "now":
        return _written(now)
    if text in ("today", "yesterday"):
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return _written(midnight - timedelta(days=text == "yesterday"))
    point = _POINT.fullmatch(text)
    return None if point is None else _read_point(point)


def _read_point(point: re.Match[str]) -> str:
    year, month, day, hour, minute, second, fraction, offset = point.groups()
    date = int(year), int(month), int(day or 1)
    given = datetime(*date, int(hour or 0), int(minute or 0), int(second or 0), tzinfo=UTC)
    ahead = timedelta(0)
    if offset and offset not in "Zz":
        hours, minutes = int(offset[1:3]), int(offset[-2:])
        if hours > 23 or minutes > 59:
            raise ValueError("no such offset")
        ahead = timedelta(hours=hours, minutes=minutes) * (-1 if offset[0] == "-" else 1)
    return _written(given - ahead, (fraction or ".")[1:])


def _written(time: datetime, fraction: str | None = None) -> str:
    digits = f"{time.microsecond:06d}" if fraction is None else fraction
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{digits:0<9}Z"
