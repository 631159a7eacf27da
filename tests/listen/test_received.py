"""What is kept of a connection is exactly what its next request begins with, however bytes and answers came."""

import pytest

from sluicegate.listen.http1 import UnansweredBytes


def request(number: int, size: int, chunked: bool = False) -> bytes:
    body = b"%d" % (number % 10) * size
    if chunked:
        half = size // 2
        parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
        return b"POST /%d HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % (number, parts)
    return b"POST /%d HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (number, size, body)


@pytest.mark.parametrize("step", [1, 7, 64, 10_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_what_was_answered_is_left_out(step: int, chunked: bool) -> None:
    requests = [request(number, number * 13, chunked) for number in range(5)]
    data = b"".join(requests)
    for answered in range(5):
        received = UnansweredBytes()
        for at in range(0, len(data), step):
            received.add(data[at : at + step])
        for _ in range(answered):
            received.answered(rests=False)
        assert received.rest() == b"".join(requests[answered:])


def test_what_comes_after_a_rest_is_all_there_is() -> None:
    received = UnansweredBytes()
    received.add(request(1, 10))
    received.answered(rests=True)
    assert received.rest() == b""
    received.begin(b"GET / HT")
    received.add(b"TP/1.1\r\n")
    assert received.rest() == b"GET / HTTP/1.1\r\n"


def test_a_client_that_never_waits_for_an_answer_is_not_remembered_for_ever() -> None:
    received, one = UnansweredBytes(), request(7, 1_000)
    received.add(one)
    for _ in range(1_000):
        received.add(one)
        received.answered(rests=False)
    assert received.rest() == one
    assert int(repr(received).removeprefix("UnansweredBytes(").split()[0]) < 100_000


def test_what_is_no_request_is_kept_as_it_came() -> None:
    received = UnansweredBytes()
    received.add(request(1, 5) + b"nonsense\r\n")
    received.answered(rests=False)
    assert received.rest() == b"nonsense\r\n"


@pytest.mark.parametrize("step", [1_000, 50_000, 300_000])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_comes_after_its_answer_is_no_request(step: int, chunked: bool) -> None:
    """A large one is not kept, and then nobody can say where in the same bytes the next request begins."""
    first, second = request(1, 200_000, chunked), request(2, 10)
    data = first[1_000:] + second
    received = UnansweredBytes()
    received.add(first[:1_000])
    received.answered(rests=False)
    for at in range(0, len(data), step):
        received.add(data[at : at + step])
        assert int(repr(received).removeprefix("UnansweredBytes(").split()[0]) < 100_000
    assert received.rest() in (None, second)
    received.answered(rests=True)
    received.begin(second)
    assert received.rest() == second


def test_a_large_body_that_is_for_us_is_not_kept_a_second_time() -> None:
    received, large, next_ = UnansweredBytes(), request(1, 1_000_000), request(2, 10)
    received.add(large[:1_000])
    received.stays()
    for at in range(1_000, len(large), 50_000):
        received.add(large[at : at + 50_000])
        assert int(repr(received).removeprefix("UnansweredBytes(").split()[0]) < 100_000
    received.add(next_)
    assert received.rest() is None, "whose it is nobody can say by then"
    received.answered(rests=True)
    received.begin(large[:1_000])
    received.add(large[1_000:])
    assert received.rest() == large, "that may be for another worker"
