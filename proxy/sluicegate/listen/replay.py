"""What a legacy session's streams sent and still have to send, so that a client can resume. Pure.

2025-11-25 basic/transports#resumability-and-redelivery: ids are unique in the session and name the stream;
only that stream's later messages are sent again. Every memory here is bounded in bytes or by its subjects.
"""

import re
from collections import Counter, OrderedDict, deque
from typing import Final, NamedTuple

from sluicegate.listen.http_exchange import event
from sluicegate.protocol.jsonrpc import Message, Notification, Request, RequestId, encode

PUSH: Final = 0  # the stream number of the session's own GET stream
_MAX_SUBJECTS: Final = 1_000
_MAX_BYTES: Final = 256 * 1024
_ABOUT: Final = ("uri", "requestId", "elicitationId", "taskId")
_EVENT_ID: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")


def event_id(stream: int, number: int) -> str:
    return f"{stream}-{number}"


def parse_id(text: bytes) -> tuple[int, int] | None:
    """Stream and number of an event id of ours."""
    found = _EVENT_ID.fullmatch(text.decode("latin-1"))
    return (int(found[1]), int(found[2])) if found else None


def priming(stream: int, number: int, retry: int) -> bytes:
    """An id before there is a message (2025-11-25, SEP-1699); older clients would parse the empty data."""
    return b"id: %b\nretry: %d\ndata: \n\n" % (event_id(stream, number).encode(), retry)


class ReplayBuffer:
    """The events of one request's stream. The oldest go first when there are too many; the response stays."""

    __slots__ = ("_events", "bytes", "last", "stream")

    def __init__(self, stream: int) -> None:
        self.stream = stream
        self.bytes = 0
        self.last = 0
        self._events: deque[tuple[int, bytes]] = deque()

    def add(self, data: bytes, bound: int) -> bytes:
        """Makes the event for `data`, and remembers it."""
        while self._events and self.bytes + len(data) > bound:
            self.bytes -= len(self._events.popleft()[1])
        self.last += 1
        frame = event(data, event_id(self.stream, self.last))
        self._events.append((self.last, frame))
        self.bytes += len(frame)
        return frame

    def after(self, number: int) -> list[bytes]:
        return [frame for at, frame in self._events if at > number]


class _Subject(NamedTuple):
    """What a message is about. Of lower `rank` goes first: what is said, then what was updated, then changed lists."""

    rank: int
    server: str
    method: str
    about: RequestId | None = None


class _Entries:
    """The newest message of each subject, encoded, with its number. Where there are too many, or too many bytes, what
    was said goes before what has changed: the oldest of the server that has most. The last one stays, whatever its
    size."""

    __slots__ = ("_groups", "_sizes", "all", "bytes")

    def __init__(self) -> None:
        self.all: OrderedDict[_Subject, tuple[int, bytes]] = OrderedDict()
        self.bytes = 0
        self._groups: dict[tuple[int, str], dict[_Subject, None]] = {}  # by rank and server
        self._sizes = Counter[tuple[int, str]]()

    def put(self, subject: _Subject, number: int, data: bytes) -> None:
        group, more = subject[:2], len(data) - len(self.all.get(subject, (0, b""))[1])
        self.all[subject] = (number, data)
        self._groups.setdefault(group, {})[subject] = None
        self.bytes += more
        self._sizes[group] += more
        while len(self.all) > 1 and (len(self.all) > _MAX_SUBJECTS or self.bytes > _MAX_BYTES):
            self.drop(self._first_to_go())

    def _first_to_go(self) -> _Subject:
        group = min(self._groups, key=lambda group: (group[0], -self._sizes[group]))
        return next(iter(self._groups[group]))

    def drop(self, subject: _Subject) -> None:
        if (held := self.all.pop(subject, None)) is None:
            return
        group, size = subject[:2], len(held[1])
        self.bytes -= size
        self._sizes[group] -= size
        del self._groups[group][subject]
        if not self._groups[group]:
            del self._groups[group], self._sizes[group]


class PushQueue:
    """What the GET stream has to say: one entry a subject, the newest. A change told twice is told once, so a
    client that never opens its stream costs one entry for each list, and no queue. A question is its own subject."""

    __slots__ = ("_due", "_sent", "last")

    def __init__(self) -> None:
        self._due, self._sent = _Entries(), _Entries()
        self.last = 0

    def put(self, message: Message, server: str = "") -> None:
        """`server` is the one that says it."""
        self._due.put(_subject(message, server), 0, encode(message))

    def forget(self, message: Message, server: str = "") -> None:
        """Drops an event that is not to be sent, or not again."""
        subject = _subject(message, server)
        self._due.drop(subject)
        self._sent.drop(subject)

    def rewind(self, number: int) -> None:
        """What was sent after that event is due again: it went into a connection that broke."""
        for subject, (at, data) in self._sent.all.items():
            if at > number and subject not in self._due.all:
                self._due.put(subject, 0, data)

    def take(self) -> tuple[str, bytes] | None:
        """Returns event id and data of the next entry, and counts it as sent."""
        if not self._due.all:
            return None
        subject, (_, data) = next(iter(self._due.all.items()))
        self._due.drop(subject)
        self.last += 1
        self._sent.drop(subject)
        self._sent.put(subject, self.last, data)  # in the order of sending
        return event_id(PUSH, self.last), data


def _subject(message: Message, server: str) -> _Subject:
    """A question and its withdrawal are told one by one; of what changed, only the last time counts."""
    if isinstance(message, Request):
        return _Subject(0, server, "request", message.id)
    assert isinstance(message, Notification)
    key = next((key for key in _ABOUT if key in message.params), None)
    if key is None:
        return _Subject(2, server, message.method)
    return _Subject(int(key == "uri"), server, message.method, str(message.params[key]))
