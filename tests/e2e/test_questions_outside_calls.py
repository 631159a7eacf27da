"""What servers ask outside of any call: of whom, in which form, and how many at once."""

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.desktop_clients import SERVER, Desktop
from e2e.sluice_process import stdio_command
from policy_bed import bearer, bed, client_keys, recorder
from waiting import until_so

Json = dict[str, Any]
PESTERING = str(Path(__file__).parent / "pestering_server.py")
ME: Json = {"name": "c", "version": "1"}
EVERYTHING: Json = {"sampling": {"context": {}}, "elicitation": {"form": {}}, "roots": {"listChanged": True}}
HELLO: Json = {"protocolVersion": "2025-11-25", "capabilities": EVERYTHING, "clientInfo": ME}
ANSWERS: Json = {
    "sampling/createMessage": {"role": "assistant", "model": "m", "content": {"type": "text", "text": "SECRET"}},
    "elicitation/create": {"action": "accept", "content": {"name": "SECRET"}},
    "roots/list": {"roots": [{"uri": "file:///SECRET"}]},
}


def pestering(folder: Path, key: str, pause: float = 0.1) -> Json:
    return {"command": sys.executable, "args": [PESTERING, str(folder / key), str(pause)], "era": "legacy"}


def heard(folder: Path, key: str) -> list[Json]:
    file = folder / key
    return [json.loads(line) for line in file.read_text().split("\n")[:-1]] if file.exists() else []


def secrets(folder: Path, key: str) -> int:
    """How many answers that server has got of the client."""
    return secrets_in(heard(folder, key))


def secrets_in(lines: list[Json]) -> int:
    return json.dumps(lines).count("SECRET")


class Sink:
    """What a client was asked. It answers everything unless it is `mute`."""

    def __init__(self, send: Any, mute: bool = False) -> None:
        self.asked: list[Json] = []
        self._send, self._mute = send, mute

    def take(self, message: Json) -> None:
        if message.get("method") in ANSWERS:
            self.asked.append(message)
            if not self._mute:
                self._send(id=message["id"], result=ANSWERS[message["method"]])

    def of(self, method: str) -> list[Json]:
        return [message["params"] for message in self.asked if message["method"] == method]


class PipePeer(Desktop):
    """A legacy client on a pipe that hands what it is asked to its sink, whatever it waits for."""

    def __init__(self, command: list[str], mute: bool) -> None:
        super().__init__(command, "c")
        self.sink = Sink(self.send, mute)

    def hear(self) -> Json:
        message = super().hear()
        self.sink.take(message)
        return message

    def hear_until(self, condition: Callable[[], bool]) -> None:
        until_so(lambda: condition() or (self.hear() and condition()), 30, self.said)


@contextmanager
def desktop(folder: Path, rows: str, servers: Json, mute: bool = False, **config: Any) -> Iterator[PipePeer]:
    (folder / "policy.csv").write_text(rows)
    settings = {"servers": servers, "policy": {"files": ["policy.csv"]}, "clients": {"local": {"roles": []}}, **config}
    client = PipePeer(stdio_command(settings, folder), mute)
    try:
        assert "result" in client.ask("initialize", **HELLO)
        client.send(method="notifications/initialized")
        yield client
    finally:
        client.close()


_PEERS: "list[HttpPeer]" = []


@pytest.fixture(autouse=True)
def closed_peers() -> Iterator[None]:
    """Their streams end with the Sluice of the test."""
    yield
    while _PEERS:
        _PEERS.pop().close()


class HttpPeer:
    """A legacy client over Streamable HTTP or over HTTP+SSE, whose stream is read by a thread."""

    def __init__(self, url: str, transport: str) -> None:
        self._headers = {"Accept": "application/json, text/event-stream", **bearer("ann")}
        self._url, self._http, self._ids = url, httpx.Client(timeout=60), iter(range(1, 1000))
        self._heard: dict[int, Json] = {}
        self._threads: list[threading.Thread] = []
        _PEERS.append(self)
        self._is_sse, self._endpoint = transport == "sse", threading.Event()
        self.sink, self.methods, self.pages = Sink(self.tell), list[str](), list[str]()
        if self._is_sse:
            self.listen(url.removesuffix("/mcp") + "/sse")
            assert self._endpoint.wait(20)
        self.ask("initialize", **HELLO)
        self.tell(method="notifications/initialized")

    def listen(self, url: str = "") -> None:
        self._threads.append(threading.Thread(target=self._follow, args=(url or self._url,), daemon=True))
        self._threads[-1].start()

    def _follow(self, url: str) -> None:
        headers = self._headers | {"Accept": "text/event-stream"}
        with suppress(httpx.HTTPError), httpx.stream("GET", url, headers=headers, timeout=60) as stream:
            for line in stream.iter_lines():
                data = line.removeprefix("data:").strip() if line.startswith("data:") else ""
                if data.startswith("{"):
                    message = json.loads(data)
                    self._heard[message.get("id")] = message
                    self.methods.append(message.get("method"))
                    if message.get("method") == "notifications/elicitation/complete":
                        self.pages.append(message["params"]["elicitationId"])
                    self.sink.take(message)
                elif data:
                    self._url = str(httpx.URL(self._url).join(data))
                    self._endpoint.set()

    def tell(self, **message: Any) -> httpx.Response:
        answer = self._http.post(self._url, json={"jsonrpc": "2.0", **message}, headers=self._headers)
        if "mcp-session-id" in answer.headers:
            self._headers["Mcp-Session-Id"] = answer.headers["mcp-session-id"]
        return answer

    def ask(self, method: str, **params: Any) -> Json:
        id = next(self._ids) + 10_000_000
        answer = self.tell(id=id, method=method, params=params)
        if self._is_sse:
            until_so(lambda: id in self._heard)
            return self._heard[id]
        message: Json = answer.json()
        return message

    def close(self) -> None:
        self._http.close()
        for thread in self._threads:
            thread.join(60)

    def call(self, name: str) -> str:
        return json.dumps(self.ask("tools/call", name=name, arguments={}))


