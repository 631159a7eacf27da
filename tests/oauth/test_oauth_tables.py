"""What the pure part of OAuth believes, asks and refuses, as tables."""

import base64
import json
import math
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from sluicegate.oauth import (
    Unfit,
    authorization,
    challenges,
    clients,
    metadata,
    read_json,
    scopes,
    shown,
    tokens,
    urls,
)
from sluicegate.oauth.challenges import BearerChallenge
from sluicegate.oauth.clients import OAuthClient
from sluicegate.oauth.metadata import AuthorizationServer
from sluicegate.oauth.tokens import TokenAnswer, TokenRefusal

ISSUER = "https://as.example.com"
SERVER = AuthorizationServer(ISSUER, f"{ISSUER}/token", f"{ISSUER}/authorize", has_s256=True)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([], None),
        (["Basic realm=x"], None),
        (["Bearer"], BearerChallenge()),
        (["bEaReR realm=\"x\""], BearerChallenge()),
        (['Bearer error="invalid_token", scope="a b a"'], BearerChallenge("invalid_token", ("a", "b"))),
        (['Basic realm="a, Bearer scope=no", Bearer scope="yes"'], BearerChallenge("", ("yes",))),
        (["Negotiate abc==, Bearer error=insufficient_scope"], BearerChallenge("insufficient_scope")),
        (["Basic x", 'DPoP algs="ES256", Bearer scope=a'], BearerChallenge("", ("a",))),
        (['Bearer error="x"', 'Bearer error="y", scope="s"'], BearerChallenge("x", ("s",))),
        (['Bearer resource_metadata="https://h/x?a=1,2"'], BearerChallenge("", (), "https://h/x?a=1,2")),
        (["Bearer resource_metadata=https://h/x, scope=a"], BearerChallenge("", ("a",), "https://h/x")),
        (['Bearer scope="a \\"b\\" c"'], BearerChallenge("", ("a", "c"))),
        (['Bearer scope="unfinished'], BearerChallenge()),
        (['Bearer error="a" scope="b"'], BearerChallenge("a", ("b",))),
        (["Bearer " + 'a="' * 3000], BearerChallenge()),
    ],
)
def test_challenges_are_read_as_servers_write_them(headers: list[str], expected: BearerChallenge | None) -> None:
    assert challenges.read(headers) == expected


@pytest.mark.parametrize(
    "headers",
    [["Bearer " + "a=b, " * 200 + "error=invalid_token"], ["B " * 200, "Bearer error=invalid_token"],
     ["Bearer a=b"] * 100 + ["Bearer error=invalid_token"]],
)  # fmt: skip
def test_of_the_challenges_of_one_answer_so_many_parts_are_read(headers: list[str]) -> None:
    assert challenges.error_of(headers) == ""


def test_scopes_are_bounded_and_of_the_form_of_the_rfc() -> None:
    assert challenges.scopes('ok b"ad back\\slash \x7f ' + "x" * 300) == ("ok",)
    assert len(challenges.scopes(" ".join(map(str, range(1000))))) == challenges.MAX_SCOPES


@pytest.mark.parametrize(
    ("resource", "url", "is_covered"),
    [
        ("https://h/mcp", "https://h/mcp", True),
        ("https://h", "https://h/mcp", True),
        ("https://h/", "https://h/mcp", True),
        ("https://H:443/mcp", "https://h/mcp", True),
        ("https://h/a/", "https://h/a/b", True),
        ("https://h/mcp/", "https://h/mcp", True),
        ("https://h/mcp2", "https://h/mcp", False),
        ("https://h/mc", "https://h/mcp", False),
        ("https://h/mcp", "https://h/", False),
        ("https://other/mcp", "https://h/mcp", False),
        ("https://h./mcp", "https://h/mcp", False),
        ("http://h/mcp", "https://h/mcp", False),
        ("https://h:8443/mcp", "https://h/mcp", False),
        ("https://u@h/mcp", "https://h/mcp", False),
        ("https://h/x/../mcp", "https://h/mcp", False),
        ("https://h/mcp/..", "https://h/mcp", False),
        ("https://h/%2e%2e/", "https://h/mcp", False),
        ("https://h/a%2fb", "https://h/a/b", False),
        ("https://h/a", "https://h/a%2fb", False),
        ("https://h/mcp#x", "https://h/mcp", False),
        ("https://h/mcp?x=1", "https://h/mcp", False),
        ("https://h/mcp?x=1", "https://h/mcp?x=1", True),
        ("https://h\\@evil/mcp", "https://h/mcp", False),
        ("https://h/mcp\n", "https://h/mcp", False),
        ("https:///mcp", "https://h/mcp", False),
        ("", "https://h/mcp", False),
        ("urn:x", "https://h/mcp", False),
    ],
)
def test_a_resource_is_the_server_or_a_prefix_of_it(resource: str, url: str, is_covered: bool) -> None:
    assert urls.covers(resource, url) is is_covered


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd", "javascript:alert(1)", "https://h/$(id)", "https://h/a\nb", "https://h/a b", "https://u:p@h/",
        "https://h/`id`", "https://h/;id", "https://h/a|b", "https://h/'", 'https://h/"', "https://h/<a>", "http://h/a",
        "https://h/\u00e9", "https://h/#x", "//h/a", "https://", "a:b", "https://h/^", "https://h/&calc", "HTTPS://h/",
        "https://h/a\\b", "", "https://h/" + "a" * 3000,
    ],
)  # fmt: skip
def test_nobody_is_sent_to_what_is_no_plain_https_url(url: str) -> None:
    with pytest.raises(Unfit):
        urls.openable(url)


