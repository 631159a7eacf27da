"""Sessions of the console, in two halves: a cookie that no script can read, and a page key that no other port gets.

Cookies ignore ports (RFC 6265 8.5), so on loopback a server on another port is sent the first half; it lives without
the second, which is in the storage of our origin alone. Only digests of both are kept. The credential that a session
stands for is shown to the admin API with each request, which judges it anew. Sessions are in memory, and in a store.
"""

import hmac
import json
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import Scope

from sluicegate.http import cookies
from sluicegate.http.forwarded_headers import ForwardedHeaders, is_forwarded
from sluicegate.http.hosts import is_loopback
from sluicegate.store import Store
from sluicegate.store.keys import KeyRing, Sealer, digest

log = logging.getLogger(__name__)

SITE: Final = "sluice.site"
CHANNEL: Final = "sluice.channel"
"""Of the scope: by which way a person decides. The admin API writes it into the vote."""
_MAX_ORIGIN: Final = 300
_PORTS: Final = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Site:
    """The console as a browser has it. `origin` is scheme, host and port; `is_loopback`: on this machine, directly.

    All ports of a host are one site: so Origin is compared as a whole, port included, and Sec-Fetch-Site must say
    `same-origin`. A browser sends both by itself, and no page can change them."""

    origin: str
    is_loopback: bool
    port: int

    @property
    def is_secure(self) -> bool:
        return self.origin.startswith("https://")

    @property
    def cookie_name(self) -> str:
        return "__Host-sluice" if self.is_secure else f"sluice-{self.port}"

    def cookie(self, value: str) -> str:
        secure = "; Secure" if self.is_secure else ""
        return f"{self.cookie_name}={value}; Path=/; HttpOnly; SameSite=Strict{secure}"

    def cookie_of(self, headers: Headers) -> str:
        """The first half; "" of one that comes twice, as somebody else may have put one there."""
        lines = cookies.bounded(headers.getlist("cookie"))
        parts = (part.strip().partition("=") for line in lines for part in line.split(";"))
        values = [value for name, _, value in parts if name == self.cookie_name]
        return values[0] if len(values) == 1 else ""

    def refusal(self, headers: Headers, is_write: bool) -> Response | None:
        """Why a request is not one of our own pages'."""
        origins = headers.getlist("origin")
        is_ours = [_whole(origin) for origin in origins] == [_whole(self.origin)]
        if (origins or is_write) and not is_ours:
            return JSONResponse({"error": "only the console's own pages may ask: Origin is not theirs"}, 403)
        if headers.getlist("sec-fetch-site") != ["same-origin"]:
            return JSONResponse({"error": "only the console's own pages may ask: Sec-Fetch-Site is not theirs"}, 403)
        return None


def site_of(scope: Scope, forwarded: ForwardedHeaders) -> Site | None:
    """None where the console is not served: off this machine without https."""
    peer, server = scope.get("client"), scope.get("server")
    if peer is None or server is None:
        return None
    origin = forwarded.origin(str(peer[0]), scope["headers"])
    name = _whole(origin)
    if name is None:
        return None
    if name[0] == "https":
        return Site(origin, False, name[2])
    is_here = is_loopback(str(peer[0])) and not is_forwarded(scope["headers"]) and is_loopback(name[1])
    return Site(origin, True, name[2]) if is_here else None


