"""`GET /api/v1/events`: of which topics something changed, as server-sent events with ids (HTML, section 9.2).

An event carries no data of what changed: whoever follows asks again, with the rights of that moment. So a reader that
is slow misses nothing but how often, and a stream needs no queue of its own. The last `RING` changes are remembered:
whoever comes back with an id that is older hears `reset`, and asks for everything again.
"""

import secrets
import time
from collections import Counter, deque
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final

import anyio

AREAS: Final[Mapping[str, str]] = {
    "approval": "approvals", "server": "servers", "call": "audit", "pin": "pins", "login": "logins",
    "policy": "policy",
}  # fmt: skip
"""Which right, `admin:AREA` read, each topic needs."""
RING: Final = 1_000
MAX_STREAMS: Final = 1_000
MAX_PER_PRINCIPAL: Final = 50
LOOK_EVERY: Final = 1.0
ALIVE_EVERY: Final = 15.0


class Changes:
    """`state` gives what is compared for each topic. It is looked at once a second, while somebody follows. `notice`
    tells of a change at once."""

    def __init__(
        self, state: Callable[[], Mapping[str, Any]], is_closing: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        self._state, self._is_closing, self._clock = state, is_closing, clock
        self._seen = dict(state())
        self._looked = clock()
        self._process = secrets.token_hex(4)
        self._ring: deque[tuple[int, str]] = deque(maxlen=RING)
        self._number = 0
        self._changed = anyio.Event()
        self._streams = Counter[str]()  # by principal

    def notice(self, topic: str) -> None:
        self._number += 1
        self._ring.append((self._number, topic))
        self._changed.set()
        self._changed = anyio.Event()

    def look(self) -> None:
        now = self._clock()
        if self._streams.total() > 1 and now - self._looked < LOOK_EVERY:
            return  # another stream has looked
        self._looked = now
        for topic, value in self._state().items():
            if self._seen.get(topic) != value:
                self._seen[topic] = value
                self.notice(topic)

    async def follow(
        self, who: str, topics: Sequence[str], may_follow: Callable[[str], bool], last: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """The first event is `open`, or `reset` where `last`, the id of an earlier event, is not in the ring. The
        stream ends when none of the topics may be followed any more."""
        if self._streams.total() >= MAX_STREAMS or self._streams[who] >= MAX_PER_PRINCIPAL:
            yield b"event: full\ndata: {}\n\n"
            return
        self._streams[who] += 1
        try:
            self.look()
            found, spoke = self._number_of(last), self._clock()
            number = self._number if found is None else found
            yield self._event("reset" if last and found is None else "open")
            while not self._is_closing() and (mine := [topic for topic in topics if may_follow(topic)]):
                changed = self._changed
                if new := self._since(number, mine):
                    number, spoke = self._number, self._clock()
                    for event in new:
                        yield event
                elif self._clock() - spoke >= ALIVE_EVERY:
                    spoke = self._clock()
                    yield b": \n\n"
                with anyio.move_on_after(LOOK_EVERY):
                    await changed.wait()
                self.look()
        finally:
            self._streams[who] -= 1
            if not self._streams[who]:
                del self._streams[who]

    def _since(self, number: int, topics: Sequence[str]) -> list[bytes]:
        """One event for each topic, or `reset` where more was missed than is remembered."""
        if self._is_missed(number):
            return [self._event("reset")]
        found = {topic for at, topic in self._ring if at > number}
        return [self._event(topic) for topic in topics if topic in found]

    def _is_missed(self, number: int) -> bool:
        return number < self._number - len(self._ring)

    def _number_of(self, last: str) -> int | None:
        """Of an id of this process; with workers, one of several."""
        for one in last.split("+"):
            process, _, digits = one.partition(".")
            if process == self._process and digits.isdecimal() and digits.isascii() and len(digits) < 16:
                number = int(digits)
                return number if number <= self._number and not self._is_missed(number) else None
        return None

    def _event(self, name: str) -> bytes:
        return f"event: {name}\nid: {self._process}.{self._number}\ndata: {{}}\n\n".encode("ascii")


def read_topics(query: Mapping[str, Sequence[str]]) -> list[str] | None:
    """All of them where none is named; None for a query that names others."""
    if not query:
        return list(AREAS)
    if set(query) != {"topics"} or len(query["topics"]) != 1:
        return None
    topics = query["topics"][0].split(",")
    return topics if set(topics) <= set(AREAS) and len(topics) <= len(AREAS) else None