@pytest.mark.parametrize("url", ["https://h/a?b=c&d=%20", "http://127.0.0.1:8/a", "http://localhost/", "http://[::1]:9/a"])
def test_plain_urls_may_be_opened(url: str) -> None:
    assert urls.openable(url) == url


def test_documents_are_looked_for_in_the_order_of_the_specification() -> None:
    assert metadata.resource_urls("https://h/a/b", "") == (
        "https://h/.well-known/oauth-protected-resource/a/b", "https://h/.well-known/oauth-protected-resource",
    )  # fmt: skip
    assert metadata.resource_urls("https://h/", "") == ("https://h/.well-known/oauth-protected-resource",)
    assert metadata.resource_urls("https://h/a", "https://x/y") == ("https://x/y",)
    assert metadata.server_urls("https://h/t/1") == (
        "https://h/.well-known/oauth-authorization-server/t/1", "https://h/.well-known/openid-configuration/t/1",
        "https://h/t/1/.well-known/openid-configuration",
    )  # fmt: skip
    assert metadata.server_urls("https://h/") == (
        "https://h/.well-known/oauth-authorization-server", "https://h/.well-known/openid-configuration",
    )  # fmt: skip
    for bad in ("http://h", "https://h?x", "https://u@h", "ftp://h"):
        with pytest.raises(Unfit):
            metadata.server_urls(bad)


def described(**more: Any) -> dict[str, Any]:
    return {"issuer": ISSUER, "token_endpoint": f"{ISSUER}/t", "authorization_endpoint": f"{ISSUER}/a", **more}


@pytest.mark.parametrize("issuer", [f"{ISSUER}/", ISSUER.upper(), f"{ISSUER}:443", "", None, 5])
def test_metadata_of_another_issuer_is_not_used(issuer: Any) -> None:
    with pytest.raises(Unfit):
        metadata.read_server(described(issuer=issuer), ISSUER)


@pytest.mark.parametrize(
    "more",
    [
        {"token_endpoint": "http://as.example.com/t"}, {"token_endpoint": ""}, {"token_endpoint": ["x"]},
        {"authorization_endpoint": "file:///x"}, {"registration_endpoint": "http://x/r"},
        {"revocation_endpoint": "ftp://x/r"},
    ],
)  # fmt: skip
def test_endpoints_that_are_not_safe_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        metadata.read_server(described(**more), ISSUER)


def test_metadata_has_defaults_and_takes_no_wrong_types() -> None:
    plain = metadata.read_server(described(), ISSUER)
    assert (plain.methods, plain.has_s256, plain.scopes) == (("client_secret_basic",), False, None)
    odd = metadata.read_server(described(code_challenge_methods_supported="S256", scopes_supported={}), ISSUER)
    assert (odd.has_s256, odd.scopes) == (False, None)
    assert metadata.read_server(described(issuer=f"{ISSUER}/"), ISSUER, old=True).issuer == f"{ISSUER}/"
    assert metadata.old_server(ISSUER).token == f"{ISSUER}/token"


