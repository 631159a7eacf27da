"""Who gets in at a real Sluice, and what stays theirs: keys, tokens of a real issuer, sessions, cursors, headers.

The strongest assertion is that the server saw nothing.
"""

import base64
import hashlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from e2e.wire import LEGACY, META, MODERN
from issuer import ADMIN_AUDIENCE, AUDIENCE, Issuer, ec_key, issuer, rsa_key
from policy_bed import Bed, bearer, bed, client_keys, key_of, recorder
from web_recorder import Web, canary, web_server

Json = dict[str, Any]
ROWS = """\
p, role:user, *, *, *, allow
p, group:sre, *, *, *, allow
p, group:ops, sluice, admin:servers, read, allow
p, group:careful, web, *, *, allow
p2, group:careful, web, tool:*, *, one-of-leads
p, role:lead, sluice, admin:*, *, allow
"""
ACCEPT = {"Accept": "application/json, text/event-stream"}
ASKING = str(Path(__file__).with_name("asking_server.py"))
METADATA = "https://mcp.example.com/.well-known/oauth-protected-resource/tools/mcp"
WITHIN = 10.0  # seconds until whoever is no longer welcome has gone: five, and as many for a busy machine


def clients(login: Issuer) -> Json:
    one = {"issuer": login.url, "audience": AUDIENCE, "admin_audience": ADMIN_AUDIENCE, "roles_from": ["groups"]}
    keys = client_keys(a=["role:user"], b=["role:user"], old=["role:user"], lea=["role:lead"])
    keys["old"]["expires"] = "2020-01-01"
    return {"keys": keys, "jwt": {"issuers": [one], "scopes": ["mcp:use"]}}


@dataclass(frozen=True, slots=True)
class Place:
    bed: Bed
    login: Issuer
    web: Web

    @property
    def base(self) -> str:
        return self.bed.process.url.removesuffix("/mcp")

    def token(self, **claims: Any) -> str:
        return self.login.token(**{"groups": ["sre"], "scope": "mcp:use", **claims})

    def ask(self, credential: str | None, method: str = "tools/list", **params: Any) -> httpx.Response:
        meta = {**META, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}}}
        named = {"Mcp-Name": params["name"]} if "name" in params else {}
        head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named, **auth(credential)}
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        return httpx.post(self.bed.process.url, json=body, headers=head, timeout=20)

    def session(self, credential: str) -> dict[str, str]:
        """The headers of a new legacy session."""
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
        answer = httpx.post(self.bed.process.url, json=body, headers={**ACCEPT, **auth(credential)}, timeout=20)
        assert answer.status_code == 200, answer.text
        return {**ACCEPT, "Mcp-Session-Id": answer.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}

    def ping(self, session: dict[str, str], credential: str) -> int:
        body = {"jsonrpc": "2.0", "id": 2, "method": "ping"}
        headers = {**session, **auth(credential)}
        return httpx.post(self.bed.process.url, json=body, headers=headers, timeout=20).status_code


