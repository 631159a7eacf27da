"""The event stream format: however it is cut, the same events come out."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.downstream.settings import TooLarge
from proxy.downstream.sse import Events, Place

STREAM = (
    b"\xef\xbb\xbf: comment\r\nretry: 250\r\nid: 1\r\ndata:\r\n\r\n"
    b'event: message\ndata: {"a":\ndata: 1}\n\n'
    b"event: endpoint\rdata: /x\r\r"
    b"id: 2\nid: bad\0\ndata:no blank\nunknown: x\n\n\n\n"
    b"data:  two blanks\r\n\r\n"
    b"data: never finished\n"
)
FOUND = [b'{"a":\n1}', b"no blank", b" two blanks"]


@given(st.lists(st.integers(0, len(STREAM))))
def test_events_are_the_same_however_the_stream_was_cut(cuts: list[int]) -> None:
    place = Place()
    events = Events(place, 1000)
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[start:end] for start, end in pairwise(edges) if start < end]
    if len(parts[0]) < 3:  # a byte order mark is looked for in the first chunk
        parts = [STREAM]
    assert [data for part in parts for data in events.feed(part)] == [*FOUND]
    assert place == Place("2", 0.25, "/x")


def test_an_event_without_data_is_none_but_its_id_counts() -> None:
    place = Place()
    assert Events(place, 100).feed(b"id: 7\ndata\n\n") == [] and place.id == "7"


def test_an_event_that_never_ends_is_too_large() -> None:
    events = Events(Place(), 100)
    events.feed(b"data: " + b"x" * 90)
    with pytest.raises(TooLarge):
        events.feed(b"x" * 10)


def test_keep_alives_fill_nothing_up() -> None:
    events = Events(Place(), 100)
    for _ in range(1000):
        assert events.feed(b": still here\n\n") == []
    for _ in range(1000):
        assert events.feed(b":\n") == []
