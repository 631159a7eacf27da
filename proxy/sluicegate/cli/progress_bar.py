"""How far something is, as a bar on stderr. The one home of `rich`, which only a terminal needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

_STEPS: Final = 200  # as many updates: one costs more than reading a record


@contextmanager
def shown(what: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much more of `total` is done."""
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task, done, shown_up_to = bar.add_task(what, total=total), 0, 0

        def advance(more: int) -> None:
            nonlocal done, shown_up_to
            done += more
            if (done - shown_up_to) * _STEPS >= total:
                shown_up_to = done
                bar.update(task, completed=done)

        yield advance