def auth(credential: str | None) -> dict[str, str]:
    return {} if credential is None else {"Authorization": f"Bearer {credential}"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("identity")
    with issuer() as login, web_server() as web:
        servers: Json = {"web": {"url": web.url, "headers": {"Authorization": "Bearer ours"}, "era": "legacy"}}
        listen = {"public_url": "https://mcp.example.com/tools/mcp"}
        servers["ask"] = {"command": sys.executable, "args": [ASKING], "era": "legacy"}
        with bed(folder, ROWS, servers, clients=clients(login), listen=listen, limits={"page": 1}) as made:
            yield Place(made, login, web)
    assert_nothing_of(login, folder)


def assert_nothing_of(login: Issuer, folder: Path) -> None:
    """No credential is written down anywhere, good or bad."""
    written = "".join((folder / name).read_text() for name in ("audit/sluice.jsonl", "sluice.log"))
    begins = login.token().split(".")[0]  # as all tokens of that issuer do
    assert not [secret for secret in (key_of("a"), key_of("old"), "slc_unknown", begins) if secret in written]


# ---------------------------------------------------------------- in, or not


def test_a_token_gets_in_with_what_its_groups_may(place: Place) -> None:
    assert place.ask(place.token()).json()["result"]["tools"][0]["name"] == "web__one"
    assert place.ask(place.token(groups=["dev"])).json()["result"]["tools"] == []
    assert place.ask(place.token(groups=["role:user"])).json()["result"]["tools"] == []


NOT_IN: dict[str, Any] = {
    "nothing": lambda place: None,
    "a wrong key": lambda place: "slc_unknown",
    "an expired key": lambda place: key_of("old"),
    "a token for somebody else": lambda place: place.token(aud="https://other.example.com"),
    "a token for the admin port": lambda place: place.token(aud=ADMIN_AUDIENCE),
    "another issuer": lambda place: place.token(iss="https://evil.example.com"),
    "expired": lambda place: place.token(exp=int(time.time()) - 5),
    "not yet": lambda place: place.token(nbf=int(time.time()) + 3600),
    "another key": lambda place: place.token(key=rsa_key("evil")),
    "another algorithm": lambda place: place.token(key=ec_key("evil"), alg="ES256"),
    "none": lambda place: f"{_b64({'alg': 'none'})}.{place.token().split('.')[1]}.AA",
    "a kid that climbs": lambda place: place.token(kid="../../x"),
    "an unknown crit": lambda place: place.token(head={"crit": ["x"], "x": 1}),
}


def _b64(value: Json) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


@pytest.mark.parametrize("who", NOT_IN)
def test_everybody_else_is_told_where_to_get_a_token(place: Place, who: str) -> None:
    before = len(place.web.heads)
    credential = NOT_IN[who](place)
    answer = place.ask(credential, "tools/call", name="web__one", arguments={})
    assert answer.status_code == 401 and "web__" not in answer.text
    challenge = answer.headers["www-authenticate"]
    assert challenge.startswith("Bearer ")
    assert f'resource_metadata="{METADATA}"' in challenge and 'scope="mcp:use"' in challenge
    assert ('error="invalid_token"' in challenge) is (credential is not None)
    assert len(place.web.heads) == before


def test_a_token_with_too_few_scopes_is_forbidden_and_told_which(place: Place) -> None:
    answer = place.ask(place.token(scope="other"))
    assert answer.status_code == 403
    challenge = answer.headers["www-authenticate"]
    assert 'error="insufficient_scope"' in challenge and 'scope="mcp:use"' in challenge and METADATA in challenge


def test_a_token_in_the_query_is_none(place: Place) -> None:
    head = {**ACCEPT, "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": META}}
    for name in ("access_token", "token"):
        url = f"{place.bed.process.url}?{name}={place.token()}"
        assert httpx.post(url, json=body, headers=head, timeout=20).status_code == 401


@pytest.mark.parametrize("path", ["", "/mcp", "/tools/mcp"])
def test_the_metadata_is_there_with_and_without_path(place: Place, path: str) -> None:
    answer = httpx.get(f"{place.base}/.well-known/oauth-protected-resource{path}", timeout=20)
    assert answer.status_code == 200 and answer.headers["content-type"] == "application/json"
    document = answer.json()
    assert document["resource"] == "https://mcp.example.com/tools/mcp"
    assert document["authorization_servers"] == [place.login.url]
    assert document["scopes_supported"] == ["mcp:use"] and document["bearer_methods_supported"] == ["header"]


