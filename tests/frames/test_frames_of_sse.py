"""Messages of HTTP+SSE come on another connection than what they answer; the harness that judges frames knows."""

import json
from typing import Any

from frames.record import Web
from frames.tap import Connection


def posted(message: dict[str, Any]) -> bytes:
    data = json.dumps(message).encode()
    head = "POST /messages?session_id=s HTTP/1.1\r\nContent-Type: application/json"
    return f"{head}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data


def test_what_came_over_sse_is_judged_by_the_stream_of_its_session() -> None:
    hello = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {}}
    agreed = {"jsonrpc": "2.0", "id": 0, "result": {"protocolVersion": "2025-11-25"}}
    listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    events = [agreed, {"jsonrpc": "2.0", "id": 1, "result": {"tools": [], "ttlMs": 0}}]
    body = "event: endpoint\r\ndata: /messages?session_id=s\r\n\r\n"
    body += "".join(f"event: message\r\ndata: {json.dumps(event)}\r\n\r\n" for event in events)
    stream, posts = Connection(), Connection()
    stream.asked += b"GET /sse HTTP/1.1\r\n\r\n"
    stream.said += f"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n{body}".encode()
    for message in (hello, listing):
        posts.asked += posted(message)
        posts.said += b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
    listed = next(frame for frame in Web().frames([posts, stream]) if "tools" in frame.message.get("result", {}))
    assert (listed.revision, listed.answers, listed.by_server) == ("2025-11-25", ("tools/list",), True)
    assert any("ttlMs" in problem for problem in listed.problems())
