"""Messages that have begun and not ended, over all streams of one peer: what of them waits counts together.

Each message has its own bound, but a peer may have hundreds of streams, and leave a message unfinished on each. Where
they hold more than they may, the stream that holds the most ends: those with little do not suffer for it. Knows sizes;
holds no bytes itself.
"""

from math import inf
from typing import Final, Protocol
from weakref import WeakKeyDictionary, WeakSet

SMALL: Final = 16 * 1024
"""Bytes of an unfinished message that its stream has without a count."""
PART: Final = 64
"""Bytes that count for each part of a message, beside its own: a list of short texts takes more than they do."""


class TooMuchUnfinished(Exception):
    """The stream has to end. The text goes behind `the server sent`."""

    def __init__(self) -> None:
        super().__init__("more than it may leave unfinished on all its streams together")


class UnfinishedStream(Protocol):
    """One stream of the peer. It counts as long as somebody holds it."""

    def give_up(self) -> None:
        """Drops what it holds, and ends: another stream asked for more, and this one has the most."""


class Unfinished:
    """What one peer may leave unfinished: `most` bytes."""

    def __init__(self, most: float = inf) -> None:
        self.most = most
        self._held = WeakKeyDictionary[UnfinishedStream, int]()
        self._ended = WeakSet[UnfinishedStream]()

    @property
    def held(self) -> int:
        return sum(self._held.values())

    def hold(self, stream: UnfinishedStream, size: int) -> None:
        """The message that is coming on that stream has so many bytes by now. Raises `TooMuchUnfinished` where that
        stream has to end."""
        self.check(stream)
        self._held[stream] = size
        while self.held > self.most:
            largest = max(self._held, key=self._held.__getitem__)
            if self._held[largest] == size:
                largest = stream  # of several it is the one that asks for more
            del self._held[largest]
            self._ended.add(largest)
            if largest is stream:
                raise TooMuchUnfinished
            largest.give_up()

    def check(self, stream: UnfinishedStream) -> None:
        """Raises `TooMuchUnfinished` where that stream has to end."""
        if stream in self._ended:
            raise TooMuchUnfinished

    def release(self, stream: UnfinishedStream) -> None:
        """Its message has ended, or was dropped."""
        self._held.pop(stream, None)
