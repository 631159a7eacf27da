"""Resources that are watched: for whom an update is, what servers of either era are asked, and when again."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import anyio
import pytest
from loop_steps import Steps
from scripted_servers import LEGACY, MODERN, Asked, Rig, endpoint, event, legacy_start, modern_start, running, until

from sluicegate.downstream import resource_subscriptions
from sluicegate.downstream.failures import Lost
from sluicegate.downstream.pool import SHARED
from sluicegate.downstream.resource_subscriptions import (
    AT_ONCE,
    AT_ONCE_TOLD,
    MAX_NEWS,
    MAX_UNWATCHED,
    MAX_URI,
    MAX_WATCHED,
    MAX_WATCHED_CHARS,
    MAX_WHY,
    OneByOne,
    OneStream,
    ResourceWatch,
    WatchBoard,
)
from sluicegate.downstream.session import change_streams
from sluicegate.downstream.session.change_streams import ChangeStream
from sluicegate.protocol.jsonrpc import INVALID_PARAMS, METHOD_NOT_FOUND, Json, Notification, Response
from sluicegate.protocol.model import Client, Failure

ABLE: Json = {"resources": {"subscribe": True}}
OTHER = Client("key:b", revision="2025-11-25", session="s2")
UPDATED = "notifications/resources/updated"


# ---------------------------------------------------------------- whom an update is for


class Ears:
    """Listeners by name, on one board."""

    def __init__(self, **wants: list[str]) -> None:
        self.board = WatchBoard(SHARED)
        self.wants = {name: ResourceWatch(set(uris), self._ear(name), name) for name, uris in wants.items()}
        self.heard: list[str] = []
        for want in self.wants.values():
            self.board.join(want)

    def _ear(self, name: str) -> Callable[[Json], None]:
        return lambda params: self.heard.append(name)

    def __call__(self, uri: Any) -> list[str]:
        self.heard.clear()
        self.board.heard({"uri": uri})
        return sorted(self.heard)


@pytest.mark.parametrize(
    ("uri", "who"),
    [
        ("file:///a", ["a"]),
        ("file:///a/b", ["a"]),
        ("file:///a?line=1", ["a"]),
        ("file:///a#top", ["a"]),
        ("file:///ab", ["ab"]),
        ("memo:x:1", ["x"]),
        ("file:///d/", ["d"]),
        ("file:///d/e/f", ["d", "e"]),
        ("other://thing", ["a", "ab", "d", "e", "x"]),  # a part need not look like one
        ("file:///" + "a" * 5000, []),
        (7, []),
    ],
)
def test_an_update_is_for_whoever_wants_the_resource_or_what_it_is_a_part_of(uri: Any, who: list[str]) -> None:
    ears = Ears(a=["file:///a"], ab=["file:///ab"], d=["file:///d/"], e=["file:///d/e"], x=["memo:x"])
    assert ears(uri) == who


def test_of_an_update_its_listeners_keep_the_uri_alone() -> None:
    ears, told = Ears(a=["file:///a"]), list[Json]()
    ears.wants["a"].tell = told.append
    ears.board.heard({"uri": "file:///a", "_meta": {"pad": "x" * 1_000_000}})
    assert told == [{"uri": "file:///a"}]


async def test_while_two_streams_are_open_a_uri_that_nobody_can_watch_is_not_counted() -> None:
    told = list[Json]()

    def begin(wanted: Json, tell: Callable[[Notification], None], live: Callable[[bool], None]) -> ChangeStream:
        return ChangeStream(wanted, lambda wanted: pytest.fail(), tell, live)

    stream = OneStream(begin, told.append, 1.0)
    heard = stream._open[begin({}, print, print)] = stream._open[begin({}, print, print)] = Counter()
    for uri in ("x:1", "x:" + "1" * MAX_URI):
        stream._hear(heard, Notification(UPDATED, {"uri": uri}))
    assert told == [{"uri": "x:1"}] and heard == {"x:1": 1}


async def test_of_a_refusal_no_more_is_kept_than_a_client_is_told() -> None:
    async def ask(method: str, params: Json) -> Response:
        is_missing = params["uri"] == "x:no"
        data = {"uri": "x:no", "pad": "x"} if is_missing else "x" * 1_000_000
        return Response(1, error={"code": -32002 if is_missing else -1, "message": "n" * 1_000_000, "data": data})

    watched, refused = await OneByOne(ask).watch(frozenset({"x:no", "x:other"}))
    assert not watched
    assert refused == {
        "x:no": Failure(INVALID_PARAMS, "n" * MAX_WHY, {"uri": "x:no"}), "x:other": Failure(-1, "n" * MAX_WHY)
    }  # fmt: skip


async def test_of_many_listeners_few_are_told_in_a_step_and_each_of_what_changed_last() -> None:
    many = {f"c{number}": [f"x:{number}"] for number in range(3 * AT_ONCE_TOLD)}
    ears, steps, told = Ears(**many), Steps(), Counter[int]()
    for want in ears.wants.values():
        want.tell = lambda params: told.update([steps.now])
    for number in range(MAX_NEWS + 5):
        ears.board.heard({"uri": f"other:{number % MAX_NEWS}"})
    ears.board.leave(ears.wants["c0"])
    assert not told
    with anyio.fail_after(60):
        while ears.board._news:
            await anyio.lowlevel.checkpoint()
    steps.stop()
    assert max(told.values()) <= AT_ONCE_TOLD and told.total() == MAX_NEWS * (3 * AT_ONCE_TOLD - 1)
    assert ears("x:5") == [] and ears.board.uris, "told at once, by another ear"


async def test_an_update_is_told_to_the_others_also_where_somebody_cannot_be_told() -> None:
    ears = Ears(**{f"c{number}": ["x:1"] for number in range(AT_ONCE_TOLD)})

    def fail(params: Json) -> None:
        raise ValueError

    ears.wants["c0"].tell = fail
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    ears.board.heard({"uri": "x:1"})
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    assert ears.heard == [f"c{number}" for number in range(1, AT_ONCE_TOLD)]


async def test_of_many_updates_that_are_read_in_a_step_few_are_told_in_one() -> None:
    many = {f"c{number}": [f"x:{number}"] for number in range(AT_ONCE_TOLD)}
    ears, steps, told = Ears(**many), Steps(), Counter[int]()
    for want in ears.wants.values():
        want.tell = lambda params: told.update([steps.now])
    for number in range(70):
        ears.board.heard({"uri": f"other:{number}"})
    with anyio.fail_after(60):
        await until(lambda: told.total() == 70 * AT_ONCE_TOLD)
    assert max(told.values()) <= 2 * AT_ONCE_TOLD
    steps.stop()


async def test_that_all_may_have_changed_is_told_to_few_in_a_step() -> None:
    ears = Ears(**{f"c{number}": ["x:1", "x:2"] for number in range(3 * AT_ONCE_TOLD)})
    steps, told = Steps(), Counter[int]()
    for want in ears.wants.values():
        want.tell = lambda params: told.update([steps.now])
    ears.board.missed = ears.board.uris
    ears.board.tell_missed(ears.board.uris)
    assert not ears.board.missed
    with anyio.fail_after(60):
        while told.total() < 6 * AT_ONCE_TOLD:
            await anyio.lowlevel.checkpoint()
    steps.stop()
    assert max(told.values()) <= AT_ONCE_TOLD


def test_a_board_is_bounded() -> None:
    many = [f"x:{number}" for number in range(MAX_WATCHED)]
    clients = {f"c{number}": [f"{number}:{one}" for one in many] for number in range(20)}
    ears = Ears(a=many, b=["y:1"], **clients)
    assert len(ears.wants["a"].uris) == len(ears.wants["a"].refused) == MAX_WATCHED // 2, "the rest is for others"
    assert not ears.wants["b"].refused and MAX_WATCHED - 10 < len(ears.board.uris) <= MAX_WATCHED
    for name in ("a", *clients):
        ears.board.leave(ears.wants[name])
    assert ears.board.uris == {"y:1"}
    again = ResourceWatch(set(many), lambda params: None, "a")
    ears.board.join(again)
    assert len(again.uris) == MAX_WATCHED // 2


def test_what_one_client_wants_is_bounded_over_all_its_listeners(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_subscriptions, "MAX_WANTED", 10)
    board = WatchBoard(SHARED)
    wants = [ResourceWatch({"x:1", "x:2", "x:3"}, lambda params: None, "a") for _ in range(5)]
    other = ResourceWatch({"x:1"}, lambda params: None, "b")
    for want in (*wants, other):
        board.join(want)
    assert sum(len(want.uris) for want in wants) == 10 and len(wants[4].refused) == 3 and other.uris
    for want in wants:
        board.leave(want)
    assert board.uris == {"x:1"} and board._wanted == {"b": 1}
    board.leave(other)
    assert not board._wanted


def test_of_a_resource_that_others_still_want_its_first_client_bears_the_cost() -> None:
    ears = Ears(a=["x:1"], b=["x:1"])
    ears.board.leave(ears.wants["a"])
    assert ears("x:1") == ["b"]
    ears.board.leave(ears.wants["b"])
    assert not ears.board.uris and not ears.board._number and not ears.board._first


def test_what_is_watched_is_bounded_in_characters() -> None:
    """All of it is in one request, and in the answer to that: too long a one would end the updates of everybody."""
    long = [f"x:{number:04}{'a' * 4000}" for number in range(MAX_WATCHED_CHARS // 4000)]
    ears = Ears(a=["y:1"], b=long, c=["y:1", "y:2"])
    refused = len(ears.wants["b"].refused)
    assert 0 <= refused - len(long) // 2 < len(long) // 100
    assert not ears.wants["a"].refused and not ears.wants["c"].refused
    assert sum(map(len, ears.board.uris)) <= MAX_WATCHED_CHARS
    ears.board.leave(ears.wants["b"])
    again = ResourceWatch(set(long), lambda params: None, "b")
    ears.board.join(again)
    assert len(again.refused) == refused and ears.board.uris == {"y:1", "y:2", *again.uris}


@pytest.mark.parametrize("char", ["\U0001f600", "é", "&", "/", "\\"])
def test_uris_count_as_long_as_a_server_may_write_them(char: str) -> None:
    """A longer message would end the connection of a server, and everybody's calls on it."""
    uris = [f"x:{number:04}{char * 4000}" for number in range(MAX_WATCHED_CHARS // 4000)]
    ears = Ears(a=uris, b=[f"{uri}b" for uri in uris])
    text = json.dumps(sorted(ears.board.uris), separators=(",", ":"))  # some servers write it like that, or
    text = text.replace("/", "\\/").replace("&", r"\u0026").replace(r"\\", r"\u005c")  # so
    overhead = 3 * len(ears.board.uris) + 2
    assert MAX_WATCHED_CHARS // 2 < len(text) <= MAX_WATCHED_CHARS + overhead
    for want in ears.wants.values():
        ears.board.leave(want)
    assert not ears.board._chars and not ears.board._length


async def test_many_subscriptions_end_some_at_a_time() -> None:
    """Whoever subscribes waits for them."""
    open_, most = 0, 0

    async def ask(method: str, params: Json) -> Response:
        nonlocal open_, most
        open_ += 1
        most = max(most, open_)
        await anyio.lowlevel.checkpoint()
        open_ -= 1
        return Response(1, {})

    watch = OneByOne(ask).watch
    await watch(frozenset(f"x:{number}" for number in range(100)))
    most = 0
    await watch(frozenset({"x:1"}))
    assert most == AT_ONCE


async def test_a_set_that_others_wait_for_is_asked_for_in_parts() -> None:
    asked: list[str] = []

    async def ask(method: str, params: Json) -> Response:
        asked.append(params["uri"])
        return Response(1, {})

    watch, waits = OneByOne(ask).watch, True
    uris = frozenset(f"x:{number}" for number in range(4 * AT_ONCE))
    first = {"x:0", f"x:{4 * AT_ONCE - 1}"}
    assert await watch(uris, first, lambda: waits) == (first, {})
    assert set(asked) == first, "the rest may be slow"
    assert await watch(uris, first, lambda: waits) == (first, {})
    watched, _ = await watch(uris, (), lambda: waits)
    assert len(asked) == len(first) + AT_ONCE and first < watched == set(asked)
    assert await watch(frozenset()) == (frozenset(), {})
    assert (await watch(uris))[0] == uris
    for left in (3, 2, 1, 0):
        watched, _ = await watch(frozenset(), (), lambda: waits)
        assert len(watched) == left * AT_ONCE


async def test_a_subscription_whose_answer_nobody_awaited_is_ended_as_any() -> None:
    asked: list[str] = []

    async def ask(method: str, params: Json) -> Response:
        asked.append(f"{method} {params['uri']}")
        if asked[-1] == "resources/subscribe x:1":
            await anyio.sleep_forever()
        return Response(1, {} if params["uri"] != "x:no" else None, {"code": -1} if params["uri"] == "x:no" else None)

    watch = OneByOne(ask).watch
    with anyio.move_on_after(0.05):
        await watch(frozenset({"x:1", "x:no"}))
    assert await watch(frozenset({"x:2"})) == (frozenset({"x:2"}), {})
    assert asked[2:] == ["resources/subscribe x:2", "resources/unsubscribe x:1"]


async def test_a_subscription_that_was_ended_before_its_answer_came_is_asked_for_again() -> None:
    asked: list[str] = []
    late = anyio.Event()

    async def ask(method: str, params: Json) -> Response:
        asked.append(f"{method} {params['uri']}")
        if asked[-1] == "resources/subscribe x:late" and len(asked) > 1:
            await late.wait()
        elif asked[-1] == "resources/subscribe x:bad":
            raise Lost("the connection broke", sent=True)
        return Response(1, {})

    watch = OneByOne(ask).watch
    with pytest.raises(Lost):
        await watch(frozenset({"x:bad", "x:late"}))
    await watch(frozenset())
    late.set()
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    asked.clear()
    assert await watch(frozenset({"x:late"})) == (frozenset({"x:late"}), {})
    assert asked == ["resources/subscribe x:late"]


# ---------------------------------------------------------------- legacy servers


class LegacyServer:
    """Over HTTP, with a GET stream; `refuses` URIs."""

    def __init__(self, capabilities: Json = ABLE) -> None:
        self.capabilities, self.refuses = capabilities, {"x:no"}
        self.stream: Asked | None = None
        self.requests: list[str] = []

    async def __call__(self, asked: Asked) -> None:
        if asked.method == "GET":
            self.stream = asked
            await asked.stream(end=False)
            return await asked.gone()
        if await legacy_start(asked, self.capabilities, Mcp_Session_Id=f"session-{len(self.requests)}"):
            return
        verb, uri = asked.rpc.rpartition("/")[2], asked.message["params"]["uri"]
        self.requests.append(f"{verb} {uri}")
        if uri in self.refuses:
            return await asked.error(-32002, data={"uri": uri})
        await asked.result({})

    async def update(self, uri: str) -> None:
        await until(lambda: self.stream)
        assert self.stream is not None
        await self.stream.more(event({"method": UPDATED, "params": {"uri": uri}}))


class Heard(list[str]):
    def __call__(self, params: Json) -> None:
        self.append(params["uri"])


async def subscribe(rig: Rig, heard: Heard, *uris: str, client: Client = LEGACY) -> tuple[Callable[[], None], Any]:
    return await rig.server.subscribe(client, uris, heard)


async def test_a_legacy_server_is_asked_once_for_all_who_share_its_connection_and_told_when_the_last_leaves() -> None:
    script = LegacyServer()
    async with endpoint(script) as (url, _), running(url=url, era="legacy", sharing="shared") as rig:
        one, two = Heard(), Heard()
        leave_one, refused = await subscribe(rig, one, "x:1", "x:no")
        assert list(refused) == ["x:no"] and refused["x:no"].data == {"uri": "x:no"}
        leave_two, _ = await subscribe(rig, two, "x:1", "x:2", client=OTHER)
        assert script.requests == ["subscribe x:1", "subscribe x:no", "subscribe x:2"]
        await script.update("x:2")
        await script.update("x:1")
        await until(lambda: one == ["x:1"] and two == ["x:2", "x:1"])
        leave_one()
        leave_one()
        leave_two()
        await until(lambda: sorted(script.requests[3:]) == ["unsubscribe x:1", "unsubscribe x:2"])
        await until(lambda: "[]" in repr(rig.server.life.subscriptions))


class HeldServer(LegacyServer):
    """It answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_answer = anyio.Event()

    async def __call__(self, asked: Asked) -> None:
        if "uri" in str(asked.message):
            await self.may_answer.wait()
        await super().__call__(asked)


@pytest.mark.parametrize("leaves", [False, True])
async def test_nobody_waits_until_another_client_has_all_its_subscriptions_or_lost_them(leaves: bool) -> None:
    script = HeldServer()
    many = [f"x:{number}" for number in range(20 * AT_ONCE)]
    async with endpoint(script) as (url, _), running(url=url, era="legacy", sharing="shared") as rig:
        turns = rig.server.life.subscriptions._board(OTHER, "legacy").turns
        async with anyio.create_task_group() as group:
            if leaves:
                script.may_answer.set()
                leave, _ = await subscribe(rig, Heard(), *many)
                script.requests.clear()
                script.may_answer = anyio.Event()
                leave()
            else:
                group.start_soon(subscribe, rig, Heard(), *many)
            await until(lambda: turns.busy)
            group.start_soon(partial(subscribe, rig, Heard(), "y:1", client=OTHER))
            await until(lambda: turns.waiting)
            script.may_answer.set()
        assert script.requests.index("subscribe y:1") < 4 * AT_ONCE
        await until(lambda: len(script.requests) == len(many) + 1)


async def test_what_is_to_be_watched_again_keeps_its_place_however_long_others_take() -> None:
    script = LegacyServer()
    settings: Any = {"era": "legacy", "sharing": "shared", "list_timeout": 0.3}
    async with endpoint(script) as (url, _), running(url=url, **settings) as rig:
        await subscribe(rig, Heard(), "x:1")
        watches = rig.server.life.subscriptions
        board = watches._board(LEGACY, "legacy")
        assert await board.turns.enter("key:b", 1.0)
        board.asked = None
        watches.renew()
        await until(lambda: board.turns.waiting)
        await anyio.sleep(0.5)
        assert board.turns.waiting
        board.turns.leave("key:b")
        await until(lambda: board.asked)


async def test_an_update_of_what_nobody_wants_any_more_is_for_nobody_also_not_for_who_comes_next() -> None:
    script = LegacyServer()
    async with endpoint(script) as (url, _), running(url=url, era="legacy", sharing="shared") as rig:
        heard = Heard()
        leave, _ = await subscribe(rig, heard, *(f"x:{number}" for number in range(MAX_UNWATCHED + 2)))
        leave()
        await until(lambda: "[]" in repr(rig.server.life.subscriptions))
        await subscribe(rig, heard, "y:1")
        for uri in (f"x:{MAX_UNWATCHED}", f"x:{MAX_UNWATCHED}/part", "z:1", "y:1"):
            await script.update(uri)
        await until(lambda: heard == ["z:1", "y:1"])
        (connection,) = rig.server.life.pool.live()
        assert len(connection.unwatched) == MAX_UNWATCHED


async def test_each_session_subscribes_on_its_own_connection() -> None:
    script = LegacyServer()
    async with endpoint(script) as (url, log), running(url=url, era="legacy") as rig:
        await subscribe(rig, Heard(), "x:1")
        await subscribe(rig, Heard(), "x:1", client=OTHER)
        assert script.requests == ["subscribe x:1"] * 2
        asked = [each.headers["mcp-session-id"] for each in log if each.rpc == "resources/subscribe"]
        assert len(set(asked)) == 2


async def test_a_session_that_is_gone_is_subscribed_in_again_and_what_may_have_been_missed_is_told() -> None:
    script = LegacyServer()
    gone: set[str] = set()

    async def forgetful(asked: Asked) -> None:
        if asked.headers.get("mcp-session-id") in gone:
            return await asked.reply(status=404)
        await script(asked)

    async with endpoint(forgetful) as (url, log), running(url=url, era="legacy") as rig:
        heard = Heard()
        await subscribe(rig, heard, "x:1")
        gone.update(each.headers["mcp-session-id"] for each in log if "mcp-session-id" in each.headers)
        await until(lambda: script.stream)
        assert script.stream is not None
        script.stream.writer.close()
        await until(lambda: script.requests == ["subscribe x:1"] * 2 and heard == ["x:1"])
        await script.update("x:1")
        await until(lambda: heard == ["x:1"] * 2)


async def test_a_subscription_that_is_answered_at_too_great_length_is_tried_again_as_any_that_failed() -> None:
    """Whoever listens to other servers, too, goes on with those."""
    script = LegacyServer()

    async def wordy(asked: Asked) -> None:
        if asked.rpc == "resources/subscribe":
            return await asked.result({"pad": "x" * 2_000})
        await script(asked)

    async with endpoint(wordy) as (url, _), running(url=url, era="legacy", max_result=1_000) as rig:
        with pytest.raises(ConnectionError, match="too large"):
            await subscribe(rig, Heard(), "x:1")
        assert rig.server.status == "up" and len(rig.server.life.pool) == 1


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_a_server_without_subscriptions_is_not_asked(era: Any) -> None:
    async def script(asked: Asked) -> None:
        assert await (legacy_start if era == "legacy" else modern_start)(asked, {"resources": {}})

    async with endpoint(script) as (url, _), running(url=url, era=era) as rig:
        _, refused = await subscribe(rig, Heard(), "x:1")
        assert isinstance(refused["x:1"], Failure) and refused["x:1"].code == METHOD_NOT_FOUND


# ---------------------------------------------------------------- modern servers


class ModernServer:
    """`change_streams` are those that are open, by what they listen to; with `is_silent` they are not acknowledged.
    `promised` is said in place of the resources that are honoured."""

    promised: Any = ...

    def __init__(self) -> None:
        self.streams: dict[tuple[str, ...], Asked] = {}
        self.log: list[str] = []
        self.is_silent = False

    async def __call__(self, asked: Asked) -> None:
        if asked.rpc != "subscriptions/listen":
            assert await modern_start(asked, ABLE)
            return
        wanted = tuple(asked.message["params"]["notifications"]["resourceSubscriptions"])
        self.streams[wanted] = asked
        self.log.append(f"open {' '.join(wanted)}")
        await asked.stream(end=False)
        if not self.is_silent:
            await self.acknowledge(wanted)
        await asked.gone()
        self.log.append(f"gone {' '.join(wanted)}")
        del self.streams[wanted]

    async def acknowledge(self, wanted: tuple[str, ...]) -> None:
        honoured = [uri for uri in wanted if uri != "x:no"] if self.promised is ... else self.promised
        filter = {"notifications": {"resourceSubscriptions": honoured}}
        await self.say(wanted, "notifications/subscriptions/acknowledged", filter)

    async def say(self, stream: tuple[str, ...], method: str, params: Json) -> None:
        asked = self.streams[stream]
        meta = {"io.modelcontextprotocol/subscriptionId": asked.message["id"]}
        await asked.more(event({"method": method, "params": {**params, "_meta": meta}}))

    async def update(self, stream: tuple[str, ...], uri: str) -> None:
        await self.say(stream, UPDATED, {"uri": uri})


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_what_is_watched_takes_half_of_the_largest_message_of_a_server_that_says_all_in_one(era: Any) -> None:
    script: Any = ModernServer() if era == "modern" else LegacyServer()
    uris, limits = [f"x:{number:03}{'a' * 95}" for number in range(20)], {"sharing": "shared", "max_result": 4_000}
    async with endpoint(script) as (url, _), running(url=url, era=era, **limits) as rig:
        _, refused = await subscribe(rig, Heard(), *uris, client=MODERN)
        assert len(refused) == (10 if era == "modern" else 0)


@pytest.mark.parametrize("promised", [5, True, {"x:1": 1}, None])
async def test_a_server_that_promises_in_no_form_has_promised_nothing(promised: Any) -> None:
    script = ModernServer()
    script.promised = promised
    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        _, refused = await subscribe(rig, Heard(), "x:1", client=MODERN)
        assert list(refused) == ["x:1"]


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_set_that_changes_is_a_new_stream_and_nothing_is_lost_or_told_twice_between_the_two(
    monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    monkeypatch.setattr("sluicegate.downstream.resource_subscriptions.OVERLAP", 2.0)
    script = ModernServer()
    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        heard, other = Heard(), Heard()
        await subscribe(rig, heard, "x:1", client=MODERN)
        old, new = ("x:1",), ("x:1", "x:2")
        script.is_silent = True
        async with anyio.create_task_group() as group:
            group.start_soon(subscribe, rig, other, "x:2")
            await until(lambda: new in script.streams)
            await script.update(old, "x:1")
            await until(lambda: heard == ["x:1"])
            await script.acknowledge(new)
        await script.update(old, "x:1")
        await until(lambda: heard == ["x:1"] * 2)
        await script.update(new, "x:1")  # the same once more
        await script.update(new, "x:2")
        await until(lambda: other == ["x:2"])
        assert heard == ["x:1"] * 2
        if is_late:
            await script.update(old, "x:1")  # sent before the new one was open
            await until(lambda: heard == ["x:1"] * 3)
        await until(lambda: "gone x:1" in script.log)
        assert script.log == ["open x:1", "open x:1 x:2", "gone x:1"]
        await script.update(new, "x:2")
        await until(lambda: other == ["x:2"] * 2)
        assert heard == ["x:1"] * (4 if is_late else 2), "where the two differ it is told once more"
        await script.update(new, "x:1")
        await until(lambda: heard == ["x:1"] * (5 if is_late else 3))


async def test_a_stream_that_breaks_is_opened_again_and_what_may_have_been_missed_is_told() -> None:
    script = ModernServer()
    async with endpoint(script) as (url, _), running(url=url, era="modern") as rig:
        heard = Heard()
        leave, refused = await subscribe(rig, heard, "x:1", "x:no", client=MODERN)
        assert list(refused) == ["x:no"]
        script.streams["x:1", "x:no"].writer.close()
        await until(lambda: heard == ["x:1", "x:no"] or heard == ["x:1"])
        leave()
        await until(lambda: not script.streams)


@pytest.mark.parametrize("era", ["legacy", "modern"])
async def test_of_many_resources_few_are_told_in_a_step(era: Any) -> None:
    """Each may have been updated while the connection was away: 8,000 took 45 ms."""
    uris, script = [f"x:{number}" for number in range(4 * AT_ONCE_TOLD)], LegacyServer()
    modern, gone = ModernServer(), set[str]()

    async def forgetful(asked: Asked) -> None:
        if asked.headers.get("mcp-session-id") in gone:
            return await asked.reply(status=404)
        await (modern if era == "modern" else script)(asked)

    async with endpoint(forgetful) as (url, log), running(url=url, era=era) as rig:
        steps, told = Steps(), Counter[int]()

        def tell(params: Json) -> None:
            told[steps.now] += 1

        await rig.server.subscribe(MODERN if era == "modern" else LEGACY, uris, tell)
        gone.update(each.headers["mcp-session-id"] for each in log if "mcp-session-id" in each.headers)
        await until(lambda: script.stream or modern.streams)
        for stream in (script.stream, *modern.streams.values()):
            if stream is not None:
                stream.writer.close()
        await until(lambda: told.total() == len(uris))
        steps.stop()
    assert max(told.values()) <= AT_ONCE_TOLD


def test_the_tag_of_a_notification_is_read_with_care() -> None:
    key = "io.modelcontextprotocol/subscriptionId"
    assert change_streams.tag_of({"_meta": {key: 7}}) == 7
    for odd in ({}, {"_meta": None}, {"_meta": {key: "7"}}, {"_meta": {key: True}}):
        assert change_streams.tag_of(odd) is None
