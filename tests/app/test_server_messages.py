"""What a server says outside of calls goes on without its marks of one hop, inspected."""

from typing import Any

from sluicegate.app.servers import Tasking
from sluicegate.guards.inspect import inspect_params
from sluicegate.hub import Hub
from sluicegate.protocol.jsonrpc import Json, Notification


def test_what_a_server_says_of_its_own_hop_does_not_go_on() -> None:
    heard: list[Json] = []

    def publish(*notified: Any) -> None:
        heard.append(notified[2].params)

    tasking = Tasking(inspect_params({"git": "warn"}), Hub(), publish)
    hop = {f"io.modelcontextprotocol/{name}": 1 for name in ("serverInfo", "subscriptionId", "related-task")}
    tasking.publish("git", None, Notification("notifications/message", {"data": "x", "_meta": {**hop, "k": 1}}))
    tasking.publish("git", None, Notification("notifications/message", {"data": "y", "_meta": hop}))
    assert heard == [{"data": "x", "_meta": {"k": 1}}, {"data": "y"}]
