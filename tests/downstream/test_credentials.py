"""What a request shows for credentials, and what a refusal of them leads to."""

from collections.abc import Sequence

import pytest
from scripted_servers import LEGACY, MODERN, Asked, endpoint, legacy_start, modern_start, running

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
