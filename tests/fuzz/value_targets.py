"""Files of the operator, sealed values and signed tokens: each target says what must hold, whatever they are."""

import base64
import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import casbin
from cryptography.hazmat.primitives.asymmetric import ed25519
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from wire_targets import LOOP, attempt, by_stdlib

from sluicegate import config
from sluicegate.catalog.cursor import Position, open_cursor, seal_cursor
from sluicegate.listen.auth.issuers import KeySets, TokenIssuer
from sluicegate.listen.auth.jws import MAX_TOKEN
from sluicegate.listen.auth.principal import CredentialRefused, Principal
from sluicegate.listen.auth.tokens import Tokens, TokenSettings
from sluicegate.policy import roles
from sluicegate.policy.classes import Classified
from sluicegate.policy.csv_rows import Row, read_rows, written
from sluicegate.policy.engine import Engine
from sluicegate.policy.explain import explain, render
from sluicegate.policy.files import PolicySources, bundled_model, load
from sluicegate.policy.finding import PolicyError, PolicyFinding
from sluicegate.policy.lint import lint
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.policy.rules import PolicyRules
from sluicegate.protocol.jsonrpc import decode
from sluicegate.protocol.model import Client, Target, Verdict
from sluicegate.store import keys
from sluicegate.store.keys import KeyRing, Sealer

Json = dict[str, Any]
SEPARATOR = b"\n=====\n"
"""Between the files of a policy."""

# ---------------------------------------------------------------- policies

_MODEL = bundled_model().read_text()
_CLIENTS = (
    Client("key:k", ("role:a", "group:g")), Client("local", ("role:owner",)), Client("anonymous"),
    Client("jwt:https://i#s", ("role:b",)),
)  # fmt: skip
_OWN = ("get_x", "delete_x", "x")


def policy_rows(data: bytes) -> None:
    """Each line is a row or a finding with its place; rows that load decide what they explain, and what casbin says."""
    text = data.decode("utf-8", "replace")
    rows, findings = read_rows(text, "p.csv")
    count = text.count("\n") + 1
    _check_places(findings, count)
    assert len({row.line for row in rows} | {one.line for one in findings}) == len(rows) + len(findings)
    for row in rows:
        assert read_rows(str(row), "p.csv")[0][0].fields == row.fields, row
        assert written(row.kind, *row.fields) == str(row)
    wrong = lint(rows, BUILT_IN)
    _check_places(wrong, count)
    if len(rows) <= 12 and not any(one.level == "error" for one in (*findings, *wrong)):
        _check_decisions(PolicyRules(Engine(_MODEL), rows, BUILT_IN, "fuzz"), rows)


def _check_places(findings: Sequence[PolicyFinding], count: int) -> None:
    for one in findings:
        assert 1 <= one.line <= count and one.column >= 1 and one.message and one.level in ("error", "warning"), one


def _lines(text: str) -> int:
    """As YAML counts them, which also has a line end at a CR alone (YAML 1.1, 4.1.4)."""
    return len(re.split(r"\r\n|[\n\r\x85\u2028\u2029]", text))


def _check_decisions(policy: PolicyRules, rows: Sequence[Row]) -> None:
    enforcer = _plain_casbin(rows)
    for client in (*_CLIENTS, *(_holder(row) for row in rows[:3])):
        held = policy.roles_of(client)
        starts = roles.origins(client)
        everything = (*starts, *(role for one in starts for role in enforcer.get_implicit_roles_for_user(one)))
        assert held == frozenset(("*", *everything)), client
        for target, act in _asked_of(rows):
            ruling = policy.decide(client, target, act)
            explained = explain(policy, client, target, Classified(act, "fuzz"))
            assert explained.ruling == ruling and explained.verdict is ruling.verdict, (client, target, act)
            assert ruling.verdict.value.upper() in render(explained)
            allowed = enforcer.enforce(held, target.server, f"{target.kind}:{target.own}", act)
            assert allowed or ruling.verdict is Verdict.DENY, (client, target, act)
            if target.kind != "res":  # of which other spellings count, too
                assert not allowed or ruling.verdict is not Verdict.DENY, (client, target, act)


def _holder(row: Row) -> Client:
    who = row.fields[0]
    return Client(who) if roles.is_principal(who) else Client("key:other", (who,))


def _asked_of(rows: Sequence[Row]) -> Iterator[tuple[Target, str]]:
    for server, kind, own in (("git", "tool", "get_x"), ("sluice", "admin", "health"), ("k8s", "res", "file:///a")):
        yield Target(server, kind, own, own), "read"
    for row in rows[:4]:
        if row.kind != "g":
            server, (kind, _, own) = row.fields[1].replace("*", "x"), row.fields[2].replace("*", "x").partition(":")
            known = kind if kind in ("tool", "prompt", "res", "admin") else "tool"
            yield Target(server, known, own, own), row.fields[3] if row.fields[3] != "*" else "write"


