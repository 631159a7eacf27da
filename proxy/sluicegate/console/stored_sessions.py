"""Console sessions that outlive a restart of Sluice.

The store has a digest of each half, and the credential sealed under a key that is made of both halves: whoever reads
the store has neither. A session that a link began stands for the operator, whose token is another one after a restart.
"""

import hmac
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import anyio

from sluicegate.console.sessions import (
    LIFETIMES,
    MAX_PER_PRINCIPAL,
    MAX_SESSIONS,
    ConsoleSessions,
    Halves,
    Session,
    digest,
)
from sluicegate.store import Store
from sluicegate.store.keys import KeyRing, Sealer

log = logging.getLogger(__name__)

PREFIX: Final = "console/session/"
WRITE_EVERY: Final = 60.0
"""Seconds of use that a crash may lose of a session."""
_PURPOSE: Final = "console session"


class StoredSessions:
    """Every method goes on where the store cannot be used: then a session ends with this process."""

    def __init__(
        self, sessions: ConsoleSessions, store: Store | None, operator_token: str,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._sessions, self._store, self._operator_token = sessions, store, operator_token
        self._clock, self._wall = clock, wall
        self._found: dict[str, dict[str, Any]] | None = None
        """Sessions of an earlier process that nobody has used in this one, by the digest of their first half."""
        self._reading = anyio.Lock()

    async def touch(self, session: Session) -> None:
        """It was used. Not each use is written."""
        if session.used - session.stored >= WRITE_EVERY:
            await self._put(session)

    async def restore(self, cookie: str, page_key: str) -> Session | None:
        """A session of an earlier process, which is one of this process from now on."""
        if self._store is None or not cookie or not page_key:
            return None
        earlier = await self._earlier()
        # Another request of the same page may have restored it meanwhile.
        found = self._sessions.find(cookie, page_key, False)
        return found or self._restored(earlier.get(digest(cookie)), Halves(cookie, page_key))

    async def save(self, session: Session, halves: Halves) -> None:
        """After `open` and `renew`, when the halves are at hand."""
        if session.way != "link":
            sealed = {"credential": session.credential}
            session.sealed = _sealer(halves).seal(_PURPOSE, sealed, session.principal)
        if self._store is not None:
            await self._end_earlier(session.principal)
        await self._put(session)
        await self.forget()

    async def forget(self) -> None:
        """What ended in memory ends in the store."""
        ended, self._sessions.ended = self._sessions.ended, []
        for mark in ended:
            if self._found is not None:
                self._found.pop(mark, None)
            if self._store is not None and not await self._try(self._store.delete, PREFIX + mark):
                self._sessions.ended.append(mark)  # at the next chance

    async def end_all_of(self, principal: str) -> None:
        self._sessions.end_all_of(principal)
        if self._store is not None:
            earlier = await self._earlier()
            self._sessions.ended += [mark for mark, row in earlier.items() if row.get("principal") == principal]
        await self.forget()

    # ------------------------------------------------------------ in the store

    async def _put(self, session: Session) -> None:
        session.stored = session.used
        left = session.ends - self._clock()
        if self._store is None or left <= 0:
            return
        now, wall = self._clock(), self._wall()
        row = {
            "principal": session.principal, "way": session.way, "page_key": session.page_key, "sealed": session.sealed,
            "began": wall - (now - session.began), "used": wall - (now - session.used),
        }  # fmt: skip
        await self._try(self._store.put, PREFIX + session.cookie, json.dumps(row).encode("ascii"), left)

    async def _earlier(self) -> dict[str, dict[str, Any]]:
        """Read once: what comes later is made here."""
        assert self._store is not None
        async with self._reading:
            if self._found is None:
                rows: dict[str, bytes] = {}
                await self._try(self._read, rows)
                read = {key.removeprefix(PREFIX): _row(value) for key, value in rows.items()}
                found = {mark: row for mark, row in read.items() if row is not None}
                self._sessions.ended += read.keys() - found
                self._found = {mark: found[mark] for mark in _newest(found)}
                self._sessions.ended += found.keys() - self._found
        return self._found

    async def _end_earlier(self, principal: str) -> None:
        """What is open here was used later than any session of an earlier process: of those as many stay as fit."""
        mine = {mark: row for mark, row in (await self._earlier()).items() if row["principal"] == principal}
        fitting = max(0, MAX_PER_PRINCIPAL - len(self._sessions.of(principal)))
        self._sessions.ended += _newest(mine)[fitting:]

    async def _read(self, rows: dict[str, bytes]) -> None:
        assert self._store is not None
        rows |= await self._store.scan(PREFIX)

    def _restored(self, row: dict[str, Any] | None, halves: Halves) -> Session | None:
        if row is None or self._found is None:
            return None
        if not secrets.compare_digest(row["page_key"], digest(halves.page_key)):
            return None
        credential: Any = self._operator_token
        if row["way"] != "link":
            opened = _sealer(halves).unseal(_PURPOSE, row["sealed"], row["principal"])
            credential = None if opened is None else opened.get("credential")
        mark = digest(halves.cookie)
        del self._found[mark]
        if row["way"] not in LIFETIMES or not isinstance(credential, str):
            return None
        # Where the clock was set back meanwhile, a session is as old as when it was last used.
        now, wall = self._clock(), max(self._wall(), row["used"])
        age, idle = wall - row["began"], wall - row["used"]
        session = Session(
            row["principal"], row["way"], credential, now - age, now - idle, cookie=mark, page_key=row["page_key"],
            sealed=row["sealed"], stored=now - idle,
        )  # fmt: skip
        if self._sessions.take(session):
            return session
        self._sessions.ended.append(mark)
        return None

    async def _try(self, work: Callable[..., Awaitable[None]], *what: Any) -> bool:
        try:
            await work(*what)
        except OSError as error:
            log.warning("console sessions cannot be stored", extra={"error": str(error)})
            return False
        return True


def _row(value: bytes) -> dict[str, Any] | None:
    """None for what is no session: it locks nobody out."""
    try:
        row = json.loads(value)
    except ValueError:
        return None
    texts, times = ("principal", "way", "page_key", "sealed"), ("began", "used")
    is_one = isinstance(row, dict) and all(isinstance(row.get(name), str) for name in texts)
    return row if is_one and all(type(row.get(name)) in (int, float) for name in times) else None


def _newest(rows: Mapping[str, dict[str, Any]]) -> list[str]:
    """As many as there may be: the last used of each principal before the second of anybody, and so on."""
    counts = Counter[str]()
    ranked = []
    for mark in sorted(rows, key=lambda mark: float(rows[mark]["used"]), reverse=True):
        counts[principal := rows[mark]["principal"]] += 1
        ranked.append((counts[principal], mark))
    ranked.sort(key=lambda one: one[0])
    return [mark for rank, mark in ranked if rank <= MAX_PER_PRINCIPAL][:MAX_SESSIONS]


def _sealer(halves: Halves) -> Sealer:
    """Of a key that only both halves together make."""
    key = hmac.digest(halves.cookie.encode(), b"sluice console session " + halves.page_key.encode(), "sha256")
    return Sealer(KeyRing([key]))
