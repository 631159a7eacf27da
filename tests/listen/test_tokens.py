"""Tokens of OAuth issuers: one thing wrong is enough to be nobody. Real keys, a real issuer."""

import base64
import hashlib
import hmac
import json
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from issuer import AUDIENCE, Issuer, ec_key, ed_key, issuer, public, rsa_key
from listen_harness import modern, post, site

from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher
from sluicegate.listen.auth import CredentialRefused, Identity, IdentitySettings, Principal
from sluicegate.listen.auth import issuers as keys
from sluicegate.listen.auth.issuers import KeySets
from sluicegate.listen.auth.tokens import MAX_GROUPS, SKEW, TokenSettings

Json = dict[str, Any]
NOW = int(time.time())


@pytest.fixture
def login() -> Iterator[Issuer]:
    with issuer() as site:
        yield site


class Clock:
    def __init__(self) -> None:
        self.start = int(time.time())
        self.now = float(self.start)

    def __call__(self) -> float:
        return self.now


def settings(login: Issuer, scopes: tuple[str, ...] = (), **more: Any) -> IdentitySettings:
    one = keys.TokenIssuer(login.url, more.pop("audience", AUDIENCE), **more)
    return IdentitySettings(tokens=TokenSettings((one,), scopes))


def identity(login: Issuer, clock: Callable[[], float] = time.time, **more: Any) -> Identity:
    return Identity(settings(login, **more), clock, KeySets(Fetcher(Egress()), clock))


async def ask(who: Identity, token: str) -> Principal | CredentialRefused:
    with anyio.fail_after(60):
        return await who.verify(f"Bearer {token}".encode())


def b64(value: Any) -> str:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


# ---------------------------------------------------------------- who gets in


async def test_a_good_token_is_its_subject_until_it_expires_and_is_verified_once(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock, roles_from=("groups",))
    token = login.token(groups=["sre", "dev", "sre"], exp=clock.start + 100)
    authorization = f"Bearer {token}".encode()
    assert who.identify(authorization, True, None) is None
    found = await ask(who, token)
    assert found == Principal(f"jwt:{login.url}#ann", ("group:sre", "group:dev"), "", clock.start + 100)
    assert who.identify(authorization, True, "10.0.0.1") is found
    assert who.current() == {found.name} and who.is_current(found)
    clock.now = clock.start + 100.0
    assert who.identify(authorization, True, None) is None
    assert await ask(who, token) == CredentialRefused("expired")
    assert not who.is_current(found) and who.current() == frozenset()


@pytest.mark.parametrize(
    ("key", "alg"),
    [(rsa_key("k1"), "RS256"), (rsa_key("k1"), "PS384"), (ec_key("e"), "ES256"), (ed_key("d"), "EdDSA")],
    ids=["rs256", "ps384", "es256", "eddsa"],
)
@pytest.mark.parametrize("kid", ["k", None])
async def test_every_asymmetric_algorithm_works_with_and_without_a_kid(
    login: Issuer, key: Any, alg: str, kid: str | None
) -> None:
    login.keys = [public(rsa_key("other"), kid="x"), public(key, kid="k"), {"kty": "oct", "k": "AAAA"}, {"kty": "?"}]
    login.publish()
    found = await ask(identity(login, algorithms=(alg,)), login.token(key=key, alg=alg, kid=kid))
    assert isinstance(found, Principal)


async def test_groups_come_from_a_claim_of_that_name_or_from_inside_of_one(login: Issuer) -> None:
    who = identity(login, roles_from=("https://acme.com/teams", "realm_access.roles", "department", "a.b"))
    claims: Json = {"https://acme.com/teams": "red", "realm_access": {"roles": ["x", "y"]}, "a.b": ["z"]}
    found = await ask(who, login.token(**claims))
    assert isinstance(found, Principal) and found.roles == ("group:red", "group:x", "group:y", "group:z")


async def test_a_claim_gives_groups_and_never_a_role(login: Issuer) -> None:
    found = await ask(identity(login, roles_from=("groups",)), login.token(groups=["role:owner", "local"]))
    assert isinstance(found, Principal) and found.roles == ("group:role:owner", "group:local")


async def test_a_refreshed_token_keeps_its_subject_there_and_the_old_one_is_over(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock)
    first = await ask(who, login.token(exp=clock.start + 10))
    second = await ask(who, login.token(exp=clock.start + 100, jti="2"))
    assert isinstance(first, Principal) and isinstance(second, Principal)
    clock.now = clock.start + 50.0
    assert who.current() == {first.name}
    assert not who.is_current(first) and who.is_current(second)


async def test_of_many_tokens_of_one_subject_the_newest_is_known_however_soon_it_ends(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock, roles_from=("groups",))
    for number in range(12):
        found = await ask(who, login.token(groups=[f"g{number}"], exp=clock.start + 1000 - number))
        assert isinstance(found, Principal) and who.is_current(found)


