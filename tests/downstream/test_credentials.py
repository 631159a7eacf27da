"""What a request shows for credentials, and what a refusal of them leads to."""

from collections.abc import Callable, Sequence
from functools import partial

import anyio.lowlevel
import pytest
from scripted_servers import LEGACY, MODERN, Asked, endpoint, legacy_start, modern_start, running
from test_legacy_sse_servers import Older

from sluicegate.downstream.failures import LoginRequired, login_over
from sluicegate.downstream.settings import Credentials
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client, Failure, Result

pytestmark = pytest.mark.anyio
DONE: Json = {"content": [{"type": "text", "text": '"done"'}], "resultType": "complete"}
CHALLENGE = 'Bearer error="invalid_token"'


class NumberedTokens:
    """An account with a newer token after each refusal; what it was told of these."""

    def __init__(self) -> None:
        self.number, self.refused = 1, list[tuple[Credentials, int, Sequence[str]]]()

    def headers(self) -> Credentials:
        return ((b"authorization", f"Bearer {self.number}".encode()),)

    async def renewed(self) -> Credentials:
        return self.headers()

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        self.refused.append((used, status, challenges))
        self.number += 1
        return self.headers()


@pytest.mark.parametrize("client", [LEGACY, MODERN], ids=["legacy", "modern"])
@pytest.mark.parametrize(
    ("good", "challenge", "sent", "came"),
    [
        ("Bearer 1", CHALLENGE, ["Bearer 1"], "done"),
        ("Bearer 2", CHALLENGE, ["Bearer 1", "Bearer 2"], "done"),
        ("Bearer 3", CHALLENGE, ["Bearer 1", "Bearer 2"], "server_unavailable"),
        ("Bearer 2", "", ["Bearer 1"], "outcome_unknown"),
    ],
    ids=["good", "refused once", "refused twice", "refused without proof"],
)
async def test_a_call_whose_token_is_refused_is_sent_once_more_at_most_and_only_where_that_proves_it_was_not_executed(
    client: Client, good: str, challenge: str, sent: list[str], came: str
) -> None:
    async def script(asked: Asked) -> None:
        start = legacy_start if client is LEGACY else modern_start
        if await start(asked):
            return
        if asked.headers["authorization"] == good:
            await asked.result(DONE)
        else:
            await asked.reply(status=401, **({"WWW_Authenticate": challenge} if challenge else {}))

    account = NumberedTokens()
    async with endpoint(script) as (url, log), running(url=url, era=client.era, account=account) as rig:
        got = await (rig.tool("t", client=client) if came == "done" else rig.reason("t", client))
        assert got == came
        assert [asked.headers["authorization"] for asked in log if asked.rpc == "tools/call"] == sent
        told = [(dict(used)[b"authorization"].decode(), status, list(said)) for used, status, said in account.refused]
        refused = [token for token in sent if token != good] if challenge else []
        assert told == [(token, 401, [CHALLENGE]) for token in refused]


class SlowLogin(NumberedTokens):
    """An account that has no token yet, or whose token is refused. Whoever waits loses the right to call."""

    def __init__(self, lost: list[bool], has_token: bool) -> None:
        super().__init__()
        self._lost, self._has_token = lost, has_token

    def headers(self) -> Credentials:
        return super().headers() if self._has_token else ()

    async def renewed(self) -> Credentials:
        return super().headers()

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        self._lost.append(True)
        return await super().rejected(used, status, challenges)


@pytest.mark.parametrize("client", [LEGACY, MODERN], ids=["legacy", "modern"])
@pytest.mark.parametrize("method", ["tools/call", "resources/read"])
async def test_what_waited_for_a_newer_token_is_not_sent_again_once_its_right_is_lost(
    client: Client, method: str
) -> None:
    async def script(asked: Asked) -> None:
        start = legacy_start if client is LEGACY else modern_start
        if not await start(asked, {"tools": {}, "resources": {}}):
            await asked.reply(status=401, WWW_Authenticate=CHALLENGE)

    lost = list[bool]()
    account = SlowLogin(lost, has_token=True)
    async with (
        endpoint(script) as (url, log),
        running(url=url, era=client.era, account=account, may_still=lambda call: not lost) as rig,
    ):
        outcome = await rig.request(method, {"name": "t", "uri": "a:b"}, client)
        assert isinstance(outcome, Result | Failure) and outcome.reason == "denied"
        assert lost and sum(asked.rpc == method for asked in log) == 1


