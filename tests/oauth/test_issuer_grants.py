"""Codes of Sluice's own, on a real store: one that comes twice was stolen, and its grant ends, in whatever order."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import anyio

from sluicegate.issuer.grants import ClientGrants, GrantEnded, IssuedTokens, Subject
from sluicegate.oauth.authorization import challenge_of
from sluicegate.oauth.issuing import AuthorizationRequest
from sluicegate.store import Write
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.sqlite import SqliteStore

VERIFIER, BACK = "v" * 50, "http://127.0.0.1/cb"


class Held(SqliteStore):
    """Whoever was first writes its grant when it is let go on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reached, self.goes_on = anyio.Event(), anyio.Event()

    async def swap(self, key: str, expected: bytes | None, writes: Sequence[Write]) -> bool:
        self.reached.set()
        await self.goes_on.wait()
        return await super().swap(key, expected, writes)


def grants_in(store: SqliteStore) -> ClientGrants:
    return ClientGrants(store, Sealer(KeyRing([b"k" * 32])), "http://x/mcp", lambda: 3600.0, lambda: "src")


def new_code(grants: ClientGrants) -> str:
    request = AuthorizationRequest("client", BACK, "", challenge_of(VERIFIER))
    return grants.code(request, Subject("jwt:i#ann", (), "src"))


async def redeem(grants: ClientGrants, code: str) -> IssuedTokens | None:
    try:
        return await grants.redeem(code, "client", BACK, VERIFIER)
    except GrantEnded:
        return None


async def test_a_code_that_comes_twice_ends_its_grant_one_after_the_other_and_at_once(tmp_path: Path) -> None:
    grants = grants_in(SqliteStore(tmp_path / "s.db"))
    once = await redeem(grants, new_code(grants))
    assert once is not None and await grants.lives(once.grant)
    for at_once in (True, False):
        for _ in range(20):
            code = new_code(grants)
            if at_once:
                both = await asyncio.gather(redeem(grants, code), redeem(grants, code))
            else:
                both = [await redeem(grants, code), await redeem(grants, code)]
            assert not any([await grants.lives(one.grant) for one in both if one is not None])
    assert await grants.lives(once.grant)


async def test_a_grant_that_is_written_behind_the_replay_of_its_code_ends_too(tmp_path: Path) -> None:
    store = Held(tmp_path / "s.db")
    grants = grants_in(store)
    code = new_code(grants)
    first = asyncio.create_task(redeem(grants, code))
    await store.reached.wait()
    assert await redeem(grants, code) is None
    store.goes_on.set()
    assert await first is None
    assert not await store.scan("issuer-grant/")