def test_metadata_of_another_resource_stops_the_login() -> None:
    document = {"resource": "https://h/other", "authorization_servers": [ISSUER, 5], "scopes_supported": ["a", "b c"]}
    with pytest.raises(Unfit):
        metadata.read_resource(document, "https://h/mcp")
    found = metadata.read_resource({**document, "resource": "https://h"}, "https://h/mcp")
    assert (found.resource, found.issuers, found.scopes) == ("https://h", (ISSUER,), ("a", "b", "c"))


@pytest.mark.parametrize(
    ("configured", "challenged", "listed", "known", "bounds", "expected"),
    [
        (None, ("a",), ("b",), None, ("*",), ("a",)),
        (None, (), ("b", "c"), None, ("*",), ("b", "c")),
        (None, (), (), ("offline_access",), ("*",), ()),
        (None, ("a",), (), ("offline_access", "a"), ("*",), ("a", "offline_access")),
        (None, ("a", "offline_access"), (), None, ("*",), ("a",)),
        (None, ("a", "admin"), (), ("offline_access",), ("a",), ("a",)),
        (("x",), ("a",), ("b",), None, ("*",), ("x",)),
        ((), ("a",), ("b",), None, ("*",), ()),
        (None, ("repo:read", "admin:org"), (), None, ("repo*",), ("repo:read",)),
    ],
)
def test_scopes_of_a_first_login(
    configured: Any, challenged: Any, listed: Any, known: Any, bounds: Any, expected: Any
) -> None:
    assert scopes.first(configured, challenged, listed, known, bounds) == expected


def test_where_nothing_is_within_the_bounds_nothing_is_asked() -> None:
    with pytest.raises(Unfit):
        scopes.first(None, ("admin",), (), None, ("repo",))


# ---------------------------------------------------------------- clients


@pytest.mark.parametrize(
    ("document", "asked", "method"),
    [
        ({"client_id": "c"}, "none", "none"),
        ({"client_id": "c"}, "client_secret_basic", "none"),
        ({"client_id": "c", "client_secret": "s"}, "none", "client_secret_basic"),
        ({"client_id": "c", "client_secret": "s"}, "client_secret_post", "client_secret_post"),
        ({"client_id": "c", "client_secret": "s", "token_endpoint_auth_method": "none"}, "client_secret_post", "none"),
    ],
)
def test_the_answer_to_a_registration_counts(document: Any, asked: Any, method: str) -> None:
    assert clients.registered(document, asked, ()).method == method


@pytest.mark.parametrize(
    "document",
    [{}, {"client_id": ""}, {"client_id": 5}, {"client_id": "a\nb"},
     {"client_id": "c", "token_endpoint_auth_method": "client_secret_jwt"},
     {"client_id": "c", "token_endpoint_auth_method": "client_secret_basic"}],
)  # fmt: skip
def test_a_registration_that_cannot_be_used_is_refused(document: dict[str, Any]) -> None:
    with pytest.raises(Unfit):
        clients.registered(document, "none", ())


def test_a_registration_says_what_sluice_is() -> None:
    native = clients.metadata("http://127.0.0.1:7412/callback", "none", ("a", "b"))
    assert native["application_type"] == "native" and native["scope"] == "a b"
    assert "refresh_token" in native["grant_types"]
    assert clients.metadata("https://gw.example.com/x", "none", ())["application_type"] == "web"


def test_basic_authentication_encodes_both_parts_as_forms() -> None:
    client = OAuthClient("a b:c", "client_secret_basic", "config", "p%:é")
    form, headers = clients.prove(client, None, SERVER, 0)
    assert form == {} and base64.b64decode(headers[0][1].split()[1]) == b"a+b%3Ac:p%25%3A%C3%A9"
    assert "p%" not in repr(client)


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [(ec.generate_private_key(ec.SECP256R1()), "ES256"), (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
     (rsa.generate_private_key(65537, 2048), "RS256"), (ec.generate_private_key(ec.SECP384R1()), "ES384")],
)  # fmt: skip
def test_a_key_proves_the_client_to_the_issuer(key: Any, algorithm: str) -> None:
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    form, headers = clients.prove(OAuthClient("c", "private_key_jwt", "config"), pem, SERVER, 2e9)
    claims = jwt.decode(form["client_assertion"], key.public_key(), [algorithm], audience=ISSUER,
                        options={"verify_exp": False, "verify_iat": False})  # fmt: skip
    assert (claims["iss"], claims["sub"], claims["aud"], claims["exp"], headers) == ("c", "c", ISSUER, 2e9 + 60, [])
    with pytest.raises(Unfit):
        other = AuthorizationServer(ISSUER, "", algorithms=("HS256",))
        clients.prove(OAuthClient("c", "private_key_jwt", "config"), pem, other, 2e9)