def _plain_casbin(rows: Sequence[Row]) -> casbin.Enforcer:
    """The same model and all rows, without anything of ours."""
    enforcer = casbin.Enforcer(casbin.Enforcer.new_model(text=_MODEL))
    enforcer.add_function("inRole", lambda held, sub: sub in held)
    enforcer.add_function("glob", fnmatchcase)
    enforcer.add_function("reaches", lambda srv, pattern, eft: (
        pattern == srv if srv == "sluice" and eft != "deny" else fnmatchcase(srv, pattern)))  # fmt: skip
    for row in rows:
        enforcer.model.add_policy("g" if row.kind == "g" else "p", row.kind, list(row.fields))
    enforcer.build_role_links()
    return enforcer


def policy_files(data: bytes) -> None:
    """Rows, a rule for arguments and tests as files: findings with their places, or a policy, the same each time."""
    parts, count = [*data.split(SEPARATOR, 2), b"", b""], _lines(data.decode("utf-8", "replace"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "arguments" / "git").mkdir(parents=True)
        (folder / "policy.csv").write_bytes(parts[0])
        (folder / "tests.yaml").write_bytes(parts[2])
        if parts[1]:
            (folder / "arguments" / "git" / "get_x.json").write_bytes(parts[1])
        sources = PolicySources(bundled_model(), (folder / "policy.csv",), folder, folder / "arguments",
                                folder / "tests.yaml")  # fmt: skip
        try:
            loaded = load(sources)
        except PolicyError as error:
            assert any(one.level == "error" for one in error.findings)
            _check_places(error.findings, count)
            return
        _check_places(loaded.warnings, count)
        again = load(sources)
        assert again.policy.revision == loaded.policy.revision and again.warnings == loaded.warnings
    for value in ({}, {"n": 1}, {"N": "x", "n": [1, 1.0]}):
        assert loaded.arguments.check("git", "get_x", value) == again.arguments.check("git", "get_x", value)


# ---------------------------------------------------------------- the config

_SECRET = "canary-8c1f"
_ENVIRON = {"TOKEN": _SECRET, "N": "3", "FLAG": "false", "HOME": "/home/x"}
_NOWHERE = Path("/nowhere")


def config_text(data: bytes) -> None:
    """Findings with their places or a config, the same each time, and no value of the file in any of them."""
    text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    if re.search(r"\$\{\s*(file|secret):", text):
        return  # other files, and the keyring of whoever fuzzes
    checked = config.check_text(text, "sluice.yaml", _NOWHERE, _ENVIRON)
    ends = _lines(text)
    for one in checked.findings:
        assert 1 <= one.line <= ends and one.column >= 1 and one.code and one.message, one
        assert _SECRET not in str(one), one
    assert (checked.config is None) <= bool(checked.errors), checked.findings
    try:
        YAML(typ="safe", pure=True).load(text)
    except YAMLError:  # also for a key that is there twice
        assert checked.errors, "no YAML, and taken"
    except (ValueError, RecursionError):
        pass  # a date or a number that is none
    again = config.check_text(text, "sluice.yaml", _NOWHERE, _ENVIRON)
    assert again.config == checked.config and again.findings == checked.findings
    assert _SECRET not in repr(checked.config)


# ---------------------------------------------------------------- sealed values

_SEALER = Sealer(KeyRing([b"1" * 32, b"2" * 32]), clock=lambda: 0.0)


def sealed(data: bytes) -> None:
    """What was sealed opens as it was, for the same bearer and purpose alone; nothing else opens."""
    random = Random(crc32(data))
    assert _SEALER.unseal("cursor", data.decode("latin-1"), "b") is None
    assert not KeyRing([b"1" * 32]).has_key_of(data) or _is_canonical(data)
    payload: Json = {"text": data.decode("latin-1"), "n": len(data)}
    most, keys.MAX_BODY = keys.MAX_BODY, 256  # what is larger is kept, and named
    try:
        token = _SEALER.seal("cursor", payload, "bearer")
    finally:
        keys.MAX_BODY = most
    assert _SEALER.unseal("cursor", token, "bearer") == payload
    for purpose, bound in (("cursor", "bearer2"), ("cursorb", "earer"), ("round", "bearer"), ("", "cursorbearer")):
        assert _SEALER.unseal(purpose, token, bound) is None
    for other in _changed(token, random):
        assert _SEALER.unseal("cursor", other, "bearer") is None, other
    _check_cursor(data)


def _is_canonical(data: bytes) -> bool:
    return re.fullmatch(rb"[A-Za-z0-9_-]+", data) is not None


def _changed(token: str, random: Random) -> Iterator[str]:
    """Others of almost the same spelling: one bit in any place, the other alphabet, more, less."""
    at, swapped = random.randrange(len(token)), token.replace("-", "+").replace("_", "/")
    yield token[:at] + chr(ord(token[at]) ^ (1 << random.randrange(7))) + token[at + 1 :]
    longer = random.choice([token + "=", token + "A", " " + token, token + "\n", token[:at] + token[at] + token[at:]])
    yield from (random.choice([token[:at], token[:at] + token[at + 1 :]]), longer)
    if swapped != token:
        yield swapped


def _check_cursor(data: bytes) -> None:
    """What another release has sealed is a position or none; ours are what they were."""
    value = attempt(lambda: decode(data))[0]
    if isinstance(value, dict) and len(data) <= 1024:
        token = _SEALER.seal("cursor", value, json.dumps(("p", "tools/list")))
        opened = open_cursor(token, principal="p", method="tools/list", generations={}, unseal=_SEALER.unseal)
        assert opened is None or (type(opened.offset) is int and opened.offset >= 0 and type(opened.server) is str)
    text = data.decode("utf-8", "replace")
    position = Position(text[:8], text[8:] or None, len(data))
    whose = {"principal": text[:3], "method": "tools/list", "generations": {text[:8]: "1"}}
    token = seal_cursor(position, **whose, seal=_SEALER.seal)
    assert open_cursor(token, **whose, unseal=_SEALER.unseal) == position
    for other in ({"principal": text[:3] + "x"}, {"method": "prompts/list"}, {"generations": {text[:8]: "2"}}):
        assert open_cursor(token, **{**whose, **other}, unseal=_SEALER.unseal) is None


# ---------------------------------------------------------------- signed tokens

_NOW = 1_800_000_000
_SIGNING = ed25519.Ed25519PrivateKey.from_private_bytes(b"3" * 32)
_ISSUER = TokenIssuer("https://issuer.test", "sluice", jwks="https://issuer.test/keys", roles_from=("groups",))
_CLAIMS: Json = {"iss": _ISSUER.issuer, "aud": "sluice", "sub": "ann", "exp": _NOW + 600}


def _b64(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


_PUBLIC = _SIGNING.public_key().public_bytes_raw()
_KEYS = {"keys": [{"kty": "OKP", "crv": "Ed25519", "x": _b64(_PUBLIC).decode()}]}


class _Published:
    """A fetcher of the one key set there is."""

    async def get(self, url: str, configured: str, what: str) -> bytes:
        return json.dumps(_KEYS).encode()


_TOKENS = Tokens(KeySets(_Published(), clock=lambda: 0.0), clock=lambda: float(_NOW))
_TOKENS.replace(TokenSettings((_ISSUER,)))


def signed(header: bytes, claims: bytes) -> bytes:
    text = _b64(header) + b"." + _b64(claims)
    return text + b"." + _b64(_SIGNING.sign(text))


def _verified(token: bytes) -> Principal | CredentialRefused:
    return LOOP.run_until_complete(_TOKENS.verify(token, sha256(token).hexdigest()))


def jwt(data: bytes) -> None:
    """A token is good only if its issuer signed just these bytes, and each of its claims is as configured."""
    random = Random(crc32(data))
    assert not isinstance(_verified(data), Principal), "nobody signed it"
    header, _, claims = data.partition(b"\n")
    token = signed(header, claims)
    found = _verified(token)
    if isinstance(found, Principal):
        assert len(token) <= MAX_TOKEN
        _check_principal(found, by_stdlib(header), by_stdlib(claims))
    merged = by_stdlib(data)
    good = json.dumps({**(merged if isinstance(merged, dict) else {}), **_CLAIMS}).encode()
    token = signed(b'{"alg":"EdDSA"}', good)
    assert len(good) > 4000 or isinstance(merged, dict) or isinstance(_verified(token), Principal), good
    for other in _changed(token.decode(), random):
        assert not isinstance(_verified(other.encode("latin-1")), Principal), other
    body = b".".join(token.split(b".")[1:])
    for header in (b'{"alg":"none"}', b'{"alg":"HS256"}'):
        assert not isinstance(_verified(_b64(header) + b"." + body), Principal), header
    for header in (b'{"alg":"EdDSA","crit":["exp"]}', b'{"alg":"EdDSA","b64":true}', b'{"alg":"EdDSA","alg":"EdDSA"}'):
        assert not isinstance(_verified(signed(header, good)), Principal), header


def _check_principal(found: Principal, header: Any, claims: Any) -> None:
    assert isinstance(header, dict) and isinstance(claims, dict), (header, claims)
    assert header["alg"] == "EdDSA" and not {"crit", "b64"} & header.keys()
    assert claims["iss"] == _ISSUER.issuer and "cnf" not in claims
    assert claims["aud"] == "sluice" or "sluice" in claims["aud"]
    assert found.name == f"jwt:{_ISSUER.issuer}#{claims['sub']}" and claims["sub"]
    assert found.expires == claims["exp"] > _NOW
    assert all(claims.get(name, 0) <= _NOW + 60 for name in ("nbf", "iat"))
    given = claims.get("groups")
    groups = given if isinstance(given, list) else [] if given is None else [given]
    assert list(found.roles) == [f"group:{one}" for one in dict.fromkeys(groups)]