def _whole(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port; None of what is no origin."""
    if len(origin) > _MAX_ORIGIN:
        return None
    try:
        parts = urlsplit(origin)
        port = parts.port
    except ValueError:
        return None
    is_more = parts.path or parts.query or parts.fragment or parts.username
    if parts.scheme not in _PORTS or not parts.hostname or is_more:
        return None
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme]


SessionKind = Literal["link", "key"]

CODE_LIFE: Final = 60.0
STEP_UP_LIFE: Final = 300.0
MAX_SESSIONS: Final = 1_000
MAX_PER_PRINCIPAL: Final = 16
MAX_CODES: Final = 20
MAX_ATTEMPTS: Final = 5
ATTEMPTS_WITHIN: Final = 60.0
_HOUR: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Lifetime:
    idle: float
    absolute: float


LIFETIMES: Final[dict[SessionKind, Lifetime]] = {
    "link": Lifetime(12 * _HOUR, 7 * 24 * _HOUR),
    "key": Lifetime(_HOUR / 2, 12 * _HOUR),
}


@dataclass(slots=True)
class Session:
    principal: str
    kind: SessionKind
    credential: str = field(repr=False)
    began: float
    used: float
    stepped_up: float = float("-inf")
    cookie: str = field(default="", repr=False)
    """The digest of the first half."""
    page_key: str = field(default="", repr=False)
    """The digest of the second."""
    sealed: str = field(default="", repr=False)
    """The credential as the store has it."""
    stored: float = float("-inf")
    """Its `used`, as the store has it."""
    kept_until: float = float("-inf")
    """Until then the store has it, under these halves, unless it ended."""
    looked: float = float("-inf")
    """When the store was last asked for it."""

    @property
    def ends(self) -> float:
        life = LIFETIMES[self.kind]
        return min(self.used + life.idle, self.began + life.absolute)

    @property
    def mark(self) -> str:
        """What an audit record calls it: nobody can make a cookie of it."""
        return self.cookie[:16]


@dataclass(frozen=True, slots=True)
class Halves:
    cookie: str = field(repr=False)
    page_key: str = field(repr=False)


class SessionsFull(Exception):
    """So many sessions of others are open that there is none for one more principal."""


class ConsoleSessions:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, Session] = {}
        self.ended: set[str] = set()
        """The `cookie` of each session that ended, and of each that was renewed, until the store has it no more."""
        self.last_used = clock()
        """When a person last did something in any of them."""

    def open(self, principal: str, kind: SessionKind, credential: str) -> tuple[Session, Halves]:
        """A session that has halves of its own. Raises `SessionsFull`."""
        self.sweep()
        if not self._make_room(principal, kind):
            raise SessionsFull
        now = self._clock()
        session = Session(principal, kind, credential, now, now)
        return session, self.renew(session)

    def of(self, principal: str) -> list[Session]:
        """The one that was idle for longest comes first."""
        return sorted((one for one in self._sessions.values() if one.principal == principal), key=lambda one: one.used)

    def _make_room(self, principal: str, kind: SessionKind) -> bool:
        """The principal's own session that was idle for longest ends, never somebody else's: False where all are full
        of others. No number of keys and tokens keeps the operator's link out."""
        own = self.of(principal)
        is_full = kind != "link" and len(self._sessions) >= MAX_SESSIONS
        if own and (is_full or len(own) >= MAX_PER_PRINCIPAL):
            self.end(own[0])
        return bool(own) or not is_full

    def renew(self, session: Session) -> Halves:
        """New halves, after which the old ones are nobody's."""
        self.end(session)
        session.kept_until = float("-inf")
        halves = Halves(secrets.token_urlsafe(16), secrets.token_urlsafe(16))
        session.cookie, session.page_key = digest(halves.cookie), digest(halves.page_key)
        self._sessions[session.cookie] = session
        return halves

    def find(self, cookie: str, page_key: str, is_activity: bool) -> Session | None:
        session = self._sessions.get(digest(cookie))
        if session is None:
            return None
        now = self._clock()
        if session.ends <= now:
            del self._sessions[session.cookie]
            return None
        if not secrets.compare_digest(session.page_key, digest(page_key)):
            return None
        if is_activity:
            session.used = self.last_used = now
        return session

    def take(self, session: Session) -> bool:
        """A session of another process goes on, if its time is not over."""
        if session.ends <= self._clock() or not self._make_room(session.principal, session.kind):
            return False
        self._sessions[session.cookie] = session
        return True

    def end(self, session: Session) -> None:
        if self._sessions.pop(session.cookie, None) is not None:
            self.ended.add(session.cookie)

    def end_all_of(self, principal: str) -> int:
        ended = self.of(principal)
        for session in ended:
            self.end(session)
        return len(ended)

    def is_open(self, session: Session) -> bool:
        return self._sessions.get(session.cookie) is session and session.ends > self._clock()

    def sweep(self) -> None:
        """In the store its time ends what is over here: at another replica it may have been used since."""
        now = self._clock()
        self._sessions = {mark: one for mark, one in self._sessions.items() if one.ends > now}

    def step_up(self, session: Session) -> None:
        session.stepped_up = self._clock()

    def seconds_of_step_up(self, session: Session) -> float:
        return max(0.0, session.stepped_up + STEP_UP_LIFE - self._clock())

    def seconds_left(self, session: Session) -> float:
        return max(0.0, session.ends - self._clock())


class Codes:
    """One-time codes for a link: 128 bit, for a minute, once."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._codes: dict[str, tuple[float, str]] = {}

    def make(self, credential: str) -> str:
        now = self._clock()
        self._codes = {code: one for code, one in self._codes.items() if one[0] > now}
        while len(self._codes) >= MAX_CODES:
            del self._codes[next(iter(self._codes))]
        code = secrets.token_urlsafe(16)
        self._codes[digest(code)] = now + CODE_LIFE, credential
        return code

    def use(self, code: str) -> str | None:
        """The credential that it was made with; None for a code that is over, used or nobody's."""
        ends, credential = self._codes.pop(digest(code), (float("-inf"), ""))
        return credential if ends > self._clock() else None


PREFIX: Final = "console/session/"
WRITE_EVERY: Final = 60.0
"""Seconds of use that a crash may lose of a session."""
BELIEVED_FOR: Final = 1.0
MAX_LOOKS: Final = 100
"""Cookies a second that are not known here and are looked for in the store: strangers send as many as they like."""
_PURPOSE: Final = "console session"


class StoredSessions:
    """Console sessions that outlive a restart of Sluice. The store has a digest of each half, and the credential sealed
    under a key that is made of both halves: whoever reads the store has neither. A session that a link began stands for
    the operator, whose token is another one after a restart: it is sealed with our own key, so that whoever writes into
    the store begins none. Every method goes on where the store cannot be used: then a session ends with this
    process."""

    def __init__(
        self, sessions: ConsoleSessions, store: Store | None, sealer: Sealer | None, operator_token: str,
        clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._sessions, self._store, self._sealer, self._operator_token = sessions, store, sealer, operator_token
        self._clock, self._wall = clock, wall
        self._second, self._looks = 0.0, 0

    async def is_there(self, session: Session, within: float = BELIEVED_FOR) -> bool:
        """Whether it is open still, also in the store, where another replica may have ended it. One look there holds
        for `within` seconds, but not where the session is about to be written: that would bring it back."""
        mark, now, rows = session.cookie, self._clock(), dict[str, bytes]()
        is_due = now - session.looked >= within or session.used - session.stored >= WRITE_EVERY
        if is_due and now < session.kept_until and self._store is not None and not self._store.problem:
            session.looked = now  # who asks meanwhile does not wait, too
            if await self._try(self._read, rows, mark) and not rows and session.cookie == mark:
                self._sessions.end(session)
        return self._sessions.is_open(session)

    async def touch(self, session: Session) -> None:
        """It was used. Not each use is written."""
        if session.used - session.stored >= WRITE_EVERY:
            await self._put(session)

    async def restore(self, cookie: str, page_key: str) -> Session | None:
        """A session of another process, which is one of this process from now on. What the store says now counts:
        another replica may have used or ended it a moment ago."""
        mark, rows = digest(cookie), dict[str, bytes]()
        if self._store is None or not cookie or not page_key:
            return None
        second = self._clock() // 1
        self._second, self._looks = second, self._looks + 1 if second == self._second else 1
        if self._looks > MAX_LOOKS:
            return None
        await self._try(self._read, rows, mark)
        if mark in self._sessions.ended:  # the store may have it still
            return None
        # Another request of the same page may have restored it meanwhile.
        found = self._sessions.find(cookie, page_key, False)
        return found or self._restored(_row(rows.get(PREFIX + mark, b"")), Halves(cookie, page_key))

    async def save(self, session: Session, halves: Halves) -> None:
        """After `open` and `renew`, when the halves are at hand."""
        if session.kind != "link":
            sealed = {"credential": session.credential}
            session.sealed = _sealer(halves).seal(_PURPOSE, sealed, session.principal)
        elif self._sealer is not None:
            session.sealed = self._sealer.seal(_PURPOSE, {}, session.cookie + session.page_key)
        if self._store is not None:
            await self._make_room(session.principal)
        await self._put(session)
        await self.forget()

    async def forget(self) -> None:
        """What ended in memory ends in the store."""
        for mark in list(self._sessions.ended):
            if self._store is None or await self._try(self._store.delete, PREFIX + mark):  # else at the next chance
                self._sessions.ended.discard(mark)

    async def end_all_of(self, principal: str) -> None:
        self._sessions.end_all_of(principal)
        if self._store is not None:
            self._sessions.ended |= (await self._all_of(principal)).keys()
        await self.forget()

    async def _put(self, session: Session) -> None:
        session.stored = session.used
        ends = session.ends
        if self._store is None or not self._sessions.is_open(session):  # it may have ended while others were written
            return
        now, wall = self._clock(), self._wall()
        row = {
            "principal": session.principal, "way": session.kind, "page_key": session.page_key, "sealed": session.sealed,
            "began": wall - (now - session.began), "used": wall - (now - session.used),
        }  # fmt: skip
        mark = session.cookie
        value, ttl = json.dumps(row).encode("ascii"), ends - now + WRITE_EVERY  # not each use is written
        is_kept = await self._try(self._store.put, PREFIX + mark, value, ttl)
        if session.cookie != mark or not self._sessions.is_open(session):  # a deletion may have been faster
            await self._try(self._store.delete, PREFIX + mark)
        elif is_kept:
            session.kept_until = ends

    async def _all_of(self, principal: str) -> dict[str, dict[str, Any]]:
        """The principal's sessions of all processes, by the digest of their first half. What is no session ends."""
        rows = dict[str, bytes]()
        await self._try(self._read, rows)
        read = {key.removeprefix(PREFIX): _row(value) for key, value in rows.items()}
        self._sessions.ended |= {mark for mark, row in read.items() if row is None}
        return {mark: row for mark, row in read.items() if row is not None and row["principal"] == principal}

    async def _make_room(self, principal: str) -> None:
        """Of the principal's sessions that are not open here, as many stay as fit: those that were used last."""
        rows, own = await self._all_of(principal), self._sessions.of(principal)
        others = sorted(rows.keys() - {one.cookie for one in own}, key=lambda mark: float(rows[mark]["used"]))
        self._sessions.ended |= set(others[: max(0, len(own) + len(others) - MAX_PER_PRINCIPAL)])

    async def _read(self, rows: dict[str, bytes], mark: str = "") -> None:
        assert self._store is not None
        rows |= await self._store.scan(PREFIX + mark)

    def _restored(self, row: dict[str, Any] | None, halves: Halves) -> Session | None:
        if row is None or not secrets.compare_digest(row["page_key"], digest(halves.page_key)):
            return None
        mark = digest(halves.cookie)
        if row["way"] == "link":
            halves_there = mark + row["page_key"]
            opened = None if self._sealer is None else self._sealer.unseal(_PURPOSE, row["sealed"], halves_there)
            credential: Any = None if opened is None else self._operator_token
        else:
            opened = _sealer(halves).unseal(_PURPOSE, row["sealed"], row["principal"])
            credential = None if opened is None else opened.get("credential")
        if row["way"] not in LIFETIMES or not isinstance(credential, str):
            return None
        # Where the clock was set back meanwhile, a session is as old as when it was last used.
        now, wall = self._clock(), max(self._wall(), row["used"])
        age, idle = wall - row["began"], wall - row["used"]
        session = Session(
            row["principal"], row["way"], credential, now - age, now - idle, cookie=mark, page_key=row["page_key"],
            sealed=row["sealed"], stored=now - idle,
        )  # fmt: skip
        session.kept_until = session.ends
        return session if self._sessions.take(session) else None

    async def _try(self, work: Callable[..., Awaitable[None]], *what: Any) -> bool:
        try:
            await work(*what)
        except OSError as error:
            log.warning("the store cannot be asked for console sessions", extra={"error": str(error)})
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


def _sealer(halves: Halves) -> Sealer:
    """Of a key that only both halves together make."""
    key = hmac.digest(halves.cookie.encode(), b"sluice console session " + halves.page_key.encode(), "sha256")
    return Sealer(KeyRing([key]))