async def test_after_a_reload_tokens_are_verified_anew_and_who_is_there_stays(login: Issuer) -> None:
    who = identity(login)
    token = login.token()
    found = await ask(who, token)
    assert isinstance(found, Principal)
    who.replace(settings(login))
    assert who.identify(f"Bearer {token}".encode(), True, None) is None
    assert who.is_current(found) and isinstance(await ask(who, token), Principal)
    who.replace(settings(login, audience="other"))
    assert not who.is_current(found) and who.current() == frozenset()
    assert await ask(who, token) == CredentialRefused("audience")


# ---------------------------------------------------------------- who does not


@pytest.mark.parametrize(("later", "status"), [(50.0, 200), (150.0, 401)], ids=["reloaded", "expired"])
async def test_a_body_that_comes_late_is_good_with_its_own_token_alone(
    login: Issuer, later: float, status: int
) -> None:
    """Another token of the same subject has other groups."""
    clock = Clock()
    first = login.token(groups=["admin"], exp=clock.start + 100)
    second = login.token(groups=["guest"], exp=clock.start + 1000)
    config = settings(login, roles_from=("groups",))
    headers, body = modern("tools/call", name="echo")
    lines = [f"{name}: {value}" for name, value in headers.items()]
    data = post(body, *lines, secret=first)
    async with site(identity=config, identity_clock=clock, keysets=KeySets(Fetcher(Egress()), clock)) as here:
        async with here.client(first) as one, here.client(second) as other:
            late = await here.raw(data[:-10])
            for client in (one, other):
                assert (await client.post("/mcp", json=body, headers=headers)).status_code == 200
            clock.now += later
            here.identity.replace(config)
            assert (await other.post("/mcp", json=body, headers=headers)).status_code == 200
        known = len(here.handler.calls)
        late.writer.write(data[-10:])
        assert (await late.answer())[0] == status
        assert [one.client.roles for one in here.handler.calls[known:]] == [("group:admin",)] * (status == 200)


def unsigned(login: Issuer, alg: str) -> str:
    return f"{b64({'alg': alg, 'typ': 'JWT', 'kid': 'k1'})}.{b64(login.claims())}."


def swapped(login: Issuer) -> str:
    """Signed with the public key as if it were a secret (RFC 8725 2.1)."""
    pem = rsa_key("k1").public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )  # fmt: skip
    signed = f"{b64({'alg': 'HS256', 'kid': 'k1'})}.{b64(login.claims())}"
    return f"{signed}.{b64(hmac.new(pem, signed.encode(), hashlib.sha256).digest())}"


def twice(login: Issuer) -> str:
    """A header that two parsers would read differently."""
    head = base64.urlsafe_b64encode(b'{"alg":"none","alg":"RS256","kid":"k1"}').rstrip(b"=").decode()
    return f"{head}.{login.token().split('.', 1)[1]}"


