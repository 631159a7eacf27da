"""Who a request is from: a way in that is not configured is closed."""

from dataclasses import replace
from hashlib import sha256

import pytest
from listen_harness import ANYBODY, modern, site

from sluicegate.listen.auth import ClientKey, Identity, IdentitySettings, Principal, key_mark
from sluicegate.listen.auth.issued import MAX_PER_NAME, Issued
from sluicegate.protocol.model import holder

KEY = ClientKey("ci", sha256(b"secret").hexdigest(), ("role:ci",), "team", expires=100.0)
LOOP = "127.0.0.1"


def test_a_key_is_its_principal_until_it_expires() -> None:
    now = [99.0]
    identity = Identity(IdentitySettings(keys=(KEY,)), clock=lambda: now[0])
    expected = Principal("key:ci", ("role:ci",), "team", 100.0, key_mark(KEY.digest))
    assert identity.identify(b"Bearer secret", False, LOOP) == expected
    assert identity.identify(b"bearer   secret ", True, "10.0.0.1") is not None
    assert identity.current() == {"key:ci"}
    now[0] = 100.0
    assert identity.identify(b"Bearer secret", False, LOOP) is None
    assert identity.current() == frozenset()


def test_a_key_that_takes_the_place_of_another_is_not_the_one_that_came_in() -> None:
    identity = Identity(IdentitySettings(keys=(KEY,)), clock=lambda: 99.0)
    before = identity.identify(b"Bearer secret", False, LOOP)
    assert before is not None and identity.is_current(before) and KEY.digest not in repr(before)
    identity.replace(IdentitySettings(keys=(replace(KEY, digest=sha256(b"another").hexdigest()),)))
    assert not identity.is_current(before) and identity.current() == {"key:ci"}
    now = identity.identify(b"Bearer another", False, LOOP)
    assert now is not None and identity.holders() == {f"key:ci {now.credential}"} != {f"key:ci {before.credential}"}


def test_whoever_comes_without_a_key_is_one_holder() -> None:
    assert Identity(IdentitySettings(anonymous=())).holders() == {"anonymous"}
    assert holder("jwt:i#ann ") != holder("jwt:i#ann")


@pytest.mark.parametrize(
    "given", [b"", b"Bearer", b"Bearer ", b"Basic secret", b"secret", b"Bearer Secret", b"\xff\xff"]
)
def test_everything_else_is_nobody(given: bytes) -> None:
    assert Identity(IdentitySettings((KEY,), anonymous=())).identify(given, False, LOOP) is None


def test_the_hash_is_no_key() -> None:
    identity = Identity(IdentitySettings(keys=(KEY,)))
    assert identity.identify(b"Bearer " + KEY.digest.encode(), False, LOOP) is None


def test_anonymous_is_who_comes_straight_and_from_here_where_that_is_configured() -> None:
    open_one, closed = Identity(IdentitySettings(anonymous=("role:x",))), Identity(IdentitySettings())
    assert open_one.identify(None, False, LOOP) == Principal("anonymous", ("role:x",))
    assert open_one.identify(None, True, LOOP) is None
    assert open_one.identify(None, False, "192.168.1.1") is None
    assert closed.identify(None, False, LOOP) is None


@pytest.mark.parametrize(
    "header",
    [{"forwarded": "for=1.1.1.1"}, {"x-forwarded-for": "1.1.1.1"}, {"x-forwarded-host": "a"},
     {"authorization": "Bearer x"}, {"authorization": ""}],
)  # fmt: skip
async def test_who_came_through_a_proxy_or_with_a_credential_is_never_anonymous(header: dict[str, str]) -> None:
    headers, body = modern("tools/list")
    async with site(identity=ANYBODY) as here, here.client(None) as client:
        assert (await client.post("/mcp", json=body, headers=headers)).status_code == 200
        refused = await client.post("/mcp", json=body, headers={**headers, **header})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert len(here.handler.calls) == 1


async def test_two_credentials_are_none() -> None:
    async with site() as here, here.client(None) as client:
        twice = [("authorization", "Bearer key-of-a"), ("authorization", "Bearer key-of-a")]
        assert (await client.post("/mcp", json={}, headers=twice)).status_code == 401


async def test_a_grant_that_ended_is_not_continued_by_another_one_of_the_same_person() -> None:
    living = {"stolen", "good"}

    async def lives(grant: str) -> bool:
        return grant in living

    identity = Identity(IdentitySettings(), clock=lambda: 0.0)
    issued = Issued(b"t_", lambda token: ("jwt:https://a#ann", (), token[2:], 600.0), lives, clock=lambda: 0.0)
    identity.take_issued(issued)
    stolen, good = [await identity.verify(b"Bearer t_" + name) for name in (b"stolen", b"good")]
    assert isinstance(stolen, Principal) and isinstance(good, Principal)
    assert identity.is_known(stolen) and identity.is_current(stolen)
    living.remove("stolen")
    await issued.look()
    assert not identity.is_known(stolen) and not identity.is_current(stolen)
    assert identity.is_known(good) and identity.is_current(good)


async def test_tokens_of_one_person_take_no_other_ones_place() -> None:
    async def lives(grant: str) -> bool:
        return True

    issued = Issued(b"t_", lambda token: (f"jwt:{token[2:5]}", (), "grant", 600.0), lives, clock=lambda: 0.0)
    await issued.verify(b"t_ann", "ann")
    for number in range(5000):
        await issued.verify(b"t_bob", str(number))
    assert issued.current() == {"jwt:ann", "jwt:bob"}
    assert sum(issued.principal(str(number)) is not None for number in range(5000)) == MAX_PER_NAME


@pytest.mark.parametrize("grant", ["old", "new"])
async def test_a_person_with_many_tokens_is_known_at_a_glance(grant: str) -> None:
    """Each sweep asks for each session, of which one person may have ten thousand."""
    asked = [0]

    def clock() -> float:
        asked[0] += 1
        return 0.0

    async def lives(grant: str) -> bool:
        return True

    issued = Issued(b"t_", lambda token: ("jwt:https://a#ann", (), token[2:5], 600.0), lives, clock=clock)
    identity = Identity(IdentitySettings())
    identity.take_issued(issued)
    one = await identity.verify(f"Bearer t_{grant}".encode())
    for number in range(MAX_PER_NAME - 1):
        await identity.verify(b"Bearer t_new%d" % number)
    assert isinstance(one, Principal)
    asked[0] = 0
    assert identity.is_known(one) and asked[0] <= 4
