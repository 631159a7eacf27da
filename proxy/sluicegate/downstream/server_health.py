"""What went wrong with one server last, and what it wrote then: for its clients, for the log and for `sluice servers`.

Knows failures and words; decides nothing and reaches nothing.
"""

from collections.abc import Callable
from typing import Any, Final

from sluicegate.downstream.failure_rules import why_not
from sluicegate.downstream.server_output import ServerOutput
from sluicegate.downstream.settings import Lost, ServerSettings, as_lost
from sluicegate.downstream.stdio_transport import StderrTail
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client

_LINES: Final = 20
_LINE: Final = 2000


class ServerHealth:
    """`error` is the last failure; `stderr` gives what the server wrote."""

    def __init__(self, settings: ServerSettings, stderr: Callable[[], StderrTail]) -> None:
        self._key, self._words, self._stderr = settings.key, ServerOutput(settings), stderr
        self.error = Lost("", sent=False)
        self.restarts = 0

    def failed(self, error: Exception, otherwise: str = "") -> None:
        self.error = as_lost(error, otherwise)

    def ended(self, why: str) -> None:
        """A connection ended by itself."""
        self.error = Lost(why, sent=False)
        self.restarts += 1

    def lines(self) -> list[str]:
        """What may be quoted."""
        return self._words.lines(self._stderr().text())

    def why(self, client: Client) -> str:
        """Why it cannot be reached, as far as that client may know."""
        return why_not(client, self._key, self.error, self.lines) if self.error.text else "it is still starting."

    def log(self, **more: Any) -> Json:
        """The fields of a record in the log."""
        return {"server": self._key, "why": str(self.error), "stderr": self.lines(), **more}

    def describe(self) -> Json:
        tail = self._stderr()
        lines = self._words.lines(tail.text(), _LINES, _LINE)
        return {"last_error": str(self.error), "exit": tail.exit, "stderr": lines}

    def __repr__(self) -> str:
        return f"<ServerHealth {self.error}, {self.restarts} restarts>"
