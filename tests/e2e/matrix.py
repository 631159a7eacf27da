"""The matrix: which client before which server, in which situation, and what must come of it. Data only.

Every situation is gone through by every client with every server: the client is a program on an official SDK, so is
the server, Sluice is the process between them (`every_cell.py` says what a situation is, step by step).
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Side:
    """A column or a row of columns: an era (dual: both), a transport, and the official SDK that it is made of."""

    era: str
    transport: str
    sdk: int  # 1.30 is of the legacy era alone

    @property
    def configured(self) -> str:
        """What Sluice is told of such a server."""
        return "auto" if self.era == "dual" else self.era

    @property
    def is_legacy(self) -> bool:
        """HTTP+SSE is a transport of the legacy era, so nobody is modern on it."""
        return self.era == "legacy" or self.transport == "sse"


SIDES = {
    "legacy-stdio": Side("legacy", "stdio", 1),
    "legacy-http": Side("legacy", "http", 1),
    "legacy-sse": Side("legacy", "sse", 1),
    "modern-stdio": Side("modern", "stdio", 2),
    "modern-http": Side("modern", "http", 2),
    "dual-stdio": Side("dual", "stdio", 2),
    "dual-http": Side("dual", "http", 2),
    "dual-sse": Side("dual", "sse", 2),
}
CLIENTS = SERVERS = SIDES


def eras(client: Side, server: Side) -> str:
    """Which pair of eras meets: a client that could do both is modern, and so is a server that does not list the older
    revisions that it speaks."""
    of_client = "legacy" if client.is_legacy else "modern"
    of_server = "legacy" if server.is_legacy else "modern"
    return f"{of_client}-{of_server}"


@dataclass(frozen=True, slots=True)
class Row:
    """What was asked (`{server}` is told by name), and what came of it, for each pair of client era and server era."""

    situation: str
    legacy_legacy: str
    legacy_modern: str
    modern_legacy: str
    modern_modern: str

    def expected(self, eras: str, server: str) -> str:
        return str(getattr(self, eras.replace("-", "_"))).format(server=server)


def same(situation: str, outcome: str) -> Row:
    return Row(situation, outcome, outcome, outcome, outcome)


USED = "error -32602 This requestState was used before"
BAD = "error -32602 Invalid or expired requestState"
FOUR_BAD = ", ".join([BAD] * 4)
OVER = "failed outcome_unknown"

ROWS = [
    same("form_ask", "form [{server}] Name? & Ada"),
    same("url_ask", "page [{server}] Pay https://pay.test/ & accept"),
    same("sampling", "model 2+2? & 4"),
    same("roots", "roots & file:///home/ada"),
    same("three_asks_at_once", "form [{server}] One? & form [{server}] Three? & form [{server}] Two? & 1 2 3"),
    same("two_rounds", "form [{server}] First? & form [{server}] Last? & Ada Lovelace"),
    same("declined", "form [{server}] Name? & decline"),
    # An answer is sent twice, is altered, or is another client's, and the next call is as if nothing had been. A legacy
    # client answers requests: an answer to none is nobody's. A modern one brings a state: a wrong one is an error, and
    # the right one is good afterwards.
    Row("replayed", "Ada, Ada", "Ada, Ada", f"Ada, {USED}, {USED}, Ada", f"Ada, {USED}, {USED}, Ada"),
    Row("altered", "Ada, Ada", "Ada, Ada", f"{FOUR_BAD}, Ada, Ada", f"{FOUR_BAD}, Ada, Ada"),
    Row("another_clients", "Ada, Ada", "Ada, Ada", f"{BAD}, Ada, Ada", f"{BAD}, Ada, Ada"),
    # Nobody comes back to the question. A call that waits at its server ends there; a stateless server waits for
    # nothing, and is never called again.
    same("client_gone", "called 1 time, over"),
    # The answer comes when the call's time (`max_time`) is over. A stateless server has no open call whose time could
    # be over: its state is good for ten minutes, see ELSEWHERE.
    Row("expired", "failed timeout", "Ada", OVER, "Ada"),
    # The server dies while its question is open, and is there again when the answer comes.
    Row("server_gone", "failed outcome_unknown", "Ada", "failed outcome_unknown", "Ada"),
    same("progress", "1/3 & 2/3 & 3/3 & counted"),
    same("log", "info a line & logged"),
    same("cancel", "called 1 time, over"),
    same("list_changed", "told, and listed"),
    same("resource_updated", "told"),
]  # fmt: skip

# A client without the capability is never asked. Servers on the SDK 1.30 try, and are told that nobody can be asked,
# which a legacy client reads in their words; those on 2.x know it and refuse the call: {the server's SDK: {the client's
# era: what comes of it}}, by its beginning.
UNABLE = {
    1: {"legacy": "failed elicitation/create is not supported", "modern": "error -32021"},
    2: {"legacy": "error -32603", "modern": "error -32021"},
}

# What no real process shows in the time of a test: the situation, and where it is shown.
ELSEWHERE = {
    "expired: a stateless server's state after ten minutes": (
        "tests/e2e/test_bad_answers.py", "test_a_state_that_is_too_old_is_refused_and_the_server_sees_nothing",
    ),
    "expired: a legacy client that never answers a stateless server": (
        "tests/listen/test_asks_http.py", "test_a_form_that_nobody_fills_in_counts_as_closed",
    ),
    "gone: a client that ends its session": (
        "tests/listen/test_legacy.py", "test_the_end_of_a_session_cancels_what_runs",
    ),
}  # fmt: skip
