"""HTTPS at the port for clients, without a proxy in front."""

import json
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from authority import issue
from command_line import run
from e2e.wire import LEGACY, META, MODERN
from policy_bed import bearer, bed, client_keys, recorder

Json = dict[str, Any]
ROWS = "p, role:authenticated, *, *, *, allow\n"
ACCEPT = {"Accept": "application/json, text/event-stream"}


def files(folder: Path, prefix: str = "") -> Json:
    made = dict(zip(("ca", "cert", "key"), issue("127.0.0.1", "localhost"), strict=True))
    for name, text in made.items():
        (folder / f"{prefix}{name}.pem").write_bytes(text)
    return {name: str(folder / f"{prefix}{name}.pem") for name in made}


def test_clients_of_both_eras_and_all_transports_speak_tls(tmp_path: Path) -> None:
    ours, theirs = files(tmp_path), files(tmp_path, "client_")
    tls = {"cert": ours["cert"], "key": ours["key"], "client_ca": theirs["ca"]}
    servers = {"bank": recorder(tmp_path, "bank", tools=["look"])}
    config = {"clients": {"keys": client_keys(ann=[])}, "listen": {"tls": tls}}
    knows = ssl.create_default_context(cafile=ours["ca"])
    shows = ssl.create_default_context(cafile=ours["ca"])
    shows.load_cert_chain(theirs["cert"], theirs["key"])
    with bed(tmp_path, ROWS, servers, **config) as at:
        url = at.process.url.replace("http:", "https:")
        for context, where in ((knows, url), (shows, url.replace("https", "http"))):  # no certificate; no TLS
            with pytest.raises(httpx.TransportError), httpx.Client(verify=context) as client:
                client.post(where, json={}, headers=bearer("ann"))
        with httpx.Client(verify=shows, headers={**ACCEPT, **bearer("ann")}, timeout=20) as client:
            params = {"name": "bank__look", "arguments": {"big": "x" * 300_000}, "_meta": META}
            head = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "bank__look"}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            for _ in range(3):  # on one connection
                assert "result" in client.post(url, json=body, headers=head).json()
            hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
            opened = client.post(url, json={"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello})
            session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "MCP-Protocol-Version": LEGACY}
            with client.stream("GET", url, headers=session) as stream:
                assert stream.headers["content-type"] == "text/event-stream"
            with client.stream("GET", url.removesuffix("/mcp") + "/sse") as stream:
                assert next(stream.iter_lines()) == "event: endpoint"
            refused = client.post(url, json=body, headers={**head, "Authorization": "Bearer none"})
            assert refused.status_code == 401


def test_what_cannot_be_served_is_said_before_the_start(tmp_path: Path) -> None:
    ours, others = files(tmp_path), files(tmp_path, "other_")
    (tmp_path / "policy.csv").write_text(ROWS)
    base: Json = {"version": 1, "policy": {"files": ["policy.csv"]}, "servers": {"a": {"command": "true"}},
                  "clients": {"keys": client_keys(ann=[])}, "state": {"dir": str(tmp_path / "state")}}  # fmt: skip

    def said(tls: Json, *words: str) -> str:
        (tmp_path / "sluice.yaml").write_text(json.dumps({**base, "listen": {"tls": tls}}))
        done = run(tmp_path, *words, "-c", "sluice.yaml")
        assert done.returncode != 0
        return done.stdout + done.stderr

    mismatch = {"cert": ours["cert"], "key": others["key"]}
    assert "bad-certificate not a certificate in PEM and its private key" in said(mismatch, "check")
    broken = {"cert": ours["cert"], "key": ours["key"], "client_ca": ours["key"]}
    assert "bad-certificate no certificate of an authority in PEM" in said(broken, "check")
    assert "unreadable-file" in said({"cert": ours["cert"], "key": str(tmp_path / "none")}, "check")
    good = {"cert": ours["cert"], "key": ours["key"]}
    assert "a TLS connection cannot be" in said(good, "serve", "--workers", "2")