def test_the_metadata_is_for_reading_and_nowhere_else(place: Place) -> None:
    url = f"{place.base}/.well-known/oauth-protected-resource"
    assert httpx.post(url, timeout=20).status_code == 405
    assert httpx.get(f"{url}/other", timeout=20).status_code == 404
    assert httpx.get(url, headers={"Host": "evil.example.com"}, timeout=20).status_code == 421
    assert httpx.get(url, headers={"Host": "mcp.example.com"}, timeout=20).status_code == 200
    there = httpx.get(f"{place.bed.process.admin}/.well-known/oauth-protected-resource", timeout=20)
    assert there.status_code == 404


def test_the_admin_port_has_an_audience_of_its_own(place: Place) -> None:
    def ask(**claims: Any) -> int:
        url = f"{place.bed.process.admin}/api/v1/servers"
        return httpx.get(url, headers=auth(place.token(groups=["ops"], **claims)), timeout=20).status_code

    assert ask(aud=ADMIN_AUDIENCE) == 200
    assert ask() == 401
    assert ask(aud=ADMIN_AUDIENCE, scope="other") == 401, "it needs the scopes as well"
    url = f"{place.bed.process.admin}/api/v1/servers"
    assert httpx.get(url, headers=auth(place.token(aud=ADMIN_AUDIENCE)), timeout=20).status_code == 403
    assert httpx.get(url, headers=bearer("a"), timeout=20).status_code == 403
    assert "admin_audience" in httpx.get(url, headers=auth(place.token(groups=["ops"])), timeout=20).json()["error"]


def test_readiness_names_an_issuer_whose_keys_cannot_be_had(tmp_path: Path) -> None:
    with issuer() as login:
        login.pages.clear()
        with web_server() as web, bed(tmp_path, ROWS, {"web": {"url": web.url}}, clients=clients(login)) as made:
            here = Place(made, login, web)
            assert "notes" not in json.loads(made.process.get("/readyz")[1])
            assert here.ask(here.token()).status_code == 401
            (note,) = json.loads(made.process.get("/readyz")[1])["notes"]
            assert note.startswith(f"the keys of the token issuer {login.url} cannot be had: metadata: ")
            login.publish()
            assert here.ask(here.token()).status_code == 200
            assert "notes" not in json.loads(made.process.get("/readyz")[1])


def test_who_was_refused_is_written_down_without_what_it_showed(tmp_path: Path) -> None:
    with issuer() as login:
        with web_server() as web, bed(tmp_path, ROWS, {"web": {"url": web.url}}, clients=clients(login)) as made:
            here = Place(made, login, web)
            for who in NOT_IN.values():
                assert here.ask(who(here)).status_code == 401
            url = f"{made.process.admin}/api/v1/servers"
            for credential in (None, "slc_unknown", here.token()):
                assert httpx.get(url, headers=auth(credential), timeout=20).status_code == 401
        assert_nothing_of(login, tmp_path)
    told = [entry for entry in made.audit() if entry["type"] == "identity"]
    assert {entry["address"] for entry in told} == {"127.0.0.1"}
    assert set().union(*(entry["reasons"] for entry in told)) == {
        "none", "credential", "expired", "audience", "issuer", "not_yet_valid", "signature", "algorithm",
        "unknown_key", "malformed", "admin_none", "admin_credential", "admin_audience",
    }  # fmt: skip


# ---------------------------------------------------------------- what is whose


@pytest.mark.parametrize("kind", ["key", "token"])
def test_a_session_is_of_its_principal_alone(place: Place, kind: str) -> None:
    mine, theirs = (key_of("a"), key_of("b")) if kind == "key" else (place.token(), place.token(sub="eve"))
    session = place.session(mine)
    with httpx.stream("GET", place.bed.process.url, headers={**session, **auth(mine)}, timeout=20) as stream:
        assert stream.status_code == 200
        url, stolen = place.bed.process.url, {**session, **auth(theirs)}
        assert place.ping(session, theirs) == 404
        assert httpx.get(url, headers=stolen, timeout=20).status_code == 404
        assert httpx.get(url, headers={**stolen, "Last-Event-ID": "1-1"}, timeout=20).status_code == 404
        assert httpx.delete(url, headers=stolen, timeout=20).status_code == 404
        assert place.ping(session, mine) == 200 and not stream.is_closed
    if kind == "token":  # the same subject goes on with a token that it got later
        assert place.ping(session, place.token(jti="later")) == 200