BAD: dict[str, tuple[Callable[[Issuer], str], str]] = {
    "none": (lambda i: unsigned(i, "none") + "AA", "algorithm"),
    "None": (lambda i: unsigned(i, "NonE") + "AA", "algorithm"),
    "no signature": (lambda i: unsigned(i, "RS256"), "credential"),
    "a signature of nothing": (lambda i: unsigned(i, "RS256") + "AA", "signature"),
    "a public key as a secret": (swapped, "algorithm"),
    "an algorithm that is not allowed": (lambda i: i.token(alg="RS512"), "algorithm"),
    "a key of another kind": (lambda i: i.token(key=ec_key("e"), alg="ES256"), "signature"),
    "somebody else's key": (lambda i: i.token(key=rsa_key("evil")), "signature"),
    "a kid that climbs": (lambda i: i.token(kid="../../x"), "unknown_key"),
    "a key that comes along": (lambda i: i.token(key=rsa_key("evil"), kid=None, head={"jwk": public(rsa_key("evil"))}),
                               "signature"),
    "a place of keys that comes along": (lambda i: i.token(key=rsa_key("evil"), kid=None, head={"jku": i.url + "/x"}),
                                         "signature"),
    "an extension that must be understood": (lambda i: i.token(head={"crit": ["b64"], "b64": True}), "malformed"),
    "an unknown one": (lambda i: i.token(head={"crit": ["exp"], "exp": 1}), "malformed"),
    "an empty crit": (lambda i: i.token(head={"crit": []}), "malformed"),
    "one header twice": (twice, "malformed"),
    "another issuer": (lambda i: i.token(iss="https://evil.example"), "issuer"),
    "an issuer that only looks the same": (lambda i: i.token(iss=i.url + "/"), "issuer"),
    "no issuer": (lambda i: i.token(iss=None), "issuer"),
    "another audience": (lambda i: i.token(aud="https://other.example"), "audience"),
    "an audience that begins like ours": (lambda i: i.token(aud=AUDIENCE + "/x"), "audience"),
    "no audience": (lambda i: i.token(aud=None), "audience"),
    "expired": (lambda i: i.token(exp=NOW - 1), "expired"),
    "without end": (lambda i: i.token(exp=None), "no_expiry"),
    "an end that is no number": (lambda i: f"{i.token().split('.')[0]}.{b64({**i.claims(), 'exp': True})}.AA",
                                 "no_expiry"),
    "not valid yet": (lambda i: i.token(nbf=NOW + 3600), "not_yet_valid"),
    "issued in the future": (lambda i: i.token(iat=NOW + 3600), "not_yet_valid"),
    "no subject": (lambda i: i.token(sub=None), "subject"),
    "a subject of two lines": (lambda i: i.token(sub="a\nb"), "subject"),
    "bound to a key that we cannot ask for": (lambda i: i.token(cnf={"jkt": "x"}), "sender_constrained"),
    "another type": (lambda i: i.token(head={"typ": "logout+jwt"}), "typ"),
    "groups that are no words": (lambda i: i.token(groups=[{"a": 1}]), "groups"),
    "too many groups": (lambda i: i.token(groups=[str(n) for n in range(MAX_GROUPS + 1)]), "groups"),
    "groups that are somewhere else": (lambda i: i.token(_claim_names={"groups": "src1"}), "groups"),
    "too large": (lambda i: i.token(x="x" * 9000), "malformed"),
    "encrypted": (lambda i: "a.b.c.d.e", "credential"),
    "no token": (lambda i: "slc_x", "credential"),
    "padded": (lambda i: i.token() + "=", "credential"),
    "another spelling": (lambda i: _respelt(i.token()), "malformed"),
}  # fmt: skip


def _respelt(token: str) -> str:
    """The same bytes of the header, written another way: its last character has bits that mean nothing."""
    head, rest = token.split(".", 1)
    for char in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_":
        other = head[:-1] + char
        if char != head[-1] and _bytes(other) == _bytes(head):
            return f"{other}.{rest}"
    return f"{head[:-1]}!.{rest}".replace("!", "")


def _bytes(part: str) -> bytes:
    return base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))


@pytest.mark.parametrize("case", BAD)
async def test_one_thing_wrong_is_enough(login: Issuer, case: str) -> None:
    make, reason = BAD[case]
    assert await ask(identity(login, roles_from=("groups",)), make(login)) == CredentialRefused(reason)


async def test_a_clock_may_be_a_little_ahead(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock)
    assert isinstance(await ask(who, login.token(iat=clock.start + SKEW - 1, nbf=clock.start + SKEW - 1)), Principal)
    assert await ask(who, login.token(nbf=clock.start + SKEW + 1)) == CredentialRefused("not_yet_valid")


async def test_a_configured_type_is_the_only_one(login: Issuer) -> None:
    who = identity(login, typ="at+jwt")
    assert isinstance(await ask(who, login.token(head={"typ": "application/AT+JWT"})), Principal)
    for typ in ("JWT", None):
        assert await ask(who, login.token(head={"typ": typ})) == CredentialRefused("typ")


async def test_scopes_are_all_needed_and_a_token_without_them_is_known(login: Issuer) -> None:
    who = identity(login, scopes=("mcp:use", "mcp:list"))
    for claims in ({"scope": "x mcp:list mcp:use"}, {"scp": ["mcp:use", "mcp:list"]}, {"scp": "mcp:use mcp:list"}):
        assert isinstance(await ask(who, login.token(**claims)), Principal)
    for claims in ({}, {"scope": "mcp:use"}, {"scope": "mcp:used mcp:list"}, {"scope": 1}):
        assert await ask(who, login.token(**claims)) == CredentialRefused("insufficient_scope", is_known=True)


# ---------------------------------------------------------------- keys


async def test_a_rotated_key_is_found_and_the_old_one_is_gone(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock)
    assert isinstance(await ask(who, login.token()), Principal)
    login.rotate("k2")
    assert isinstance(await ask(who, login.token(key=rsa_key("k2"), kid="k2")), Principal)
    assert await ask(who, login.token(jti="2")) == CredentialRefused("unknown_key")


async def test_kids_that_nobody_has_lead_to_few_fetches(login: Issuer) -> None:
    clock = Clock()
    who = identity(login, clock)
    assert isinstance(await ask(who, login.token()), Principal)
    async with anyio.create_task_group() as group:
        for number in range(60):
            group.start_soon(ask, who, login.token(kid=f"no-{number}"))
    assert login.jwks_fetches() <= keys.PER_WINDOW
    clock.now += keys.WINDOW + 1
    login.rotate("k3")
    assert isinstance(await ask(who, login.token(key=rsa_key("k3"), kid="k3")), Principal)


