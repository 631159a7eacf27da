"""What stands behind the listener in these tests: a handler that does what it is told, alone or as a process."""

import asyncio
import logging
import os
import subprocess
import sys
from typing import Any

import anyio

from sluicegate import telemetry
from sluicegate.listen.line_streams import standard_streams
from sluicegate.listen.stdio import serve
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result, not_found

SERVER_INFO = {"name": "sluice", "version": "0"}
CLIENT = Client("local", ("role:owner",), "me")
CHANGED = Notification("notifications/tools/list_changed", {})
log = logging.getLogger("peer")


class Peer:
    """Records calls and cancellations; tools: echo, hold (until `release`), progress, crash, infinite, big."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.cancelled: list[str] = []
        self.ended: list[str] = []
        self.listens: list[Call] = []
        self.release = anyio.Event()
        self.honours = True

    async def __call__(self, call: Call) -> Outcome:
        self.calls.append(call)
        try:
            if call.method == "server/discover":
                return Result({"supportedVersions": [], "capabilities": {"tools": {}}, "instructions": "hello"})
            if call.method == "tools/list":
                return Result({"tools": [{"name": "echo"}], "ttlMs": 0, "cacheScope": "private"})
            if call.method == "tools/call":
                return await self._tool(call)
            if call.method == "subscriptions/listen":
                return await self._listen(call)
            return not_found(call.method, call.params)
        except asyncio.CancelledError:
            self.cancelled.append(str(call.params.get("name", call.method)))
            log.info("cancelled", extra={"what": self.cancelled[-1]})
            raise

    async def _tool(self, call: Call) -> Outcome:
        name, given = call.params.get("name"), call.params.get("arguments", {})
        if name == "hold":
            await self.release.wait()
        elif name == "progress":
            await report(call, 1)
            await report(call, 2)
        elif name == "crash":
            raise RuntimeError("the handler is broken")
        elif name == "infinite":
            return Result({"content": [], "structuredContent": {"n": float("inf")}})
        elif name == "big":
            return text("x" * int(given["size"]))
        elif name == "print":
            print("this is no MCP message", flush=True)
            command = [sys.executable, "-c", "print('nor is this', flush=True); input()"]
            await anyio.to_thread.run_sync(subprocess.call, command)
        elif name == "change":
            for listen in self.listens:
                await listen.emit(CHANGED)
                for uri in listen.params["notifications"].get("resourceSubscriptions", []):
                    await listen.emit(Notification("notifications/resources/updated", {"uri": uri}))
        elif name != "echo":
            return not_found(call.method, call.params)
        return text(str(given))

    async def _listen(self, call: Call) -> Outcome:
        wanted = call.params["notifications"]
        honoured = wanted if self.honours else {k: v for k, v in wanted.items() if k != "resourceSubscriptions"}
        await call.emit(Notification("notifications/subscriptions/acknowledged", {"notifications": honoured}))
        self.listens.append(call)
        try:
            await self.release.wait()
        finally:
            self.listens.remove(call)
        return Result({})


def text(value: str) -> Outcome:
    return Result({"content": [{"type": "text", "text": value}]})


async def report(call: Call, number: int) -> None:
    token: Any = call.meta["progressToken"]
    params = {"progressToken": token, "progress": number, "message": "going on"}
    await call.emit(Notification("notifications/progress", params))


async def failing(call: Call) -> Outcome:
    return Failure(-32603, "nothing works", {"reason": "server_unavailable"})


async def main() -> None:
    telemetry.configure("info", "json")
    peer = Peer()
    async with standard_streams() as (reader, writer):
        await serve(
            peer, reader=reader, writer=writer, client=CLIENT, server_info=SERVER_INFO, grace=float(sys.argv[1]),
            on_session_end=lambda id: log.info("session ended"),
        )  # fmt: skip
    log.info("returned")


if __name__ == "__main__":
    if os.environ.get("LOOP") == "uvloop":
        anyio.run(main, backend_options={"use_uvloop": True})
    else:
        anyio.run(main)