def test_a_cursor_is_of_its_principal_alone(place: Place) -> None:
    mine = place.token()
    cursor = place.ask(mine).json()["result"]["nextCursor"]
    assert place.ask(mine, cursor=cursor).json()["result"]["tools"][0]["name"] == "web__two"
    for other in (place.token(sub="eve"), key_of("a")):
        assert place.ask(other, cursor=cursor).json()["error"]["code"] == -32602


def test_a_call_that_waits_for_its_client_is_of_its_principal_alone(place: Place) -> None:
    mine = place.token()
    waiting = place.ask(mine, "tools/call", name="ask__name", arguments={}).json()["result"]
    (question,) = waiting["inputRequests"]
    retry: Json = {
        "name": "ask__name", "arguments": {}, "requestState": waiting["requestState"],
        "inputResponses": {question: {"action": "accept", "content": {"name": "x"}}},
    }  # fmt: skip
    for other in (place.token(sub="eve"), key_of("a")):
        assert place.ask(other, "tools/call", **retry).json()["error"]["code"] == -32602
    assert "content" in place.ask(place.token(jti="later"), "tools/call", **retry).json()["result"]


def test_nothing_of_the_client_reaches_a_server_but_the_call(place: Place) -> None:
    place.web.heads.clear()
    strange = {
        "Cookie": "c=canary-cookie", "Proxy-Authorization": "Basic canary-proxy", "X-Forwarded-User": "canary-user",
        "X-Forwarded-For": "6.6.6.6", "Forwarded": "for=canary", "X-MCP-Init-Host": "canary-host",
        "X-Api-Key": "canary-key", "Traceparent": "00-canary", "User-Agent": "canary-agent",
    }  # fmt: skip
    for credential in (key_of("a"), place.token()):
        head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "web__one"}
        params = {"name": "web__one", "arguments": {}, "_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = httpx.post(
            place.bed.process.url, json=body, headers={**ACCEPT, **head, **strange, **auth(credential)}, timeout=20
        )
        assert answer.json()["result"]["content"][0]["text"] == "done"
        seen = "".join(place.web.heads)
        assert credential not in seen
    assert "canary" not in seen and "6.6.6.6" not in seen
    assert all("Bearer ours" in head for head in place.web.heads)


def test_a_token_that_expires_ends_its_session_and_its_stream(place: Place) -> None:
    token = place.token(sub="short", exp=int(time.time()) + 6)
    session = place.session(token)
    with httpx.stream("GET", place.bed.process.url, headers={**session, **auth(token)}, timeout=20) as stream:
        with suppress(httpx.RemoteProtocolError):  # it may end in the middle
            # Fifteen seconds after its beginning a stream gives a sign of life. This one ends before.
            for line in stream.iter_lines():
                assert line.strip() != ":"
    assert place.ping(session, token) == 401
    assert place.ping(session, place.token(sub="short")) == 404


def test_what_was_granted_to_a_token_ends_with_it(place: Place) -> None:
    lea = httpx.Client(base_url=f"{place.bed.process.admin}/api/v1", headers=bearer("lea"), timeout=20)
    token = place.token(sub="brief", groups=["careful"], exp=int(time.time()) + 12)
    with lea, ThreadPoolExecutor(1) as pool:
        asked = pool.submit(place.ask, token, "tools/call", name="web__one", arguments={})
        place.bed.until(lambda: lea.get("/approvals").json()["total"] == 1)
        (row,) = lea.get("/approvals").json()["approvals"]
        body = {"decision": "approve", "scope": "15m", "seen_digest": row["digest"]}
        assert lea.post(f"/approvals/{row['id']}/decisions", json=body).status_code == 200
        assert "done" in asked.result(30).text
        assert len(lea.get("/grants").json()["grants"]) == 1
        place.bed.until(lambda: lea.get("/grants").json()["grants"] == [], 12 + WITHIN)


