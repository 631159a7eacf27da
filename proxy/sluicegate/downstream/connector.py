"""Making one connection: which transport, which era, and what was learnt about the server on the way.

The store holds which eras the server speaks, so that later starts ask for nothing that is proven. A legacy-only
verdict lasts a day: a server that has been updated would be served worse for ever. A wrong one ends with the first
handshake that the server does not take. A wrong *legacy* verdict would work silently for ever and a wrong *modern* one
fails loudly, so legacy is what is left when nothing proves the other.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from math import inf
from typing import Final, NamedTuple, get_args

import anyio
from anyio.abc import TaskGroup

from sluicegate.downstream.failures import AnswerTooLarge, Lost, NotModern, as_lost, code_of
from sluicegate.downstream.server_output import StderrTail
from sluicegate.downstream.session.connection import Heard, ServerConnection, Transport
from sluicegate.downstream.session.legacy import REVISION, InitializeRefused, LegacyConnection
from sluicegate.downstream.session.modern import ModernConnection
from sluicegate.downstream.session.pending_request import PendingRequest
from sluicegate.downstream.session.suspended import SuspendedCalls
from sluicegate.downstream.settings import ServerSettings
from sluicegate.downstream.transport.http_transport import StreamableHttpTransport
from sluicegate.downstream.transport.sse_transport import HttpSseTransport
from sluicegate.downstream.transport.stdio_transport import StdioTransport
from sluicegate.http.client.pool import HttpClient
from sluicegate.protocol.jsonrpc import Json, Response
from sluicegate.protocol.model import HEADER_MISMATCH, MISSING_CAPABILITY, MODERN, UNSUPPORTED_VERSION, Era
from sluicegate.protocol.modern_server import versions
from sluicegate.protocol.revisions import LEGACY
from sluicegate.runtime.loop_budget import budget_of
from sluicegate.store import Store

Eras = frozenset[Era]

LEGACY_ONLY: Final[Eras] = frozenset({"legacy"})
_UNDECIDED: Final = frozenset({401, 403, 408, 429})


def judge(answer: Response) -> Eras:
    """The eras that an answer proves (2026-07-28 basic/versioning#backward-compatibility). Raises `Lost` where the
    server speaks none that Sluice speaks."""
    if answer.error is None:
        return _eras(versions((answer.result or {}).get("supportedVersions"))) or LEGACY_ONLY
    code, data = answer.error.get("code"), answer.error.get("data")
    if code == UNSUPPORTED_VERSION:
        return _named(data if isinstance(data, dict) else {})
    if code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return frozenset({"modern"})
    return LEGACY_ONLY  # any other error, whatever its code: there is no one way to say "not initialized"


def _named(data: Json) -> Eras:
    supported = versions(data.get("supported"))
    if not (eras := _eras(supported)) and supported:
        # Only what looks like a revision is repeated: it goes into the log and to every client.
        revisions = [version for version in supported if REVISION.fullmatch(version)]
        raise Lost(f"the server speaks only {', '.join(revisions[:5]) or 'other revisions'}", sent=False)
    return eras or LEGACY_ONLY


def _eras(supported: list[str]) -> Eras:
    eras: set[Era] = set()
    if MODERN in supported:
        eras.add("modern")
    if any(version in LEGACY for version in supported):
        eras.add("legacy")
    return frozenset(eras)


def proves_legacy(refusal: Lost) -> bool:
    """The same of a refusal over HTTP without a JSON-RPC answer. False: nothing is proven, try again later."""
    status = refusal.status
    return status is not None and status < 500 and status not in _UNDECIDED


HANDSHAKE_TIME: Final = 60.0
"""Seconds that a server may take to answer first. Each byte that a child writes to stderr starts them anew, because
package runners download first."""
START_TIME: Final = 600.0
"""Seconds in all that a child may take to answer first, whatever it writes."""
SILENCE: Final = 3.0
"""Seconds after which `initialize` follows a `server/discover` that a child does not answer."""
LEGACY_LIFE: Final = 24 * 3600.0
MODERN_LIFE: Final = 30 * 24 * 3600.0  # each start proves it anew
# 2026-07-28 basic/transports/streamable-http#backward-compatibility: how a server of the 2024 transport refuses a POST
_OLDER_TRANSPORT: Final = frozenset({400, 404, 405})
_OLDER: Final = "sse"


class _Dial(NamedTuple):
    """The task group, declared capabilities and session of a connection that is to be made."""

    group: TaskGroup
    declared: Json
    session: str | None


class Connector:
    """`eras` is None until the server has proven what it speaks."""

    def __init__(
        self, settings: ServerSettings, heard: Heard, client_info: Json, http: HttpClient | None, store: Store,
        suspended: SuspendedCalls,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._heard = heard
        self._client_info = client_info
        self._http = http
        self._store = store
        self._suspended = suspended
        self._store_key = f"eras/{settings.key}/{settings.identity}"
        self._stored = ""
        self.stderr = StderrTail()
        self.discovered: dict[Era, Json] = {}
        self._is_older = settings.transport == "sse"  # it speaks HTTP+SSE, which implies the legacy era
        self._is_configured = settings.era != "auto" or self._is_older
        self.eras: Eras | None = None
        if self._is_configured:
            self.eras = LEGACY_ONLY if settings.era == "auto" else frozenset({settings.era})

    @property
    def transport(self) -> str:
        return "stdio" if self._settings.command is not None else "sse" if self._is_older else "http"

    async def recall(self) -> None:
        """Before the server is reached anew: its eras as an earlier connection proved them, in this run or another.
        None where nothing did, or too long ago."""
        with suppress(OSError):
            self._stored = (await self._store.get(self._store_key) or b"").decode()
        words = self._stored.split()
        if self._settings.transport == "auto":
            self._is_older = _OLDER in words
        if not self._is_configured:
            self.eras = frozenset(era for era in get_args(Era) if era in words) or None

    async def _learn(self, eras: Eras) -> None:
        """A modern verdict is kept for longer each time; a legacy one ends, however often the server is reached."""
        if not self._is_configured:
            self.eras = eras
            self.discovered = {era: value for era, value in self.discovered.items() if era in eras}
        words = " ".join([*([] if self._is_configured else sorted(eras)), *([_OLDER] if self._is_older else [])])
        if words and (eras != LEGACY_ONLY or words != self._stored):
            self._stored = words
            with suppress(OSError):  # the store logs it
                life = LEGACY_LIFE if eras == LEGACY_ONLY else MODERN_LIFE
                await self._store.put(self._store_key, words.encode(), life)

    async def _doubt(self, transport: Transport, lost: Lost) -> None:
        """The server did not take the handshake: whether it speaks the legacy era is found out when no connection is
        open any more, for those prove it."""
        if "modern" in (self.eras or ()):
            if isinstance(lost, InitializeRefused):
                await self._learn(frozenset({"modern"}))
        elif isinstance(lost, InitializeRefused) or transport.pid is not None or proves_legacy(lost):
            with suppress(OSError):
                await self._store.delete(self._store_key)

    async def open(self, era: Era, group: TaskGroup, declared: Json, session: str | None = None) -> ServerConnection:
        """A connection of that era, or of the legacy one, and then nobody's, where the server turns out to speak no
        other. `declared` are the capabilities that a legacy server is told of, `session` whose it is from its first
        word on. Raises `Lost` or `OSError`; the transport is closed again then."""
        return await self._open(era, _Dial(group, declared, session))

    async def _open(self, era: Era, dial: _Dial) -> ServerConnection:
        began = anyio.current_time()
        scope = anyio.CancelScope(deadline=began + HANDSHAKE_TIME)
        transport = self._make_transport(era, partial(_renew, scope, began + START_TIME))
        try:
            with scope:
                if era == "modern":
                    return await self._modern(transport, dial)
                return await self._legacy(self._legacy_on(transport, dial), dial)
            raise TimeoutError
        except (Lost, TimeoutError) as error:
            await transport.close()
            is_slow = isinstance(error, TimeoutError) and isinstance(transport, StdioTransport)
            if era == "modern" and not self._is_configured and (is_slow or isinstance(error, NotModern)):
                self.eras = self.eras and LEGACY_ONLY
                return await self._open_again(dial)
            what = "initialize" if era == "legacy" else "server/discover"
            silence = Lost(f"the server did not answer {what} in {anyio.current_time() - began:.0f} s", sent=False)
            refusal = error if isinstance(error, Lost) else silence
            if isinstance(transport, HttpSseTransport) and refusal.status in _OLDER_TRANSPORT:
                self._is_older = self._settings.transport == "sse"  # it was, and is not any more
            if era == "legacy" and self._may_be_older(transport, refusal):
                return await self._open_older(refusal, dial)
            if era == "legacy":
                await self._doubt(transport, refusal)
            raise refusal from None
        except BaseException:
            await transport.close()
            raise

    def _may_be_older(self, transport: Transport, lost: Lost) -> bool:
        """Whether that refusal could be a server's of the 2024 transport, and it should be asked so."""
        if not isinstance(transport, StreamableHttpTransport) or _OLDER_TRANSPORT.isdisjoint(
            (lost.status, transport.refusal)
        ):
            return False
        return self._settings.transport == "auto" and "modern" not in (self.eras or ())

    async def _open_again(self, dial: _Dial) -> ServerConnection:
        """Starts a legacy server that did not survive the probe. Until it has answered or failed, what is known of its
        last end stays, so that `servers` never shows less than before."""
        probed = self.stderr.written
        try:
            connection = await self._open("legacy", dial)
        finally:
            self.stderr.forget(probed)
        self.stderr.exit = ""
        return connection

    async def _open_older(self, refusal: Lost, dial: _Dial) -> ServerConnection:
        self._is_older = True
        try:
            return await self._open("legacy", dial)
        except (OSError, TimeoutError) as error:
            self._is_older = False
            lost = as_lost(error)
            text = f"{refusal.text} to initialize, and with HTTP+SSE (2024-11-05): {lost.text}"
            raise Lost(text, sent=False, status=refusal.status, detail=lost.detail) from None

    def _make_transport(self, era: Era, stirred: Callable[[], None]) -> Transport:
        budget = budget_of(self._settings.key)
        if self._settings.command is not None:
            return StdioTransport(self._settings, self.stderr, budget, stirred)
        if self._http is None:
            raise Lost("no HTTP client", sent=False)
        if self._is_older and era == "legacy":
            return HttpSseTransport(self._settings, self._http, budget)
        return StreamableHttpTransport(self._settings, self._http, era, budget)

    def _legacy_on(self, transport: Transport, dial: _Dial, after: ServerConnection | None = None) -> LegacyConnection:
        return LegacyConnection(
            self._settings, transport, self._heard, self._client_info,
            dial.declared, self._suspended, dial.session, after,
        )  # fmt: skip

    async def _legacy(self, connection: LegacyConnection, dial: _Dial) -> ServerConnection:
        await connection.open(dial.group)
        self.discovered["legacy"] = connection.discovered
        if "modern" not in (self.eras or ()):
            await self._learn(LEGACY_ONLY)
        return connection

    async def _modern(self, transport: Transport, dial: _Dial) -> ServerConnection:
        connection = ModernConnection(self._settings, transport, self._heard, self._client_info)
        await connection.open(dial.group)
        if isinstance(transport, StdioTransport):
            found = await self._probe_child(connection, dial)
        else:
            found = await self._probe(connection)
        if isinstance(found, ServerConnection):
            return found
        eras = judge(found)
        if "modern" not in eras:
            raise NotModern
        if found.error is not None:
            # It names the revision that it was asked in: once more (2026-07-28 basic/versioning)
            found = await connection.discover()
        if found.result is None:
            raise Lost(f"the server answered server/discover with: {code_of(found.error)}", sent=False)
        await self._learn(eras)
        connection.start(found.result)
        self.discovered["modern"] = connection.discovered
        return connection

    async def _probe(self, connection: ModernConnection) -> Response:
        try:
            return await connection.discover()
        except (Lost, TimeoutError) as error:
            if isinstance(error, Lost) and proves_legacy(error):
                raise NotModern from None
            raise as_lost(error, "the server does not answer server/discover") from None

    async def _probe_child(self, modern: ModernConnection, dial: _Dial) -> Response | ServerConnection:
        """Its answer to `server/discover`; where that proves no modern server, a legacy connection to the same process
        (2026-07-28 basic/transports/stdio#backward-compatibility). Raises `NotModern` where the process has ended."""
        asked = modern.ask_first()
        answer = await _answer(asked, inf if self.eras else SILENCE)
        if answer is not None and "modern" in judge(answer):
            return answer
        if self._is_configured:
            raise as_lost(asked.error) if asked.error else NotModern()
        try:
            connection = await self._legacy(self._legacy_on(modern.transport, dial, modern), dial)
        except InitializeRefused:  # a modern server refuses it, too: one that was slow to answer
            await modern.open(dial.group)
            if (answer := await _answer(asked, SILENCE)) is None:
                raise NotModern from None
            return answer
        except Lost:
            raise NotModern from None
        await self._learn(LEGACY_ONLY)
        self.stderr.forget(self.stderr.written)  # old servers fill pages about a request that they do not know
        return connection


async def _answer(asked: PendingRequest, seconds: float) -> Response | None:
    with anyio.move_on_after(seconds), suppress(Lost, AnswerTooLarge):
        return await asked.result()
    return None


def _renew(scope: anyio.CancelScope, end: float) -> None:
    scope.deadline = min(anyio.current_time() + HANDSHAKE_TIME, end)
