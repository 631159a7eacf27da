"""Every tool that servers list for a client, those included that the client is not given: its class, pin and verdict.

For whoever looks at a client's list as an operator; clients are told nothing of it.
"""

from typing import Final

from anyio.lowlevel import checkpoint

from sluicegate.app.core import Core
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Client

LIST: Final = "tools/list"
_AT_ONCE: Final = 8  # tools that are judged in one step of the event loop


async def judged_tools(inner: Core, client: Client) -> list[Json]:
    """`given`: whether it stands in the list that the client gets."""
    judge, pins = inner.services.judging.judge, inner.behind.pins
    given = {item["name"] for item in await inner.listed(client, LIST)}
    call, rows = Call(client, "tools/call", {}), list[Json]()
    for catalog in await inner.behind.lists.recall(client):
        for entry in catalog.whole.entries(LIST) if catalog.whole is not None else ():
            target = entry.target
            decision, found = judge.decide(call, target), judge.in_force.rulebook.classify(target)
            is_withheld = catalog.withholds("tool", target.public)
            rows.append({
                "name": target.public, "server": target.server, "own": target.own, "given": target.public in given,
                "class": found.name, "class_source": found.source, "verdict": decision.verdict.value,
                "rule": decision.rule, "pin": "withheld" if is_withheld else pins.review(target),
            })  # fmt: skip
            if len(rows) % _AT_ONCE == 0:
                await checkpoint()
    return rows