# ---------------------------------------------------------------- keys that are taken back


def revoke(bed: Bed, name: str) -> None:
    done = run(ROOT, "keys", "revoke", name, "-c", str(bed.process.config))
    assert done.returncode == 0, done.stderr


def test_a_key_is_taken_back_from_a_sluice_that_runs(tmp_path: Path) -> None:
    keys = {"keys": client_keys(a=["role:user"], b=["role:user"], c=["role:user"])}
    with web_server() as web, bed(tmp_path, ROWS, {"web": {"url": web.url, "era": "legacy"}}, clients=keys) as made:
        here = Place(made, Issuer(""), web)
        session = here.session(key_of("a"))
        with httpx.stream("GET", made.process.url, headers={**session, **bearer("a")}, timeout=20) as stream:
            revoke(made, "a")
            made.until(lambda: here.ask(key_of("a")).status_code == 401, WITHIN)
            with pytest.raises(httpx.TransportError):
                list(stream.iter_raw())
        assert here.ask(key_of("b")).status_code == 200
        made.process.config.write_text("policy: [")  # also while nobody can read the config
        revoke_blind = [*COMMAND, "keys", "revoke", "b", "-c", str(made.process.config), "--state-dir"]
        state = str(tmp_path / "state")
        subprocess.run([*revoke_blind, state], check=True, cwd=ROOT, env=clean_environment(), capture_output=True)
        made.until(lambda: here.ask(key_of("b")).status_code == 401, WITHIN)
        assert here.ask(key_of("c")).status_code == 200
        # A key is refused at once; its record is written behind that.
        made.until(lambda: {("key_revoked", "a"), ("key_revoked", "b")} <= admin_acts(made))


def test_a_request_whose_body_comes_after_its_key_was_revoked_is_refused(tmp_path: Path) -> None:
    keys = {"keys": client_keys(a=["role:user"], b=["role:user"])}
    with bed(tmp_path, ROWS, {"fs": recorder(tmp_path, "fs", tools=["read"])}, clients=keys) as made:
        made.until(lambda: made.names("a") == ["fs__read"])
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "fs__read", "_meta": META}}
        body = json.dumps(call).encode()
        head = {
            "Host": "127.0.0.1", "Content-Type": "application/json", "Accept": "application/json, text/event-stream",
            "MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "fs__read",
            "Content-Length": str(len(body)), **bearer("a"),
        }  # fmt: skip
        lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
        port = httpx.URL(made.process.url).port
        with closing(socket.create_connection(("127.0.0.1", port), timeout=20)) as line:
            line.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + body[:20])
            revoke(made, "a")
            made.until(lambda: made.ask("a", "tools/list").status_code == 401, WITHIN)
            line.sendall(body[20:])
            assert line.recv(65_536).startswith(b"HTTP/1.1 401 ")
        assert not [one for one in made.seen("fs") if one.get("method") == "tools/call"]


