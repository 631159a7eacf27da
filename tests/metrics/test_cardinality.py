"""Whatever clients invent, they make no series: names, methods, versions, and who they say they are."""

import random
from collections.abc import Iterator

from sluicegate.guards import ORDER, chain
from sluicegate.guards.measure import Measure
from sluicegate.guards.name import name
from sluicegate.metrics import Metrics
from sluicegate.protocol import legacy_client, modern_client
from sluicegate.protocol.jsonrpc import Json, Request
from sluicegate.protocol.model import Call, Client, Failure, Handler, Outcome, Result, Target
from sluicegate.protocol.modern_client import Parsed

MANY = 100_000
KNOWN = Target("github", "tool", "echo", "gh__echo", {"name": "echo"})


def anything() -> str:
    return f"{random.getrandbits(64):x}"


def body(method: str, tool: str, version: str, client: str) -> Request:
    meta: Json = {
        "io.modelcontextprotocol/protocolVersion": version,
        "io.modelcontextprotocol/clientInfo": {"name": client, "version": client},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    return Request(1, method, {"name": tool, "arguments": {}, "_meta": meta})


def requests() -> Iterator[tuple[Request, str]]:
    """Each with something random, in turn: the tool, the method, the version, who it is; and the revision that a
    session has agreed to with a client that offered anything."""
    for number in range(MANY):
        odd = number % 4
        tool, method = (anything() if odd == 0 else "gh__echo"), (anything() if odd == 1 else "tools/call")
        version, who = (anything() if odd == 2 else "2026-07-28"), anything()
        hello = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": who, "version": who}}
        agreed = legacy_client.initialize(hello)
        assert not isinstance(agreed, Failure)
        yield body(method, tool, version, who), agreed.revision


def front(metrics: Metrics) -> Handler:
    """Measured, and named by a catalog of one tool."""

    async def resolve(call: Call) -> Target | None:
        found = KNOWN if call.params["name"] == KNOWN.public else None
        if found is not None:
            call.trail.set_target(found)
        return found

    async def answer(call: Call) -> Outcome:
        return Result({"content": []})

    guards = dict.fromkeys(ORDER) | {
        "measure": Measure(metrics.call, metrics.calls), "name": name(resolve, lambda server: None),
    }  # fmt: skip
    return chain(guards, answer)


def lines(metrics: Metrics) -> int:
    return sum(not line.startswith(b"#") for line in metrics.scrape()()[0].splitlines())


async def test_a_hundred_thousand_random_requests_make_fewer_than_a_hundred_series() -> None:
    metrics = Metrics(version="1")
    handler, before, served = front(metrics), lines(metrics), 0
    for request, revision in requests():
        for parsed in (modern_client.parse(request, None), legacy_client.parse(request, revision, None)):
            if isinstance(parsed, Parsed):
                served += 1
                client = Client("key:ci", revision=parsed.revision, info=parsed.info)
                await handler(Call(client, parsed.method, parsed.params, parsed.meta))
    assert served > MANY / 2, "many of them came through"
    assert 0 < lines(metrics) - before < 100
