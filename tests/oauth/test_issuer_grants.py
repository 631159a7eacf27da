"""Codes of Sluice's own, on a real store: one that comes twice was stolen, and its grant ends, in whatever order."""

import asyncio
from pathlib import Path

from sluicegate.issuer import ClientGrants, GrantEnded, IssuedTokens, Subject
from sluicegate.oauth.authorization import challenge_of
from sluicegate.oauth.issuing import AuthorizationRequest
from sluicegate.store.keys import KeyRing, Sealer
from sluicegate.store.sqlite import SqliteStore

VERIFIER, BACK = "v" * 50, "http://127.0.0.1/cb"


async def test_a_code_that_comes_twice_ends_its_grant_one_after_the_other_and_at_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "s.db")
    grants = ClientGrants(store, Sealer(KeyRing([b"k" * 32])), "http://x/mcp", lambda: 3600.0, lambda: "src")

    def new_code() -> str:
        request = AuthorizationRequest("client", BACK, "", challenge_of(VERIFIER))
        return grants.code(request, Subject("jwt:i#ann", (), "src"))

    async def redeem(code: str) -> IssuedTokens | None:
        try:
            return await grants.redeem(code, "client", BACK, VERIFIER)
        except GrantEnded:
            return None

    once = await redeem(new_code())
    assert once is not None and await grants.lives(once.grant)
    for at_once in (True, False):
        for _ in range(20):
            code = new_code()
            if at_once:
                both = await asyncio.gather(redeem(code), redeem(code))
            else:
                both = [await redeem(code), await redeem(code)]
            assert not any([await grants.lives(one.grant) for one in both if one is not None])
    assert await grants.lives(once.grant)
