"""Checkpoints outside the log: in the state directory, and where the operator wants them kept.

A thread of its own, for a place may be slow or gone; only the newest checkpoint matters, since it covers all before.
Places are files, to which a line is appended, and http(s) URLs, to which it is posted.
"""

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Final
from urllib.parse import urlsplit

import httpx

from sluicegate.audit import checkpoint
from sluicegate.audit.checkpoint import Checkpoint
from sluicegate.audit.posting import Poster
from sluicegate.store import private

log = logging.getLogger(__name__)

_PATIENCE: Final = 5.0  # seconds that the end may wait for a place


def newest_file(state: Path, writer: str) -> Path:
    return state / f"{writer}.checkpoint"


def read_newest(state: Path, writer: str) -> Checkpoint | None:
    """The newest checkpoint that was published in the state directory."""
    try:
        return checkpoint.read(newest_file(state, writer).read_bytes())
    except FileNotFoundError:
        return None


class Publisher:
    """`put` may be called from any thread."""

    def __init__(self, state: Path, writer: str, places: Iterable[str] = ()) -> None:
        self.newest = read_newest(state, writer)
        self._own, self._places = newest_file(state, writer), tuple(places)
        self._queue: SimpleQueue[Checkpoint | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=f"checkpoints {writer}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join(_PATIENCE)

    def put(self, signed: Checkpoint) -> None:
        self._queue.put(signed)

    def _run(self) -> None:
        is_over = False
        while not is_over:
            latest = self._queue.get()
            while not self._queue.empty():
                following = self._queue.get()
                latest = latest if following is None else following
                is_over = is_over or following is None
            if latest is None:
                return
            self._publish(latest)

    def _publish(self, signed: Checkpoint) -> None:
        self.newest = signed
        data = signed.dump()
        try:
            private.write(self._own, data, replace=True)
        except OSError as error:
            log.error("cannot publish the checkpoint", extra={"file": str(self._own), "error": str(error)})
        for destination in self._places:
            try:
                _send(destination, data)
            except (OSError, httpx.HTTPError) as error:
                url = urlsplit(destination)  # a path may be a secret, too: of a webhook it is
                bare = destination.partition("?")[0].rpartition("@")[2]
                where = f"{url.scheme}://{url.netloc.rpartition('@')[2]}" if url.netloc else bare
                log.warning("cannot publish the checkpoint", extra={"place": where, "error": type(error).__name__})


def _send(destination: str, data: bytes) -> None:
    if destination.startswith(("http://", "https://")):
        with Poster({"content-type": "application/json"}) as poster:
            poster.post(destination, data)
        return
    private.append(Path(destination), data)