NOTES = """\
import json, os, sys
notes = []
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        about = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}}
        result = {**about, "serverInfo": {"name": "notes", "version": "1"}}
    elif asked["method"] == "tools/list":
        result = {"tools": [{"name": "note", "inputSchema": {"type": "object"}}]}
    elif asked["method"] != "tools/call":
        result = {}
    else:
        notes.append(asked["params"]["arguments"]["text"])
        result = {"content": [{"type": "text", "text": json.dumps({"pid": os.getpid(), "notes": notes})}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


def test_the_next_holder_of_a_key_finds_nothing_of_the_last_one_at_a_server(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    servers = {"notes": {"command": sys.executable, "args": [str(tmp_path / "notes.py")], "era": "legacy"}}
    with bed(tmp_path, ROWS, servers, clients={"keys": client_keys(a=["role:user"])}) as made:
        here = Place(made, Issuer(""), Web())

        def note(key: str, text: str) -> Json:
            answer = here.ask(key, "tools/call", name="notes__note", arguments={"text": text})
            return dict(json.loads(answer.json()["result"]["content"][0]["text"]))

        old, new = key_of("a"), key_of("the next holder of that name")
        first = note(old, "a secret")
        config = json.loads(made.process.config.read_text())
        config["clients"]["keys"]["a"]["hash"] = "sha256:" + hashlib.sha256(new.encode()).hexdigest()
        made.write(json.dumps(config), made.process.config.name)
        made.until(lambda: here.ask(old).status_code == 401, WITHIN)
        second = note(new, "mine")
        assert second["notes"] == ["mine"] and second["pid"] != first["pid"]
        made.until(lambda: not Path(f"/proc/{first['pid']}").exists(), WITHIN)
        assert note(new, "too") == {"pid": second["pid"], "notes": ["mine", "too"]}


# ---------------------------------------------------------------- places that others name


def test_what_an_issuer_or_a_server_names_is_not_connected_to(tmp_path: Path) -> None:
    with issuer() as login, web_server() as web, canary() as trap:
        login.publish(jwks_uri=f"https://127.0.0.1:{trap.port}/keys")
        web.redirect = f"http://127.0.0.1:{trap.port}/mcp"
        servers = {
            "moved": {"url": web.url, "era": "legacy", "required": False},
            "metadata": {"url": "http://2852039166/mcp", "era": "legacy", "required": False},  # 169.254.169.254
        }
        with bed(tmp_path, ROWS, servers, clients=clients(login)) as made:
            here = Place(made, login, web)
            assert here.ask(here.token()).status_code == 401
            assert here.ask(key_of("a")).json()["result"]["tools"] == []
            made.until(lambda: len(blocked(made)) == 2)
            found = {entry["for"]: entry for entry in blocked(made)}
            assert found[f"issuer {login.url}"]["address"] == "127.0.0.1"
            assert found["server metadata"]["address"] == "169.254.169.254"
            assert web.heads and not trap.hits


def admin_acts(made: Bed) -> set[tuple[Any, Any]]:
    return {(entry.get("act"), entry.get("name")) for entry in made.audit() if entry["type"] == "admin"}


def blocked(made: Bed) -> list[Json]:
    return [entry for entry in made.audit() if entry.get("what") == "ssrf_blocked"]


def test_what_the_operator_allows_may_be_named(tmp_path: Path) -> None:
    with issuer() as login, web_server() as web, canary() as reached:
        login.publish(jwks_uri=f"https://127.0.0.1:{reached.port}/keys")
        network = {"allow_private": ["127.0.0.0/8"]}
        servers = {"web": {"url": web.url, "era": "legacy"}}
        with bed(tmp_path, ROWS, servers, clients=clients(login), network=network) as made:
            assert Place(made, login, web).ask(login.token()).status_code == 401  # it speaks no TLS
            assert reached.hits and not blocked(made)


def test_servers_are_reached_through_a_proxy_and_through_nothing_else(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n"
    with web_server() as web, canary(refusal) as proxy:
        servers = {"web": {"url": web.url.replace("127.0.0.1", "localhost"), "era": "legacy", "required": False}}
        network = {"proxy": f"http://127.0.0.1:{proxy.port}"}
        with bed(tmp_path, ROWS, servers, clients={"keys": client_keys(a=["role:user"])}, network=network) as made:
            assert Place(made, Issuer(""), web).ask(key_of("a")).json()["result"]["tools"] == []
            port = web.url.split(":")[2].split("/")[0]
            assert proxy.hits[0].startswith(f"CONNECT localhost:{port} HTTP/1.1\r\n".encode())
            assert not web.heads
