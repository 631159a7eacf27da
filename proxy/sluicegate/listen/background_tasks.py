"""BackgroundTasks that outlive the request that started them: what a session listens to. Knows tasks alone."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

_LOG: Final = logging.getLogger(__name__)


class BackgroundTasks:
    """Stands in for a task group where nobody can wait: one that fails is logged, and fails alone."""

    def __init__(self) -> None:
        self._all: set[asyncio.Task[Any]] = set()

    def __len__(self) -> int:
        return len(self._all)

    def start_soon(self, func: Callable[..., Coroutine[Any, Any, Any]], /, *args: Any) -> None:
        task = asyncio.get_running_loop().create_task(func(*args))
        self._all.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._all.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a task failed", exc_info=task.exception())
