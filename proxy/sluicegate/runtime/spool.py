"""A message that is too large to be decoded here, as its bytes come: in a file without a name.

What a peer sends is bounded before it is written, for each message and for all that are open. Knows no JSON.
"""

from importlib import import_module
from typing import IO, Final
from weakref import WeakSet, finalize

EDGE: Final = 256
"""Bytes of both ends that stay at hand: an id stands there."""


class SpoolFull(OSError):
    """The message is larger than it may be, or there is no room for it now."""


class Spool:
    """Takes bytes up to the limit of its `Spools`. `len()` gives their number. The file is closed with the object."""

    def __init__(self, spools: "Spools") -> None:
        self._spools = spools
        self._size = 0
        self.head = self._tail = b""
        try:
            self.file: IO[bytes] = import_module("tempfile").TemporaryFile(prefix="sluice-", buffering=0)
        except OSError as error:
            raise SpoolFull(str(error)) from error
        finalize(self, self.file.close)

    def __len__(self) -> int:
        return self._size

    @property
    def edges(self) -> bytes:
        """The first and the last bytes."""
        return self.head + self._tail

    def write(self, data: bytes | bytearray) -> None:
        """Raises `SpoolFull`; then nothing of the message is of use."""
        is_large = self._size + len(data) > self._spools.limit
        if is_large or self._spools.used + len(data) > self._spools.total:
            self.close()
            raise SpoolFull(f"more than {self._spools.limit} bytes" if is_large else "bytes for which there is no room")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[self.file.write(rest) :]
        except OSError as error:
            self.close()
            raise SpoolFull(str(error)) from error
        self._size += len(data)
        if len(self.head) < EDGE:
            self.head += data[: EDGE - len(self.head)]
        self._tail = (self._tail + data[-EDGE:])[-EDGE:]

    def close(self) -> None:
        self._size = 0
        self.file.close()


class Spools:
    """Makes spools. Each may have `limit` bytes, and all that are open together `total`."""

    def __init__(self, limit: int, total: int) -> None:
        self.limit, self.total = limit, total
        self._open: WeakSet[Spool] = WeakSet()

    @property
    def used(self) -> int:
        return sum(map(len, self._open))

    def spool(self) -> Spool:
        """An empty one. Raises `SpoolFull`."""
        made = Spool(self)
        self._open.add(made)
        return made