def test_a_key_that_is_none_is_refused() -> None:
    for key in (None, "", "-----BEGIN PRIVATE KEY-----"):
        with pytest.raises(Unfit):
            clients.prove(OAuthClient("c", "private_key_jwt", "config"), key, SERVER, 0)


# ---------------------------------------------------------------- authorization


def test_the_request_has_all_that_binds_its_answer_and_params_never_replace() -> None:
    made = authorization.url(
        "https://as/a?tenant=1", "c", "http://127.0.0.1:1/callback", "st", "v" * 43, ("a", "offline_access"),
        "https://h/mcp", {"access_type": "offline", "state": "evil", "scope": "evil", "response_type": "token"},
    )  # fmt: skip
    query = dict(parse_qsl(urlsplit(made).query, strict_parsing=True))
    assert query == {
        "tenant": "1", "response_type": "code", "client_id": "c", "redirect_uri": "http://127.0.0.1:1/callback",
        "state": "st", "code_challenge": authorization.challenge_of("v" * 43), "code_challenge_method": "S256",
        "scope": "a offline_access", "resource": "https://h/mcp", "access_type": "offline", "prompt": "consent",
    }  # fmt: skip
    assert "scope" not in parse_qs(urlsplit(authorization.url("https://as/a", "c", "r", "s", "v", (), "", {})).query)


@pytest.mark.parametrize("more", ["client_id=x", "redirect_uri=https://evil", "a=1&state=", "%73cope=x", "resource"])
def test_an_endpoint_may_not_bring_the_parameters_of_the_client(more: str) -> None:
    with pytest.raises(Unfit):
        authorization.url(f"https://as/a?{more}", "c", "r", "s", "v", ("a",), "https://h/mcp", {})


def test_the_challenge_is_that_of_rfc_7636_appendix_b() -> None:
    verifier = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    assert authorization.challenge_of(verifier) == "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"


@pytest.mark.parametrize("query", ["", "code=x", "state=", "state=a&state=b", "state=a&code=1&code=2",
                                   "state=a&iss=1&iss=2", "&".join(f"a{i}=1" for i in range(60)),
                                   "state=" + "a" * 20_000])  # fmt: skip
def test_an_answer_without_one_state_is_refused(query: str) -> None:
    with pytest.raises(Unfit):
        authorization.read(query)


@pytest.mark.parametrize(
    ("query", "names_itself", "why"),
    [
        ("code=c", False, ""),
        (f"code=c&iss={ISSUER}", True, ""),
        (f"code=c&iss={ISSUER}", False, ""),
        (f"code=c&iss={ISSUER}/", False, "another"),
        (f"code=c&iss={ISSUER.upper()}", False, "another"),
        ("code=c&iss=", False, "another"),
        ("code=c", True, "does not say"),
        ("error=access_denied&error_description=LOOK&iss=https://evil", True, "another"),
        ("error=access_denied&error_description=no+%1b[31m", False, 'says: access_denied ("no ?[31m")'),
        ("error=a%22b", False, "says: "),
        ("", False, "no code"),
        ("code=" + "c" * 9000, False, "no code"),
    ],
)
def test_a_code_is_taken_from_the_issuer_that_was_asked_alone(query: str, names_itself: bool, why: str) -> None:
    said = authorization.why_not(authorization.read(f"state=s&{query}"), ISSUER, names_itself)
    assert (why in said) if why else said == ""
    assert "LOOK" not in said and "\x1b" not in said


# ---------------------------------------------------------------- tokens


@pytest.mark.parametrize(
    ("more", "life"),
    [({"expires_in": 3600}, 3600.0), ({"expires_in": "3600"}, 3600.0), ({}, None), ({"expires_in": 0}, None),
     ({"expires_in": -1}, None), ({"expires_in": None}, None), ({"expires_in": True}, None),
     ({"expires_in": "x"}, None),     ({"expires_in": 1e300}, tokens.MAX_LIFE), ({"expires_in": 10**400}, None),
     ({"expires_in": [1]}, None),
     ({"expires_in": 12.5}, 12.5)],
)  # fmt: skip
def test_lives_of_tokens_are_numbers_that_can_be_waited_for(more: dict[str, Any], life: float | None) -> None:
    body = json.dumps({"access_token": "t", "token_type": "bEARER", **more}).encode()
    assert tokens.read(200, body) == TokenAnswer("t", "", life, None)