# ---------------------------------------------------------------- whom


def test_a_server_without_a_right_asks_no_client_on_a_pipe_and_learns_nothing_of_it(tmp_path: Path) -> None:
    servers = {"evil": pestering(tmp_path, "evil"), "good": pestering(tmp_path, "good")}
    with desktop(tmp_path, "p, local, good, *, *, allow\n", servers) as client:
        sink = client.sink
        assert client.tools() == {"good__t"}
        client.hear_until(lambda: len(sink.asked) >= 30 and len(heard(tmp_path, "evil")) >= 10)
    assert not [params for params in sink.of("elicitation/create") if "[evil]" in params["message"]]
    assert secrets(tmp_path, "good") and not secrets(tmp_path, "evil")
    assert {"declared": {}} in heard(tmp_path, "evil")
    assert all(not message.get("declared") for message in heard(tmp_path, "evil"))


@pytest.mark.parametrize("transport", ["streamable", "sse"])
def test_a_server_asks_no_more_once_its_client_has_lost_the_right(tmp_path: Path, transport: str) -> None:
    servers = {"evil": pestering(tmp_path, "evil"), "good": pestering(tmp_path, "good")}
    keys = {"keys": client_keys(ann=[])}
    with bed(tmp_path, "p, key:ann, *, *, *, allow\n", servers, clients=keys) as made:
        peer = HttpPeer(made.process.url, transport)
        if transport == "streamable":
            peer.listen()
        for key in servers:
            assert "done" in peer.call(f"{key}__t")
        made.until(lambda: secrets(tmp_path, "evil") > 5 and secrets(tmp_path, "good") > 5)
        made.write("p, key:ann, good, *, *, allow\n")
        made.until(lambda: "done" not in peer.call("evil__t"))
        time.sleep(1)  # what was answered before is on its way
        asked = len(peer.sink.asked)
        lines, good = len(heard(tmp_path, "evil")), secrets(tmp_path, "good")
        made.until(lambda: len(heard(tmp_path, "evil")) > lines + 10 and secrets(tmp_path, "good") > good + 10)
        assert not [one for one in peer.sink.asked[asked:] if "[evil]" in one["params"].get("message", "")]
        later = heard(tmp_path, "evil")[lines:]  # read once: it goes on
        told = [one.get("result", {}).get("roots") for one in later]
        assert secrets_in(later) == sum(1 for roots in told if roots), "but roots that it had before"


def test_an_answer_that_comes_after_the_right_is_lost_does_not_go_down(tmp_path: Path) -> None:
    servers = {"evil": pestering(tmp_path, "evil")}
    with bed(tmp_path, "p, key:ann, *, *, *, allow\n", servers, clients={"keys": client_keys(ann=[])}) as made:
        peer = HttpPeer(made.process.url, "streamable")
        peer.sink = Sink(peer.tell, mute=True)
        peer.listen()
        assert "done" in peer.call("evil__t")
        made.until(lambda: len(peer.sink.asked) >= 3)
        made.write("p, key:ann, other, *, *, allow\n")
        made.until(lambda: "done" not in peer.call("evil__t"))
        lines = len(heard(tmp_path, "evil"))
        for message in peer.sink.asked:
            peer.tell(id=message["id"], result=ANSWERS[message["method"]])
        made.until(lambda: len(heard(tmp_path, "evil")) > lines + 3)
        assert not secrets(tmp_path, "evil")


# ---------------------------------------------------------------- in which form


def test_what_is_asked_has_the_members_of_its_own_kind_alone(tmp_path: Path) -> None:
    with desktop(tmp_path, "p, local, *, *, *, allow\n", {"odd": pestering(tmp_path, "odd")}) as client:
        sink = client.sink
        assert client.tools() == {"odd__t"}
        client.hear_until(lambda: bool(sink.of("elicitation/create") and sink.of("sampling/createMessage")))
    assert all(params.keys() == {"message", "requestedSchema"} for params in sink.of("elicitation/create"))
    assert all(params.keys() == {"maxTokens", "messages"} for params in sink.of("sampling/createMessage"))
    messages = [message for params in sink.of("sampling/createMessage") for message in params["messages"]]
    assert all(message["content"] == {"type": "text", "text": "?"} for message in messages)


