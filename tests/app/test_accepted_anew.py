"""What a person accepted counts for a tool's class: never longer than it is in force."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scripted_server import Front, Scripted

from sluicegate import config
from sluicegate.app import policy_loading
from sluicegate.app.services import PolicyService
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.pin_store import Pinned
from sluicegate.policy.pins import Wanted, fingerprint
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client, Result, Target
from sluicegate.store.memory import MemoryStore


def tool(name: str) -> Json:
    return {"name": name, "inputSchema": {"type": "object"}}


@pytest.mark.usefixtures("no_piece_is_short")
async def test_an_acceptance_that_has_ended_counts_for_nobody_while_lists_are_judged_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(call: Call) -> Result:
        return Result({"tools": [tool("x"), tool(call.client.principal)]})

    (tmp_path / "policy.csv").write_text("p, role:reader, a, *, read, allow\n")
    made: Any = {"policy": {"files": ["policy.csv"]}, "servers": {"a": {"command": "x"}}}
    (tmp_path / "sluice.yaml").write_text(json.dumps(made))
    loaded = config.load(tmp_path / "sluice.yaml")
    judges = PolicyService(loaded, policy_loading.load(loaded), None, "http")
    server = Scripted("a")
    server.answers["tools/list"] = listed
    pins = DefinitionPins({"a": Pinned("review", server.identity)}, MemoryStore())
    await pins.books.load()
    judges.later.has_accepted.set(pins.has_accepted)
    events = list[Any]()
    async with Front(server, pins=pins, list_timeout=30) as front:
        pins.books.on_moved(judges.forget_accepted)  # as the application does it, after the lists
        for number in range(4):
            await front.lists.snapshot("a", Client(f"key:{number}"))
        target = Target("a", "tool", "x", "a__x", tool("x"))
        await pins.accept("a", [Wanted("tool", "x", fingerprint(tool("x")))], "ann")
        is_accepted, serve = judges.judge.in_force.rulebook.is_accepted, pins.serve
        assert is_accepted(target)

        def served(*args: Any) -> Any:
            events.append(is_accepted(target))
            return serve(*args)

        monkeypatch.setattr(pins, "serve", served)
        judges.later.on_change.set(lambda servers: events.append("told"))
        book = pins.books.held["a", "modern"]
        other = replace(book.pins["tool", "x"], fingerprint="other")
        await pins.books.write("a", {"modern": replace(book, pins={**book.pins, ("tool", "x"): other})})
    assert events == [False] * 4 + ["told"]