def test_a_life_beyond_all_numbers_does_not_cost_the_token() -> None:
    read = tokens.read(200, b'{"access_token":"t","token_type":"Bearer","expires_in":1e400,"scope":"a b"}')
    assert read == TokenAnswer("t", "", None, ("a", "b"))


@pytest.mark.parametrize(
    ("status", "body"),
    [
        (200, b""), (200, b"<html>"), (200, b"[]"), (200, b"null"), (200, b"[" * 100_000),
        (200, b'{"access_token":"t"}'),
        (200, b'{"access_token":"t","token_type":"DPoP"}'), (200, b'{"access_token":"a b","token_type":"bearer"}'),
        (200, b'{"access_token":"a\\nb","token_type":"bearer"}'), (200, b'{"access_token":5,"token_type":"bearer"}'),
        (200, b'{"access_token":"' + b"a" * 17_000 + b'","token_type":"bearer"}'),
        (302, b'{"access_token":"t","token_type":"bearer"}'), (500, b'{"access_token":"t","token_type":"bearer"}'),
        (200, b'{"access_token":"","token_type":"bearer"}'), (400, b'{"error":"\\u001b[31m"}'), (400, b'{"error":5}'),
    ],
)  # fmt: skip
def test_what_is_no_token_is_refused(status: int, body: bytes) -> None:
    with pytest.raises(Unfit) as error:
        tokens.read(status, body)
    assert "\x1b" not in str(error.value)


def test_refusals_are_read_whatever_their_status() -> None:
    for status in (200, 400, 401):
        read = tokens.read(status, b'{"error":"invalid_grant","error_description":"x"}')
        assert read == TokenRefusal("invalid_grant")


def test_secrets_are_in_no_repr() -> None:
    read = tokens.read(200, b'{"access_token":"sesame","refresh_token":"simsim","token_type":"bearer"}')
    answer = authorization.read("state=s&code=sesame")
    assert not any(word in repr((read, answer)) for word in ("sesame", "simsim"))


@pytest.mark.parametrize(
    ("life", "jitter", "left"),
    [(3600.0, 0.0, 360.0), (3600.0, 1.0, 396.0), (100.0, 0.0, 30.0), (100.0, 1.0, 33.0), (20.0, 0.0, 10.0)],
)
def test_a_token_is_renewed_before_it_ends(life: float, jitter: float, left: float) -> None:
    assert tokens.fresh_until(1000.0, life, jitter) == pytest.approx(1000.0 - left)
    assert tokens.fresh_until(None, None, jitter) == math.inf


def test_the_refresh_token_is_revoked_first() -> None:
    assert [form["token"] for form in tokens.revocations("a", "r")] == ["r", "a"]
    assert [form["token"] for form in tokens.revocations("a", "")] == ["a"]
    assert tokens.revocations("", "") == []


MANY = b'{"a":[%b1]}' % (b"1," * 20_000)


def test_what_a_peer_wrote_is_shown_plainly() -> None:
    assert shown("a\x1b[1m`$\u202e\n'\"" + "x" * 500) == '"a?[1m?$????' + "x" * 189 + '"'
    for bad in (b"\xff", b"[1]", b"1", b"{", b"9" * 5000, b'{"client_secret":"\\ud800"}', b'{"\\udfff":1}', MANY):
        with pytest.raises(Unfit):
            read_json(bad)


def test_a_document_goes_no_deeper_than_the_parser_of_messages() -> None:
    assert read_json(b'\xef\xbb\xbf{"a":' + b"[" * 150 + b"]" * 150 + b"}")
    with pytest.raises(Unfit):
        read_json(b'{"a":' + b"[" * 500 + b"]" * 500 + b"}")


@pytest.mark.parametrize(("seconds", "life"), [("1" * 400, 600.0), ("1e999", 600.0), ("NaN", 600.0), ("60", 60.0)])
def test_a_life_of_a_device_code_that_is_no_number_is_the_usual_one(seconds: str, life: float) -> None:
    told = '{"device_code": "d", "user_code": "ABCD", "verification_uri": "https://a.example/", "expires_in": %s}'
    answer = tokens.read_device(200, (told % seconds).encode())
    assert isinstance(answer, tokens.DeviceAnswer) and answer.life == life