async def test_many_first_tokens_lead_to_one_fetch(login: Issuer) -> None:
    who = identity(login)
    found: list[Principal | CredentialRefused] = []

    async def one(number: int) -> None:
        found.append(await ask(who, login.token(sub=f"s{number}")))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(one, number)
    assert login.jwks_fetches() == 1 and all(isinstance(one, Principal) for one in found)


async def test_keys_that_were_good_stay_good_while_the_issuer_is_away_for_a_day(login: Issuer) -> None:
    clock = Clock()
    keysets = KeySets(Fetcher(Egress()), clock)
    who = Identity(settings(login), clock, keysets)
    assert isinstance(await ask(who, login.token()), Principal)
    login.pages.clear()
    assert keysets.problems() == [], "it is asked when a token comes"
    for later, good in ((keys.FRESH + 1, True), (keys.STALE - 1, True), (keys.STALE + 1, False)):
        clock.now = clock.start + later
        found = await ask(who, login.token(exp=clock.start + 10**6, jti=str(later)))
        assert isinstance(found, Principal) is good
        (note,) = keysets.problems()
        assert re.search(r"cannot be had: .+ \(last tried at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC\)$", note)
    login.publish()
    clock.now += keys.WINDOW + 1
    assert isinstance(await ask(who, login.token(exp=clock.start + 10**6, jti="back")), Principal)
    assert keysets.problems() == []


@pytest.mark.parametrize(
    "metadata",
    [
        {"issuer": "https://evil.example"},
        {"jwks_uri": None},
        {"jwks_uri": "https://169.254.169.254/keys"},
        {"jwks_uri": "https://10.0.0.1/keys"},
        {"jwks_uri": "https://[::ffff:10.0.0.1]/keys"},
        {"jwks_uri": "https://2130706433/keys"},
        {"jwks_uri": "http://login.example.com/keys"},
        {"jwks_uri": "file:///etc/passwd"},
    ],
)
async def test_metadata_that_leads_astray_is_not_followed(login: Issuer, metadata: Json) -> None:
    login.publish(**metadata)
    assert await ask(identity(login), login.token()) == CredentialRefused("no_keys")
    assert login.jwks_fetches() == 0


async def test_an_issuer_is_found_by_oauth_or_by_openid_metadata_and_its_path_is_kept(login: Issuer) -> None:
    document = json.dumps({"issuer": f"{login.url}/realm", "jwks_uri": f"{login.url}/keys"}).encode()
    for place in ("/.well-known/oauth-authorization-server/realm", "/realm/.well-known/openid-configuration"):
        login.publish()
        del login.pages["/.well-known/oauth-authorization-server"]
        login.pages.pop("/.well-known/oauth-authorization-server/realm", None)
        login.pages[place] = 200, document, ""
        one = keys.TokenIssuer(f"{login.url}/realm", AUDIENCE)
        who = Identity(IdentitySettings(tokens=TokenSettings((one,))), keysets=KeySets(Fetcher(Egress())))
        assert isinstance(await ask(who, login.token(iss=f"{login.url}/realm")), Principal)


async def test_a_key_set_is_bounded_and_what_is_no_key_in_it_is_left_out(login: Issuer) -> None:
    many = [public(rsa_key("other"), kid=f"x{number}") for number in range(keys.MAX_KEYS)]
    login.keys = [*many, public(rsa_key("k1"), kid="k1")]
    login.publish()
    assert await ask(identity(login), login.token()) == CredentialRefused("unknown_key")
    login.keys = [1, {"kty": "RSA", "kid": "k1"}, {**public(rsa_key("k1")), "kid": "k1", "use": "enc"}]  # type: ignore[list-item]
    login.publish()
    assert await ask(identity(login), login.token()) == CredentialRefused("signature")


@pytest.mark.parametrize(
    "more",
    [{"use": "enc"}, {"key_ops": ["sign"]}, {"key_ops": {}}, {"alg": "RS512"}, {"n": "A" * 3000}, {"crv": []},
     {"crv": {}}],
)  # fmt: skip
async def test_a_key_is_used_for_what_it_is_for(login: Issuer, more: Json) -> None:
    login.keys = [{**public(rsa_key("k1"), kid="k1"), **more}]
    login.publish()
    assert await ask(identity(login), login.token()) == CredentialRefused("signature")


async def test_a_short_key_proves_nothing(login: Issuer) -> None:
    login.keys = [public(rsa_key("short", 1024), kid="k1")]
    login.publish()
    with pytest.warns(jwt.InsecureKeyLengthWarning):
        token = login.token(key=rsa_key("short", 1024))
    assert await ask(identity(login), token) == CredentialRefused("signature")
