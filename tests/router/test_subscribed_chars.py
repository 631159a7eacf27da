"""How much one client may subscribe to: each stream and session has its own copies of the URIs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from scripted_server import CLIENT, OTHER, Front, Scripted
from waiting import until

from sluicegate.listen.session_notifications import SessionNotifications
from sluicegate.protocol.jsonrpc import INTERNAL_ERROR, Json, Notification
from sluicegate.protocol.model import Call, Client, Failure, Result, Trail
from sluicegate.router import subscription_stream as listening

CAPABILITIES: Json = {"resources": {"subscribe": True}}
LEGACY = replace(CLIENT, revision="2025-11-25", session="s")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "MAX_CHARS", 20)


def chars(front: Front) -> dict[str, int]:
    return dict(front.router._listener._subscribing.chars)


@asynccontextmanager
async def listening_to(front: Front, client: Client, *uris: str) -> AsyncIterator[Json]:
    """Yields the params of the acknowledgement."""
    said: list[Json] = []

    async def emit(notification: Any) -> None:
        said.append(notification.params)

    call = Call(client, "subscriptions/listen", {"notifications": {"resourceSubscriptions": list(uris)}}, emit=emit)
    async with anyio.create_task_group() as group:
        group.start_soon(front.router, call)
        await until(lambda: bool(said))
        yield said[0]
        group.cancel_scope.cancel()


@pytest.mark.parametrize("status", ["up", "down"])
async def test_all_streams_of_a_client_together_are_bounded_and_give_back_what_they_had(status: Any) -> None:
    server = Scripted("a", capabilities=CAPABILITIES)
    server.status = status
    if status == "down":
        server.holds = [ConnectionError("no")] * 100
    async with Front(server) as front:
        async with listening_to(front, CLIENT, "a+x:234567"), listening_to(front, CLIENT, "a+x:234567") as both:
            assert both["notifications"] == {"resourceSubscriptions": ["a+x:234567"]}, "its own copy counts"
            async with listening_to(front, CLIENT, "a+x:1") as third, listening_to(front, OTHER, "a+x:1") as other:
                assert third["notifications"] == {}
                (failure,) = third["_meta"][listening.REFUSED].values()
                assert failure["code"] == INTERNAL_ERROR and "too long together" in failure["message"]
                assert other["notifications"] == {"resourceSubscriptions": ["a+x:1"]}, "of another client"
        assert chars(front) == {}
        async with listening_to(front, CLIENT, "a+x:1") as again:
            assert again["notifications"] == {"resourceSubscriptions": ["a+x:1"]}


async def test_a_legacy_session_that_is_over_the_bound_is_told_so_and_has_room_once_it_unsubscribes() -> None:
    server = Scripted("a", capabilities=CAPABILITIES)
    server.refuses = {"x:no": Failure(-32000, "not this one")}
    async with Front(server) as front, listening_to(front, LEGACY, "a+x:2345678901234567") as promised:

        async def change(uri: str, wanted: bool) -> Any:
            about = {"stream": promised["_meta"][listening.STREAM], "wanted": wanted}
            wish = {"resourceSubscriptions": [uri]}
            return await front.ask("subscriptions/listen", LEGACY, notifications=wish, **{listening.CHANGE: about})

        refused = await change("a+x:1", True)
        assert isinstance(refused, Failure) and "too long together" in refused.message
        assert await change("a+x:2345678901234567", False) == Result({})
        assert chars(front) == {}
        assert isinstance(await change("a+x:no", True), Failure) and chars(front) == {}
        assert await change("a+x:1", True) == await change("a+x:1", True) == Result({})
        assert chars(front) == {CLIENT.principal: 5}


async def test_a_stream_that_is_cancelled_while_it_begins_has_nothing() -> None:
    server, judged = Scripted("a", capabilities=CAPABILITIES), list[str]()

    def hide(key: str, own: str) -> bool:
        judged.append(own)
        return False

    async with Front(server, hide=hide) as front:
        wanted = {"resourceSubscriptions": [f"a+x:{number}" for number in range(2 * listening.STRIDE)]}
        with anyio.CancelScope() as scope:

            async def spend(since: float) -> None:
                scope.cancel()
                await anyio.lowlevel.checkpoint()

            call = Call(CLIENT, "subscriptions/listen", {"notifications": wanted})
            call.trail.spend = spend
            await front.router(call)
        assert scope.cancelled_caught and judged and chars(front) == {}


async def test_a_session_that_listens_anew_with_other_roles_keeps_its_subscriptions() -> None:
    """What it had before counts until it is given back."""
    server, told = Scripted("a", capabilities=CAPABILITIES), list[Notification]()

    async def tell(notification: Notification) -> None:
        told.append(notification)

    async with Front(server) as front, anyio.create_task_group() as group:
        session = SessionNotifications(front.router, LEGACY, Trail, tell, group)
        session.start()
        assert await session.subscribe("a+x:2345678901234567", True) == Result({})
        for number in range(3):  # two in a row: the first one has not begun then
            session.act_as(replace(LEGACY, roles=(f"role:{number}",)))
        assert session._current is not None
        await session._current.settled.wait()
        assert session._current.honoured == {"a+x:2345678901234567"} and not session._current.refused
        assert chars(front) == {CLIENT.principal: 20}
        session.stop()
        await until(lambda: chars(front) == {})