@pytest.mark.parametrize("client", [LEGACY, MODERN], ids=["legacy", "modern"])
async def test_what_waited_for_its_first_token_is_not_sent_once_its_right_is_lost(client: Client) -> None:
    async def script(asked: Asked) -> None:
        start = legacy_start if client is LEGACY else modern_start
        if not await start(asked):
            await asked.result(DONE)

    lost = list[bool]()
    async with (
        endpoint(script) as (url, log),
        running(url=url, era=client.era, account=SlowLogin(lost, False), may_still=lambda call: not lost) as rig,
    ):
        assert await rig.tool("t", client=client) == "done"
        lost.append(True)  # there is a connection: the next call waits for its token alone
        assert await rig.reason("t", client) == "denied"
        assert sum(asked.rpc == "tools/call" for asked in log) == 1


class Retiring(NumberedTokens):
    """An account whose server is retired while somebody waits for its next token."""

    def __init__(self, has_token: bool) -> None:
        super().__init__()
        self.retire: Callable[[], None] | None = None
        self._has_token = has_token

    def headers(self) -> Credentials:
        return super().headers() if self._has_token or self.retire is None else ()

    async def renewed(self) -> Credentials:
        return await self._next()

    async def rejected(self, used: Credentials, status: int, challenges: Sequence[str]) -> Credentials:
        return await self._next()

    async def _next(self) -> Credentials:
        assert self.retire is not None
        self.retire()
        await anyio.lowlevel.checkpoint()
        return super().headers()


class Ending(Retiring):
    """Its login ends by that, as after `invalid_grant`."""

    async def _next(self) -> Credentials:
        await super()._next()
        raise LoginRequired("Log in first.")


class Refusing:
    """A server of one protocol that refuses each call. `begun` is what it says of it before."""

    def __init__(self, kind: str, begun: Json | None = None) -> None:
        self._older, self._kind, self._begun = Older(), kind, begun

    async def __call__(self, asked: Asked) -> None:
        start = {"legacy": legacy_start, "modern": modern_start}.get(self._kind)
        if asked.rpc == "tools/call":
            if self._begun is not None:
                await self._older.say(self._begun | {"params": {"progressToken": asked.message["id"], "progress": 1}})
            await asked.reply(status=401, WWW_Authenticate=CHALLENGE)
        elif start is None:
            await self._older(asked)
        elif not await start(asked):
            await asked.result({"tools": [], "resultType": "complete"})


KINDS = {"legacy": LEGACY, "modern": MODERN, "sse": LEGACY}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_token", [True, False], ids=["refused", "before it is sent"])
@pytest.mark.parametrize("ends", [True, False], ids=["login over", "config changed"])
async def test_a_call_that_ends_while_it_waits_for_a_token_was_not_executed_and_is_not_sent_any_more(
    kind: str, has_token: bool, ends: bool
) -> None:
    """Another look at the logins may find that one is over before the call that found it out is told."""
    client, account = KINDS[kind], (Ending if ends else Retiring)(has_token)
    async with endpoint(Refusing(kind)) as (url, log), running(url=url, era=client.era, account=account) as rig:
        await rig.request("tools/list", client=client)  # opens the connection
        account.retire = partial(rig.server.retire, login_over("scripted") if ends else "it was removed")
        assert await rig.reason("t", client) == ("login_required" if ends else "server_unavailable")
        assert sum(asked.rpc == "tools/call" for asked in log) == has_token


async def test_a_call_of_which_something_was_heard_may_have_run_though_it_was_refused() -> None:
    account, server = Retiring(True), Refusing("sse", {"method": "notifications/progress"})
    async with endpoint(server) as (url, _), running(url=url, account=account) as rig:
        await rig.request("tools/list")
        account.retire = partial(rig.server.retire, "it was removed")
        assert await rig.reason("t") == "outcome_unknown"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_token", [True, False], ids=["again", "after the wait for a token"])
async def test_a_call_that_was_sent_with_the_token_that_it_waited_for_may_have_run(kind: str, has_token: bool) -> None:
    client, account, refusing = KINDS[kind], SlowLogin([], has_token=True), Refusing(kind)

    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call" and (not has_token or asked.headers["authorization"] != "Bearer 1"):
            rig.server.retire("it was removed")
            await asked.reply(status=202)
        else:
            await refusing(asked)

    async with endpoint(script) as (url, _), running(url=url, era=client.era, account=account) as rig:
        await rig.request("tools/list", client=client)
        account._has_token = has_token
        assert await rig.reason("t", client) == "outcome_unknown"


async def test_a_call_that_was_sent_before_its_login_ended_is_not_asked_for_again() -> None:
    async def script(asked: Asked) -> None:
        if asked.rpc == "tools/call":
            rig.server.retire(login_over("scripted"))
            await asked.reply(status=202)
        elif not await legacy_start(asked):
            await asked.result({"tools": []})

    async with endpoint(script) as (url, _), running(url=url, account=NumberedTokens()) as rig:
        outcome = await rig.request("tools/call", {"name": "t"})
        assert isinstance(outcome, Result) and outcome.reason == "outcome_unknown"
        text = outcome.value["content"][0]["text"]
        assert "its login has ended. The call may or may not" in text and "again" not in text
