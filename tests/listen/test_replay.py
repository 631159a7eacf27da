"""What streams remember: bounded, and never the response."""

import sys

import pytest

from sluicegate.listen.replay import PushQueue, ReplayBuffer, parse_id, priming
from sluicegate.protocol.jsonrpc import Notification


def test_a_log_drops_its_oldest_events_and_keeps_the_last() -> None:
    log = ReplayBuffer(3)
    for n in range(100):
        log.add(b"%d" % n, 1000)
    assert log.bytes <= 1000 + 50
    assert log.after(98)[0].startswith(b"id: 3-99\n")
    response = log.add(b"x" * 5000, 1000)
    assert log.after(0) == [response] and log.last == 101


@pytest.mark.parametrize(
    ("text", "found"), [(b"1-2", (1, 2)), (b"0-0", (0, 0)), (b"1", None), (b"a-1", None), (b"1-2 ", None), (b"", None)]
)
def test_an_id_names_stream_and_event(text: bytes, found: tuple[int, int] | None) -> None:
    assert parse_id(text) == found
    assert priming(1, 2, 500) == b"id: 1-2\nretry: 500\ndata: \n\n"


def test_an_outbox_has_one_entry_a_subject() -> None:
    box = PushQueue()
    for _ in range(10):
        box.put(Notification("a", {}))
        box.put(Notification("u", {"uri": "x"}))
        box.put(Notification("u", {"uri": "y"}))
    assert [box.take(), box.take(), box.take()][0] == ("0-1", b'{"jsonrpc":"2.0","method":"a"}')
    assert box.take() is None


def test_an_outbox_can_go_back() -> None:
    box = PushQueue()
    for name in ("a", "b"):
        box.put(Notification(name, {}))
        box.take()
    box.rewind(1)
    assert box.take() == ("0-3", b'{"jsonrpc":"2.0","method":"b"}')
    box.rewind(0)
    assert box.take() is not None and box.take() is not None and box.take() is None


def test_an_outbox_is_bounded() -> None:
    box = PushQueue()
    for n in range(5000):
        box.put(Notification("u", {"uri": str(n)}))
        box.put(Notification("u", {"uri": f"due-{n}"}))
        box.take()
    taken = 0
    while box.take() is not None:
        taken += 1
    assert taken <= 1000


@pytest.mark.parametrize("is_sent", [False, True])
def test_an_outbox_is_bounded_in_bytes_but_the_newest_stays(is_sent: bool) -> None:
    box, large = PushQueue(), "x" * 200_000
    for n in range(100):
        box.put(Notification("u", {"uri": str(n), "more": large}))
        if is_sent:
            assert box.take() is not None
    box.rewind(0)
    assert box.take() is not None and box.take() is None
    box.put(Notification("u", {"uri": "huge", "more": large * 10}))
    assert box.take() is not None
    box.rewind(0)
    assert box.take() is not None and box.take() is None


def test_going_back_in_a_full_outbox_looks_at_few_entries_for_each_that_has_to_go() -> None:
    box, calls = PushQueue(), 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    for round in ("sent", "due"):
        for n in range(1000):
            box.put(Notification("done", {"elicitationId": f"{round} {n}"}), "evil")
        while round == "sent" and box.take() is not None:
            pass
    sys.setprofile(count)
    box.rewind(0)
    sys.setprofile(None)
    assert 1000 < calls < 50_000


def test_talk_goes_before_changes_and_first_that_of_whoever_has_most() -> None:
    box, changed = PushQueue(), Notification("notifications/tools/list_changed", {})
    box.put(changed)
    box.put(Notification("done", {"elicitationId": "mine"}), "good")
    for n in range(3000):
        box.put(Notification("updated", {"uri": f"a:{n}"}), "evil")
        box.put(Notification("done", {"elicitationId": f"{n}" + "x" * 1000}), "evil")
    found = []
    while (entry := box.take()) is not None:
        found.append(entry[1])
    assert b"list_changed" in found[0] and len(found) <= 1000 and sum(map(len, found)) <= 256 * 1024


def test_a_server_that_says_much_loses_its_own_words_first() -> None:
    box = PushQueue()
    box.put(Notification("done", {"elicitationId": "mine"}), "good")
    for n in range(3000):
        box.put(Notification("done", {"elicitationId": f"{n}" + "x" * 1000}), "evil")
    entry = box.take()
    assert entry is not None and b"mine" in entry[1]


def test_the_same_words_of_two_servers_are_two() -> None:
    box = PushQueue()
    for server in ("a", "b"):
        box.put(Notification("done", {"elicitationId": "1"}), server)
    box.forget(Notification("done", {"elicitationId": "1"}), "a")
    assert box.take() is not None and box.take() is None
