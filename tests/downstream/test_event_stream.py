"""The event stream format: however it is cut, the same events come out."""

from itertools import pairwise

import httpx
import pytest
from httpx_sse import EventSource
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.downstream.session.change_streams import ACKNOWLEDGED, ChangeStream
from sluicegate.downstream.transport import http_transport
from sluicegate.http.sse import EventParser, EventTooLarge, StreamPosition
from sluicegate.protocol.jsonrpc import Notification

STREAM = (
    b"\xef\xbb\xbf: comment\r\nretry: 250\r\nid: 1\r\ndata:\r\n\r\n"
    b'event: message\ndata: {"a":\ndata: 1}\n\n'
    b"event: endpoint\rdata: /x\r\r"
    b"id: 2\nid: bad\0\ndata:no blank\nunknown: x\n\n\n\n"
    b"data:  two blanks\r\n\r\n"
    b"retry: -1\nretry: 1_0\nretry:\ndata: no \xff text \xe2\x80\xa8\x85\x0b\n\n"
    b"data: never finished\n"
)
FOUND = [b'{"a":\n1}', b"no blank", b" two blanks", b"no \xff text \xe2\x80\xa8\x85\x0b"]


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut for cut in cuts if cut <= len(stream)), len(stream)]
    return [stream[start:end] for start, end in pairwise(edges)]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_stream_was_cut(cuts: list[int]) -> None:
    place = StreamPosition()
    events = EventParser(place, 1000, takes_endpoint=True)
    assert [data for part in pieces(STREAM, cuts) for data in events.feed(part)] == [*FOUND]
    assert place == StreamPosition("2", 0.25, "/x")


LINES = st.lists(
    st.builds(
        bytes.__add__,
        st.sampled_from([b"", b"data", b"data:", b"data: ", b"event: ", b"id", b"id: ", b"retry: ", b":", b"x"])
        .flatmap(lambda name: st.binary(max_size=3).map(name.__add__)),
        st.sampled_from([b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b"\r\n\r\n"]),
    )
)  # fmt: skip


@given(LINES.map(b"".join), st.lists(st.integers(0, 60)))
def test_the_events_are_those_that_httpx_sse_finds(stream: bytes, cuts: list[int]) -> None:
    stream += b"data: end\n\n:"  # an event says which id is in force, and what follows a CR shows that it ends a line
    whole = httpx.Response(200, headers={"content-type": "text/event-stream; charset=latin-1"}, content=stream)
    expected = list(EventSource(whole).iter_sse())
    place = StreamPosition()
    events = EventParser(place, 1000)
    found = [data for part in pieces(stream, cuts) for data in events.feed(part)]
    assert found == [one.data.encode("latin-1") for one in expected if one.event == "message" and one.data]
    assert place.id == expected[-1].id.encode("latin-1").decode("utf-8", "replace")


def test_the_place_of_a_stream_that_goes_on_stays_until_another_is_named() -> None:
    place = StreamPosition(id="é 1")
    events = EventParser(place, 100)
    assert events.feed(b"data: 1\n\n") == [b"1"] and place.id == "é 1"
    assert events.feed("id:  é\n\n".encode()) == [] and place.id == " é"
    assert events.feed(b"id\n\n") == [] and place.id == ""


@pytest.mark.parametrize(
    ("said", "seconds"), [(b"0", 0), (b"1500", 1.5), (b"9" * 400, 1e6), (b"9" * 9000, 1), (b"\xb2", 1), (b" 5", 1)]
)
def test_only_digits_say_when_to_come_back(said: bytes, seconds: float) -> None:
    place = StreamPosition()
    assert EventParser(place, 10_000).feed(b"retry: " + said + b"\n\n") == [] and place.retry == seconds


def test_an_event_without_data_is_none_but_its_id_counts() -> None:
    place = StreamPosition()
    assert EventParser(place, 100).feed(b"id: 7\ndata\n\n") == [] and place.id == "7"


def test_a_long_id_is_none() -> None:
    """Each event after it has it, and it is sent back in a header."""
    place = StreamPosition()
    events = EventParser(place, 10_000)
    events.feed(b"id: 7\ndata: 1\n\nid: " + b"x" * 2000 + b"\ndata: 2\n\n")
    assert place.id == "7"


def test_an_event_that_never_ends_is_too_large() -> None:
    events = EventParser(StreamPosition(), 100)
    events.feed(b"data: " + b"x" * 90)
    with pytest.raises(EventTooLarge):
        events.feed(b"x" * 10)


@pytest.mark.parametrize("cut", [1, 7, 1000])
def test_an_event_may_have_just_so_many_bytes(cut: int) -> None:
    def fed(size: int) -> list[bytes]:
        stream = b"data: " + b"x" * size + b"\ndata: 1\n\n"
        events = EventParser(StreamPosition(), 100)
        return [data for at in range(0, len(stream), cut) for data in events.feed(stream[at : at + cut])]

    assert fed(85) == [b"x" * 85 + b"\n1"]
    with pytest.raises(EventTooLarge):
        fed(86)


class _Counted(StreamPosition):
    """Counts the events that it was told of."""

    told = 0

    def __setattr__(self, name: str, value: object) -> None:
        if name == "id":
            type(self).told += 1
        super().__setattr__(name, value)


def test_an_empty_line_ends_an_event_only_where_there_is_one() -> None:
    """With an id in force each of 8,000 in a piece was an event of its own: 8 ms of the event loop."""
    events = EventParser(_Counted(), 10_000)
    assert events.feed(b"id: 7\ndata: 1\n\n") == [b"1"]
    before = _Counted.told
    assert events.feed(b"\n" * 8_000 + b"\r" * 100 + b": still here\n\n") == [] and _Counted.told == before
    assert events.feed(b"data: 2\n\n") == [b"2"] and _Counted.told == before + 1


def test_keep_alives_fill_nothing_up() -> None:
    events = EventParser(StreamPosition(), 100)
    for _ in range(1000):
        assert events.feed(b": still here\n\n") == []
    for _ in range(1000):
        assert events.feed(b":\n") == []


@pytest.mark.parametrize(("retry", "pause"), [(0.0, 0.1), (0.01, 0.1), (2.0, 2.0), (1e6, 60.0)])
def test_no_server_is_asked_for_its_streams_without_a_pause(retry: float, pause: float) -> None:
    assert http_transport._pause(StreamPosition(retry=retry)) == pause


async def test_a_stream_of_changes_is_acknowledged_once() -> None:
    """Each acknowledgement says of every resource that it may have changed: a server could say so all the time."""
    lives: list[bool] = []
    stream = ChangeStream({}, lambda wanted: None, lambda told: None, lives.append)  # type: ignore[arg-type,return-value]
    stream._is_again = True
    for _ in range(100):
        stream.hear(Notification(ACKNOWLEDGED, {"notifications": {}}))
    assert lives == [True]