# ---------------------------------------------------------------- how many


ROWS = "p, local, *, *, *, allow\np2, local, bank, *, *, confirm\n"
HOLD: Json = {"hold_for": "1s"}
MANY: Json = {"pending_approvals": 30}


def test_servers_that_ask_without_end_leave_room_for_others_and_for_sluice(tmp_path: Path) -> None:
    servers = {key: pestering(tmp_path, key, 0.02) for key in ("loud1", "loud2")}
    servers |= {"bank": recorder(tmp_path, "bank", tools=["pay"]) | {"sharing": "session"}, "asking": SERVER}
    with desktop(tmp_path, ROWS, servers, mute=True) as client:
        assert {"bank__pay", "asking__name", "loud1__t", "loud2__t"} <= client.tools()
        sink = client.sink
        client.hear_until(lambda: len(sink.asked) >= 10)
        time.sleep(1)  # they fill what they can
        client.begin("tools/call", name="bank__pay", arguments={})
        client.begin("tools/call", name="asking__name", arguments={})
        client.hear_until(lambda: "Who are you?" in json.dumps(sink.asked) and "Sluice asks" in json.dumps(sink.asked))


def test_a_call_whose_approval_cannot_be_asked_for_is_pending(tmp_path: Path) -> None:
    """With an approval's id, as for a client that cannot be asked."""
    servers = {"bank": recorder(tmp_path, "bank", tools=["pay"]) | {"sharing": "session"}}
    with desktop(tmp_path, ROWS, servers, mute=True, approvals=HOLD, limits=MANY) as client:
        assert client.tools() == {"bank__pay"}
        for number in range(20):
            client.begin("tools/call", name="bank__pay", arguments={"number": number})
            assert client.hear()["method"] == "elicitation/create"
        end = client.ask("tools/call", name="bank__pay", arguments={"number": 20})["result"]
    assert end["_meta"]["dev.sluice/reason"] == "approval_pending" and "NOT EXECUTED" in end["content"][0]["text"]
    assert end["_meta"]["dev.sluice/approval"]["id"]


# ---------------------------------------------------------------- what waits for a stream

QUEUEING = '''
import json, sys, threading
tools, lock = ["go"], threading.Lock()
def send(**message):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def visited(id):
    send(method="notifications/elicitation/complete", params={"elicitationId": id})
def later():
    if sys.argv[1] == "good":
        tools.append("new")
        send(method="notifications/tools/list_changed")
    else:
        for number in range(400):
            visited(f"{number}" + "x" * int(sys.argv[2]))
        visited("last")
for line in sys.stdin:
    message, result = json.loads(line), {}
    if "id" not in message or "method" not in message:
        continue
    if message["method"] == "initialize":
        about = {"serverInfo": {"name": "s", "version": "1"}, "capabilities": {"tools": {"listChanged": True}}}
        result = {"protocolVersion": "2025-11-25", **about}
    elif message["method"] == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}
    elif message["method"] == "tools/call":
        result = {"content": [{"type": "text", "text": "ok"}]}
    send(id=message["id"], result=result)
    if message["method"] == "tools/call":
        threading.Timer(0.3, later).start()
'''


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_what_a_server_says_pushes_out_nothing_that_has_changed(tmp_path: Path, size: int) -> None:
    (tmp_path / "server.py").write_text(QUEUEING)
    start, more = [str(tmp_path / "server.py")], {"command": sys.executable, "era": "legacy", "pin": "off"}
    servers = {key: {**more, "args": [*start, key, str(size)]} for key in ("good", "evil")}
    with bed(tmp_path, "p, key:ann, *, *, *, allow\n", servers, clients={"keys": client_keys(ann=[])}) as made:
        peer = HttpPeer(made.process.url, "streamable")
        assert "ok" in peer.call("good__go")
        made.until(lambda: "good__new" in json.dumps(peer.ask("tools/list")))
        assert "ok" in peer.call("evil__go")
        time.sleep(2)  # all of it waits for the stream, and nobody sees that
        peer.listen()
        until_so(lambda: "notifications/elicitation/complete" in peer.methods)
        until_so(lambda: "notifications/tools/list_changed" in peer.methods, 5)
        assert all(id.startswith("evil:") for id in peer.pages), "or it could end a page of the other"


def test_a_server_that_is_alone_has_its_own_ids_of_pages(tmp_path: Path) -> None:
    (tmp_path / "server.py").write_text(QUEUEING)
    alone = {"command": sys.executable, "args": [str(tmp_path / "server.py"), "evil", "0"], "era": "legacy"}
    servers = {"evil": {**alone, "prefix": ""}}
    with bed(tmp_path, "p, key:ann, *, *, *, allow\n", servers, clients={"keys": client_keys(ann=[])}) as made:
        peer = HttpPeer(made.process.url, "streamable")
        peer.listen()
        assert "ok" in peer.call("go")
        until_so(lambda: "last" in peer.pages)
