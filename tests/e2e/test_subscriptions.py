"""Subscriptions to single resources, between clients and servers of both eras on the official SDKs.

That nothing arrives is seen by what arrives next: every server tells of two changes in the order in which they were
made, so that an update of the second without one of the first says that the first was for nobody.
"""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from e2e.sluice_process import Sluice, sluice
from e2e.watchers import WATCHERS, Watcher, watcher
from e2e.wire import META, MODERN
from peers.fleet import FIXTURE, free_port, running, wait_for_port
from peers.install import MCP1

Json = dict[str, Any]
SHELF = [str(MCP1 / "python"), str(Path(__file__).parent / "sdk1_shelf.py")]
# server -> the tool that makes it tell of an update
TOUCH = {
    "dual": "change_watched", "modern": "change_watched", "legacy": "change_watched", "pipe": "change_watched",
    "modernpipe": "change_watched", "old": "touch", "oldweb": "touch", "shared": "touch",
}  # fmt: skip


class OverHttp:
    """A server that can be killed and started again at the same address."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._command, self._log, self._port = command, folder / "over_http.log", free_port()
        self._life = ExitStack()
        self.url = f"http://127.0.0.1:{self._port}/mcp"

    def __enter__(self) -> "OverHttp":
        command = [*self._command, str(self._port)]
        process = self._life.enter_context(running(command, self._log, stdout=subprocess.DEVNULL))
        wait_for_port(self._port, process, self._log)
        return self

    def __exit__(self, *error: object) -> None:
        self._life.close()


def stdio(command: list[str], **more: Any) -> Json:
    return {"command": command[0], "args": command[1:], **more}


@dataclass(frozen=True, slots=True)
class Site:
    process: Sluice
    folder: Path
    clients: dict[str, Watcher]
    over_http: dict[str, OverHttp]

    @contextmanager
    def another(self, name: str) -> Iterator[Watcher]:
        with watcher(name, self.process.url, self.folder) as client:
            yield client


@pytest.fixture(scope="module")
def site(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("subscriptions")
    with ExitStack() as stack:
        web = stack.enter_context(OverHttp([*FIXTURE, "--port"], folder))
        oldweb = stack.enter_context(OverHttp(SHELF, folder))
        servers: Json = {
            "dual": {"url": web.url},
            "modern": {"url": web.url, "era": "modern"},
            "legacy": {"url": web.url, "era": "legacy"},
            "pipe": stdio(FIXTURE, era="legacy"),
            "modernpipe": stdio(FIXTURE, era="modern"),
            "old": stdio(SHELF),
            "oldweb": {"url": oldweb.url},
            "shared": stdio(SHELF, sharing="shared"),
        }
        process = stack.enter_context(sluice({"servers": servers}, folder, watched=True))
        clients = {name: stack.enter_context(watcher(name, process.url, folder)) for name in WATCHERS}
        yield Site(process, folder, clients, {"dual": web, "oldweb": oldweb})


def touch(client: Watcher, server: str, own: str, **more: str) -> None:
    answer = client.call(f"{server}__{TOUCH[server]}", uri=own, **more)
    assert answer["done"][0] is False, answer


def until(client: Watcher, uri: str) -> list[str]:
    """What it was told before it was told of that resource. There may be more than was touched: where a server did not
    answer before a modern client was acknowledged, an update follows, because one may have been missed."""
    before = []
    while (told := client.told()) != uri:
        before.append(told)
    return before


def wait_for_watched(client: Watcher, wanted: str) -> None:
    """What the shared server is asked to watch: that a client wants something no more is heard of a moment later."""
    give_up = time.monotonic() + 60
    while (found := client.call("shared__watched")["done"][1]) != wanted:
        assert time.monotonic() < give_up, found


@pytest.mark.parametrize("name", WATCHERS)
@pytest.mark.parametrize("server", TOUCH)
def test_an_update_arrives_until_its_client_unsubscribes(site: Site, server: str, name: str) -> None:
    client = site.clients[name]
    one, two = f"memo://{name}/one", f"memo://{name}/two"
    assert client.hello["subscribe"] is True
    for own in (one, two):
        assert client.subscribe(f"{server}+{own}")["done"] in (None, [f"{server}+{own}"])
        touch(client, server, own)
        assert set(until(client, f"{server}+{own}")) <= {f"{server}+{one}"}
    assert "done" in client.unsubscribe(f"{server}+{one}")
    for own in (one, one, one, two):
        touch(client, server, own)
    assert until(client, f"{server}+{two}").count(f"{server}+{one}") <= 1
    assert "done" in client.unsubscribe(f"{server}+{two}")


@pytest.mark.parametrize("name", WATCHERS)
@pytest.mark.parametrize("server", ["old", "oldweb", "shared"])
def test_an_update_of_a_part_is_for_whoever_subscribed_to_the_whole(site: Site, server: str, name: str) -> None:
    client = site.clients[name]
    assert "done" in client.subscribe(f"{server}+memo://{name}/dir")
    touch(client, server, f"memo://{name}/dir/file#3", of=f"memo://{name}/dir")
    until(client, f"{server}+memo://{name}/dir/file#3")
    assert "done" in client.unsubscribe(f"{server}+memo://{name}/dir")


def test_on_a_shared_connection_each_client_hears_of_its_own_and_the_server_is_asked_once(site: Site) -> None:
    first, second, third = site.clients["py1"], site.clients["py2-modern"], site.clients["py2-legacy"]
    for client, own in ((first, "memo://a"), (second, "memo://b"), (third, "memo://a")):
        assert "done" in client.subscribe(f"shared+{own}")
    touch(second, "shared", "memo://a")
    touch(second, "shared", "memo://b")
    assert until(first, "shared+memo://a") == until(second, "shared+memo://b") == until(third, "shared+memo://a") == []
    wait_for_watched(first, "memo://a 1\nmemo://b 1")
    first.unsubscribe("shared+memo://a")
    assert first.call("shared__watched")["done"][1] == "memo://a 1\nmemo://b 1"
    touch(first, "shared", "memo://a")
    assert until(third, "shared+memo://a") == []
    third.unsubscribe("shared+memo://a")
    second.unsubscribe("shared+memo://b")
    assert first.updates.empty()


def test_clients_that_leave_are_unsubscribed_at_the_server(site: Site) -> None:
    with site.another("py1") as legacy, site.another("py2-modern") as modern:
        assert "done" in legacy.subscribe("shared+memo://left")
        assert "done" in modern.subscribe("shared+memo://left")
    wait_for_watched(site.clients["py1"], "")


@pytest.mark.parametrize("name", WATCHERS)
@pytest.mark.parametrize("server", ["pipe", "modernpipe", "old"])
def test_a_server_that_dies_is_subscribed_to_again(site: Site, server: str, name: str) -> None:
    """What was updated meanwhile cannot be known, so the client is told that it may have been."""
    client, own = site.clients[name], f"memo://{name}/kept"
    assert "done" in client.subscribe(f"{server}+{own}")
    touch(client, server, own)
    until(client, f"{server}+{own}")
    client.call(f"{server}__crash")
    until(client, f"{server}+{own}")
    touch(client, server, own)
    until(client, f"{server}+{own}")
    assert "done" in client.unsubscribe(f"{server}+{own}")


@pytest.mark.parametrize("server", ["dual", "oldweb"])
def test_a_server_over_http_that_is_restarted_is_subscribed_to_again(site: Site, server: str) -> None:
    for name, client in site.clients.items():
        assert "done" in client.subscribe(f"{server}+memo://{name}/again")
    with site.over_http[server] as again:
        again.__exit__()
        again.__enter__()
        for name, client in site.clients.items():
            until(client, f"{server}+memo://{name}/again")
            touch(client, server, f"memo://{name}/again")
            until(client, f"{server}+memo://{name}/again")


def test_what_cannot_be_subscribed_to_is_answered_in_the_words_of_the_revision(site: Site) -> None:
    legacy, modern = site.clients["py1"], site.clients["py2-modern"]
    assert legacy.subscribe("nobody+memo://x")["error"]["code"] == -32002
    assert "not this one" in legacy.subscribe("old+memo://refused")["error"]["message"]
    assert modern.subscribe("nobody+memo://x") == {"done": []}


def test_a_client_that_does_not_read_is_cut_off_and_the_others_are_served(site: Site) -> None:
    client, own, count = site.clients["py2-legacy"], "memo://flood", 1300
    address = json.loads(site.process.config.read_text())["listen"]["mcp"]  # nobody in between reads for it
    assert "done" in client.subscribe("shared+memo://alive")
    before = streams_of(site)
    with slow_reader(f"http://{address}/mcp", [f"shared+{own}"]) as slow:
        assert client.call("shared__flood", uri=own, count=count)["done"][0] is False
        touch(client, "shared", "memo://alive")
        assert until(client, "shared+memo://alive") == []
        give_up = time.monotonic() + 60
        while streams_of(site) > before:  # who reads before that may be in time, and is told of everything
            assert time.monotonic() < give_up
            time.sleep(0.05)
        seen = len(rest_of(slow))
    assert 0 < seen < count * 4000


def streams_of(site: Site) -> float:
    lines = site.process.get("/metrics")[1].splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("sluice_streams_open"))


@contextmanager
def slow_reader(url: str, uris: list[str]) -> Iterator[socket.socket]:
    """A client of 2026-07-28 that reads the acknowledgement, and then nothing."""
    where = urlsplit(url)
    params = {"notifications": {"resourceSubscriptions": uris}, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": params}).encode()
    head = (
        f"POST {where.path} HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nMCP-Protocol-Version: {MODERN}\r\n"
        f"Mcp-Method: subscriptions/listen\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        link.settimeout(20)
        link.connect((where.hostname, where.port))
        link.sendall(head.encode() + body)
        seen = b""
        while b"acknowledged" not in seen:
            seen += link.recv(1024)
        assert uris[0].encode() in seen + link.recv(1024)
        yield link


def rest_of(link: socket.socket) -> bytes:
    seen = b""
    try:
        while data := link.recv(65536):
            seen += data
    except ConnectionResetError:
        pass
    return seen
