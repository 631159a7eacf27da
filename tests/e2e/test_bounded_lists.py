"""Whatever clients write into their capabilities, lists are walked and stored a few times, of servers of both eras."""

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bed, client_keys

LISTER = str(Path(__file__).parent / "lists_for_all.py")
ASKED = 40
UI = "io.modelcontextprotocol/ui"


def claims(number: int) -> Json:
    """A value that nobody wrote before, in each place where a client may write."""
    new = {f"x{number}": number}
    return {
        "elicitation": {"form": new, **new}, "sampling": {"tools": new, **new}, "roots": new, "vendor": new,
        "extensions": {UI: {"mimeTypes": ["text/html;profile=mcp-app", f"x/{number}"]}},
    }  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("lists")
    servers = {
        era: {"command": sys.executable, "args": [LISTER, era, str(folder / era)], "era": era}
        for era in ("modern", "legacy")
    }
    keys = {"keys": client_keys(poor=[], rich=["role:user"])}
    with bed(folder, "p, role:user, *, *, *, allow\n", servers, clients=keys) as made:
        yield made


def modern(place: Bed, capabilities: Json, who: str = "poor") -> None:
    meta = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    assert place.post(who, body, {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}).status_code == 200


def legacy(place: Bed, capabilities: Json, who: str = "poor") -> None:
    hello = {"protocolVersion": LEGACY, "capabilities": capabilities, "clientInfo": {"name": "t", "version": "1"}}
    answer = place.post(who, {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
    head = {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    place.post(who, {"jsonrpc": "2.0", "method": "notifications/initialized"}, head)
    body = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
    assert place.post(who, body, head).status_code == 200


def stored(place: Bed) -> list[str]:
    with closing(sqlite3.connect(place.folder / "state" / "sluice.db")) as store:
        return [key for (key,) in store.execute("SELECT key FROM item WHERE key LIKE 'snapshot%'")]


def walks(place: Bed, era: str) -> int:
    return (place.folder / era).stat().st_size if (place.folder / era).exists() else 0


@pytest.mark.parametrize("ask", [modern, legacy])
def test_a_client_without_rights_that_writes_new_capabilities_causes_no_walk_and_no_row(
    place: Bed, ask: Callable[..., None]
) -> None:
    ask(place, claims(0), "rich")
    place.until(lambda: len(stored(place)) >= 4)
    rows, walked = stored(place), {era: walks(place, era) for era in ("modern", "legacy")}
    for number in range(1, ASKED):
        ask(place, claims(number))
    assert stored(place) == rows
    # each list that is older than some seconds may be looked at again, whoever asks
    assert all(walks(place, era) <= before + 5 for era, before in walked.items())
