"""What a place for records or checkpoints answers beside a status is neither kept nor sent back to it."""

import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

import httpx
import pytest
from waiting import until_so

from sluicegate.audit import posting
from sluicegate.audit.chain import Link
from sluicegate.audit.publish import _send
from sluicegate.audit.settings import SinkSettings
from sluicegate.audit.sinks import open_channel

MANY = 256 * 1024 * 1024
RECORD = [(Link("w", 1, 1, "", "intent", "", ""), b"{}")]


@dataclass
class Place:
    """Answers 200 with cookies and a body without end."""

    url: str = ""
    sent: int = 0
    hung_up: int = 0
    heads: list[bytes] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                self._answer(listener.accept()[0])

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(65_536)
            self.heads.append(head)
            cookie = b"x" * 3_000
            connection.sendall(b"HTTP/1.1 200 OK\r\nset-cookie: a=%b\r\ntransfer-encoding: chunked\r\n\r\n" % cookie)
            try:
                while self.sent < MANY:
                    connection.sendall(b"10000\r\n%b\r\n" % (b"z" * 0x10000))
                    self.sent += 0x10000
            except OSError:
                self.hung_up += 1


@pytest.fixture
def place() -> Iterator[Place]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        made = Place(f"http://127.0.0.1:{listener.getsockname()[1]}/in")
        thread = threading.Thread(target=made.serve, args=(listener,), daemon=True)
        thread.start()
        yield made
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.mark.parametrize("location", [b"mailto:x", b"urn:a:b", b"http:x", b"/elsewhere"])
@pytest.mark.parametrize("kind", ["sink", "checkpoints"])
def test_a_redirect_is_a_failure_that_its_thread_outlives_wherever_it_leads(kind: str, location: bytes) -> None:
    """httpx takes apart where a redirect leads, and raises what nobody expects: the thread ended, and sent no more."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_redirect, args=(listener, location))
        answering.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/in"
        channel = open_channel(SinkSettings("s", url))
        with pytest.raises(httpx.HTTPError):
            channel.send(RECORD) if kind == "sink" else _send(url, b"{}")
        channel.close()
        answering.join()


@pytest.mark.parametrize("piece", [b"HTTP/1.1 100 Continue\r\n\r\n" * 100, b"HTTP/1.1 200 OK\r\nx: y\r\n"])
@pytest.mark.parametrize("kind", ["sink", "checkpoints"])
def test_a_place_whose_answer_never_begins_keeps_no_thread(
    kind: str, piece: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each read brought something, so that no time and no size bounded the answer as a whole."""
    monkeypatch.setattr(posting, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        was_left: list[bool] = []
        answering = threading.Thread(target=lambda: was_left.append(_is_left(listener, piece)))
        answering.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/in"
        channel = open_channel(SinkSettings("s", url))
        with pytest.raises(httpx.HTTPError):
            channel.send(RECORD) if kind == "sink" else _send(url, b"{}")
        channel.close()
        answering.join()
        assert was_left == [True]


def _is_left(listener: socket.socket, piece: bytes) -> bool:
    """Whether the other side hangs up, and does not listen for far too long."""
    connection = listener.accept()[0]
    with connection:
        connection.settimeout(0.01)
        try:
            connection.sendall(piece)
            for _ in range(500):
                with suppress(TimeoutError):
                    if not connection.recv(65_536):
                        return True
                connection.sendall(piece if b"100" in piece else b"x: y\r\n")
        except OSError:
            return True
    return False


def _redirect(listener: socket.socket, location: bytes) -> None:
    connection = _asked(listener)
    with connection:
        connection.sendall(b"HTTP/1.1 302 Found\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % location)


def _asked(listener: socket.socket) -> socket.socket:
    """A connection by which a record came."""
    connection, received = listener.accept()[0], b""
    while b"{}" not in received:
        received += connection.recv(65_536)
    return connection


@pytest.mark.parametrize("kind", ["sink", "checkpoints"])
def test_an_answer_whose_body_comes_slowly_or_never_is_an_arrival(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records had arrived, and were sent again and again."""
    monkeypatch.setattr(posting, "TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        answering = threading.Thread(target=_answer_and_wait, args=(listener,))
        answering.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/in"
        channel = open_channel(SinkSettings("s", url))
        channel.send(RECORD) if kind == "sink" else _send(url, b"{}")
        channel.close()
        answering.join()


def _answer_and_wait(listener: socket.socket) -> None:
    connection = _asked(listener)
    with connection:
        connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        connection.recv(1)


def _answer(listener: socket.socket) -> socket.socket:
    connection = _asked(listener)
    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    return connection


@pytest.mark.parametrize("place", ["127.0.0.1:65536", "127.0.0.1:99999", "localhost:99999"])
@pytest.mark.parametrize("kind", ["sink", "checkpoints"])
def test_a_port_that_does_not_exist_is_a_failure_that_its_thread_outlives(kind: str, place: str) -> None:
    channel = open_channel(SinkSettings("s", f"http://{place}/in"))
    with pytest.raises(httpx.HTTPError):
        channel.send(RECORD) if kind == "sink" else _send(f"http://{place}/in", b"{}")
    channel.close()


def test_a_place_that_hung_up_between_two_batches_gets_the_second_one_on_a_new_connection() -> None:
    """No event loop runs between batches, so that nobody had heard it."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(5.0)
        channel = open_channel(SinkSettings("s", f"http://127.0.0.1:{listener.getsockname()[1]}/in"))
        for _ in range(2):
            answering = pool.submit(_answer, listener)
            channel.send(RECORD)
            answering.result().close()
        channel.close()


def test_the_credentials_of_a_url_are_sent_as_such(place: Place) -> None:
    channel = open_channel(SinkSettings("s", place.url.replace("://", "://me:p%40ss@"), {"Authorization": "Other"}))
    channel.send(RECORD)
    channel.close()
    assert re.findall(rb"(?i)\r\nauthorization: ([^\r]+)", place.heads[0]) == [b"Basic bWU6cEBzcw=="]


@pytest.mark.parametrize("kind", ["sink", "checkpoints"])
def test_an_answer_without_end_is_an_arrival_and_is_not_read(place: Place, kind: str) -> None:
    channel = open_channel(SinkSettings("s", place.url))
    for _ in range(2):
        if kind == "sink":
            channel.send(RECORD)
        else:
            _send(place.url, b"{}")
    channel.close()
    until_so(lambda: place.hung_up == 2)
    assert place.sent < MANY / 8
    assert [re.findall(rb"(?i)\r\ncookie:", head) for head in place.heads] == [[], []]
