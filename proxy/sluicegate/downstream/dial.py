"""Making one connection: which wire, which era, and what was learnt about the server on the way.

Knows both transports and both eras; knows no pool and no client. Verdicts are kept for the life of the process, but
a legacy-only one is tried again after a day: a server that has been updated would be served worse for ever.
"""

from collections.abc import Callable
from typing import Final

import anyio
import httpx
from anyio.abc import TaskGroup

from sluicegate.call import Era
from sluicegate.downstream.connection import Connection, Heard, Wire
from sluicegate.downstream.http import HttpWire
from sluicegate.downstream.legacy import HANDSHAKE_TIME, LegacyConnection
from sluicegate.downstream.legacy_sse import SseWire
from sluicegate.downstream.modern import PROBE_TIME, ModernConnection
from sluicegate.downstream.parking import Parking
from sluicegate.downstream.probe import LEGACY_ONLY, Eras, judge, judge_silence
from sluicegate.downstream.settings import Lost, ServerSettings, as_lost, code_of
from sluicegate.downstream.share import Share
from sluicegate.downstream.stdio import ChildWire, Tail
from sluicegate.message import Json, Response

LEGACY_VERDICT_LIFE: Final = 24 * 3600.0
# 2026-07-28 basic/transports/streamable-http#backward-compatibility: how a server of the 2024 transport refuses a POST
_OLDER_TRANSPORT: Final = frozenset({400, 404, 405})


class NotModern(Lost):
    """The server has proven to speak the legacy era only."""


class Dialler:
    """`eras` is None until the server has proven what it speaks."""

    def __init__(
        self,
        settings: ServerSettings,
        heard: Heard,
        client_info: Json,
        transport: httpx.AsyncBaseTransport | None,
        clock: Callable[[], float],
        parking: Parking,
    ) -> None:
        self._settings = settings
        self._heard = heard
        self._client_info = client_info
        self._transport = transport
        self._clock = clock
        self._parking = parking
        self._share = Share()
        self._judged = 0.0
        self.stderr = self._stderr_of_probe = Tail()
        self.discovered: dict[Era, Json] = {}
        self._is_older = settings.transport == "sse"  # it speaks HTTP+SSE, which implies the legacy era
        self._is_told = settings.era != "auto" or self._is_older
        self.eras: Eras | None = None
        if self._is_told:
            self.eras = LEGACY_ONLY if settings.era == "auto" else frozenset({settings.era})

    @property
    def transport(self) -> str:
        return "stdio" if self._settings.command is not None else "sse" if self._is_older else "http"

    def learn(self, eras: Eras) -> None:
        if not self._is_told:
            self.eras, self._judged = eras, self._clock()

    def doubt(self) -> None:
        """On reconnect: forgets a legacy verdict that is too old."""
        is_old = self.eras == LEGACY_ONLY and self._clock() - self._judged >= LEGACY_VERDICT_LIFE
        if is_old and not self._is_told:
            self.eras = None
            self._is_older = False

    async def open(
        self, era: Era, group: TaskGroup, declared: Json, session: str | None = None, hears: bool = True
    ) -> Connection:
        """`declared` are the capabilities that a legacy server is told of, `session` whose it is from its first word
        on. Raises `Lost`, `OSError` or `TimeoutError`; the wire is closed again then."""
        wire = self._wire(era, hears)
        try:
            if era == "modern":
                return await self._modern(wire, group)
            return await self._legacy(wire, group, declared, session)
        except Lost as lost:
            await wire.close()
            if isinstance(wire, SseWire) and lost.status in _OLDER_TRANSPORT:
                self._is_older = self._settings.transport == "sse"  # it was, and is not any more
            if not self._may_be_older(wire, lost, era):
                raise
            refusal = lost
        except BaseException:
            await wire.close()
            raise
        return await self._open_older(refusal, group, declared, session)

    def _may_be_older(self, wire: Wire, lost: Lost, era: Era) -> bool:
        """Whether that refusal could be a server's of the 2024 transport, and it should be asked so."""
        is_refusal = isinstance(wire, HttpWire) and _OLDER_TRANSPORT & {lost.status, wire.refusal}
        is_open = self._settings.transport == "auto" and "modern" not in (self.eras or ())
        return era == "legacy" and is_open and bool(is_refusal)

    async def _open_older(self, refusal: Lost, group: TaskGroup, declared: Json, session: str | None) -> Connection:
        self._is_older = True
        try:
            return await self.open("legacy", group, declared, session)
        except (OSError, TimeoutError) as error:
            self._is_older = False
            lost = as_lost(error)
            text = f"{refusal.text} to initialize, and with HTTP+SSE (2024-11-05): {lost.text}"
            raise Lost(text, sent=False, status=refusal.status, detail=lost.detail) from None

    async def shakes_hands(self) -> bool:
        """Whether a server that has proven to be modern speaks the legacy era, too. Leaves nothing behind."""
        is_legacy = False
        with anyio.move_on_after(PROBE_TIME):
            async with anyio.create_task_group() as group:
                try:
                    connection = await self.open("legacy", group, {}, hears=False)
                    is_legacy = True
                    await connection.wire.close()
                except (OSError, TimeoutError):
                    self.discovered.pop("legacy", None)
                group.cancel_scope.cancel()
        return is_legacy

    def _wire(self, era: Era, hears: bool) -> Wire:
        if self._settings.command is not None:
            if era == "modern" and self.eras is None:
                self._stderr_of_probe = Tail()  # old servers fill pages about a request they do not know
                return ChildWire(self._settings, self._stderr_of_probe, self._share)
            return ChildWire(self._settings, self.stderr, self._share)
        if self._transport is None:
            raise Lost("no transport", sent=False)
        if self._is_older and era == "legacy":
            return SseWire(self._settings, self._transport, self._share)
        return HttpWire(self._settings, self._transport, era, self._share, hears)

    async def _legacy(self, wire: Wire, group: TaskGroup, declared: Json, session: str | None) -> Connection:
        connection = LegacyConnection(
            self._settings, wire, self._heard, self._client_info, declared, self._parking
        )  # fmt: skip
        connection.session = session
        try:
            await connection.open(group)
        except TimeoutError:
            raise Lost(f"the server did not answer initialize in {HANDSHAKE_TIME:g} s", sent=False) from None
        self.discovered["legacy"] = connection.discovered
        return connection

    async def _modern(self, wire: Wire, group: TaskGroup) -> Connection:
        connection = ModernConnection(self._settings, wire, self._heard, self._client_info)
        await connection.open(group)
        answer, eras = await self._ask(connection)
        if "modern" not in eras:
            raise NotModern("the server does not speak 2026-07-28", sent=False)
        if answer is None or answer.result is None:
            text = "nothing" if answer is None else code_of(answer.error)
            raise Lost(f"the server answered server/discover with: {text}", sent=False)
        if self.eras is None or eras - self.eras:
            self.learn(eras | (self.eras or frozenset()))
        self.stderr = self._stderr_of_probe
        connection.start(answer.result, group)
        self.discovered["modern"] = connection.discovered
        return connection

    async def _ask(self, connection: ModernConnection) -> tuple[Response | None, Eras]:
        try:
            answer = await connection.discover()
        except (Lost, TimeoutError) as error:
            eras = judge_silence(error, self._settings.command is not None)
            if eras is None or self._is_told:
                raise as_lost(error, "the server does not answer server/discover") from None
            return None, eras
        eras = judge(answer)
        if "modern" in eras and answer.error is not None:
            # It names the revision that it was asked in: once more (2026-07-28 basic/versioning)
            answer = await connection.discover()
        return answer, eras
