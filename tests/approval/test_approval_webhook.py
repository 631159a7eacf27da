"""A real HTTP receiver is told of what waits, verifies it, and is told again when it was down, slow or wrong."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from anyio.abc import SocketStream
from approval_kit import Town
from peers.fleet import free_port
from standardwebhooks import Webhook

from sluicegate.approval import webhook
from sluicegate.approval.webhook import Receiver, Webhooks
from sluicegate.protocol.jsonrpc import Json

SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"


class Hook:
    """Answers with the statuses it is given, the last one for ever; 0 is silence."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.location = "http://127.0.0.1:1/"

    async def __call__(self, stream: SocketStream) -> None:
        async with stream:
            data = b""
            while b"\r\n\r\n" not in data:
                data += await stream.receive()
            head, _, body = data.partition(b"\r\n\r\n")
            lines = head.decode().split("\r\n")[1:]
            headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines)}
            while len(body) < int(headers["content-length"]):
                body += await stream.receive()
            self.requests.append((headers, body))
            status = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            if status == 0:
                await anyio.sleep_forever()
            extra = f"location: {self.location}\r\n".encode() if status in range(300, 400) else b""
            await stream.send(b"HTTP/1.1 %d X\r\nset-cookie: a=b\r\n%bcontent-length: 0\r\n\r\n" % (status, extra))

    def told(self, at: int = -1) -> Json:
        headers, body = self.requests[at]
        found: Json = Webhook(SECRET).verify(body, headers)
        return found


@asynccontextmanager
async def serving(hook: Hook, port: int = 0) -> AsyncIterator[int]:
    listener = await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=port)
    async with listener, anyio.create_task_group() as group:
        group.start_soon(listener.serve, hook)
        yield int(listener.extra(anyio.abc.SocketAttribute.local_port))
        group.cancel_scope.cancel()


@asynccontextmanager
async def telling(town: Town, port: int, *profiles: str) -> AsyncIterator[Webhooks]:
    receiver = Receiver(f"http://127.0.0.1:{port}/hook", SECRET, frozenset(profiles))
    webhooks = Webhooks(town.desk, lambda: (receiver,), pause=0.02)
    async with anyio.create_task_group() as group:
        group.start_soon(webhooks.run)
        yield webhooks
        group.cancel_scope.cancel()


async def until(is_so: Callable[[], object]) -> None:
    with anyio.fail_after(20):
        while not is_so():  # noqa: ASYNC110 (another task comes to that)
            await anyio.sleep(0.005)


async def test_a_receiver_is_told_what_waits_and_can_verify_it() -> None:
    town, hook = Town(), Hook(204)
    async with serving(hook) as port, telling(town, port) as webhooks:
        approval = await town.pending(to="bob", password="hunter2", body="x" * 5000)
        await until(lambda: webhooks.sent == 1)
        told = hook.told()
    data = told["data"]
    assert told["type"] == "approval.pending" and hook.requests[0][0]["webhook-id"] == f"msg_{approval.id}"
    assert (data["id"], data["profile"], data["principal"]) == (approval.id, "one-of-leads", "key:ann")
    assert (data["server"], data["tool"], data["digest"]) == ("bank", "pay", approval.binding.digest)
    assert data["command"] == f"sluice approve {approval.id} --seen {approval.binding.digest}"
    assert "hunter2" not in json.dumps(told) and "cut:" in data["arguments"] and len(data["arguments"]) < 2300
    assert (await town.get(approval.id)).state == "pending" and not town.seen


@pytest.mark.parametrize("wrong", [500, 302, 404, 0])
async def test_a_receiver_that_fails_is_told_again_and_nothing_is_decided(
    wrong: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "TIMEOUT", 1.0)
    town, hook = Town(), Hook(wrong, wrong, 200)
    async with serving(hook) as port, telling(town, port) as webhooks:
        approval = await town.pending(amount=1)
        await until(lambda: webhooks.sent == 1)
        assert webhooks.failures == 2 and len(hook.requests) == 3
        assert {headers["webhook-id"] for headers, _ in hook.requests} == {f"msg_{approval.id}"}
        assert not any("cookie" in headers for headers, _ in hook.requests)
        assert hook.told(0) == hook.told(2)
    assert (await town.get(approval.id)).state == "pending" and not town.seen


async def test_the_log_says_which_approval_was_not_taken_and_nothing_of_the_address(
    caplog: pytest.LogCaptureFixture,
) -> None:
    town, hook = Town(), Hook(503, 300, 299)
    async with serving(hook) as port, telling(town, port) as webhooks:
        approval = await town.pending(amount=1)
        await until(lambda: webhooks.sent == 1)
    refused = [record.getMessage() for record in caplog.records if record.name == webhook.__name__]
    mark = Receiver(f"http://127.0.0.1:{port}/hook", SECRET).mark
    assert refused == [f"webhook {mark} did not take {approval.id}: {status}" for status in (503, 300)]
    caplog.clear()
    async with telling(town, free_port()) as webhooks:
        await town.pending(amount=2)
        await until(lambda: webhooks.failures >= 1)
    texts = [record.getMessage() for record in caplog.records if record.name == webhook.__name__]
    assert texts and all(text.endswith(" not reached: ConnectError") and "/hook" not in text for text in texts)


async def test_receivers_whose_names_nobody_knows_keep_no_thread_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop has few threads for lookups, and each of these held one for as long as name servers are silent."""
    known, over, asked = socket.getaddrinfo, threading.Event(), list[str]()

    def ask(host: str, *more: Any, **hints: Any) -> Any:
        if not str(host).endswith(".silent.test"):
            return known(host, *more, **hints)
        asked.append(host)
        over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(4))
    town = Town()
    receivers = tuple(Receiver(f"http://h{number}.silent.test/", SECRET) for number in range(webhook.AT_ONCE))
    webhooks = Webhooks(town.desk, lambda: receivers, pause=0.02)
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(webhooks.run)
            await town.pending(amount=1)
            await until(lambda: len(asked) == webhook.AT_ONCE)
            with anyio.fail_after(20):
                assert await loop.getaddrinfo("localhost", 1)
            group.cancel_scope.cancel()
    finally:
        over.set()


async def test_receivers_that_are_silent_delay_no_other_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them had all places for requests, for ten seconds at a time."""
    monkeypatch.setattr(webhook, "TIMEOUT", 3600.0)
    town, silent, hook = Town(), Hook(0), Hook(200)
    async with serving(silent) as port, serving(hook) as other:
        urls = [*(f"http://127.0.0.1:{port}/{number}" for number in range(10)), f"http://127.0.0.1:{other}/hook"]
        receivers = tuple(Receiver(url, SECRET) for url in urls)
        webhooks = Webhooks(town.desk, lambda: receivers, pause=0.02)
        async with anyio.create_task_group() as group:
            group.start_soon(webhooks.run)
            for amount in range(2 * webhook.AT_ONCE):
                await town.pending(amount=amount)
            await until(lambda: webhooks.sent == 2 * webhook.AT_ONCE)
            await until(lambda: len(silent.requests) >= 10 * webhook.AT_ONCE)
            await anyio.wait_all_tasks_blocked()
            assert len(silent.requests) == 10 * webhook.AT_ONCE, "each has so many at once"
            group.cancel_scope.cancel()


async def test_a_redirect_is_not_followed() -> None:
    town, hook, elsewhere = Town(), Hook(302, 200), Hook(200)
    async with serving(elsewhere) as other, serving(hook) as port, telling(town, port) as webhooks:
        hook.location = f"http://127.0.0.1:{other}/hook"
        await town.pending(amount=1)
        await until(lambda: webhooks.sent == 1)
    assert webhooks.failures == 1 and len(hook.requests) == 2 and not elsewhere.requests


async def test_a_receiver_that_is_down_hears_of_it_when_it_is_up_even_after_a_restart() -> None:
    town, hook, port = Town(), Hook(200), free_port()
    async with telling(town, port) as webhooks:
        approval = await town.pending(amount=1)
        await until(lambda: webhooks.failures >= 2)
    async with serving(hook, port), telling(town, port) as webhooks:
        await until(lambda: webhooks.sent == 1)
        assert hook.told()["data"]["id"] == approval.id
    async with serving(hook, port), telling(town, port) as webhooks:
        other = await town.pending(amount=2)
        await until(lambda: webhooks.sent == 1)
    assert [hook.told(at)["data"]["id"] for at in range(2)] == [approval.id, other.id], "told once each"


async def test_what_is_decided_or_of_another_profile_is_not_told() -> None:
    town, hook = Town(), Hook(500)
    async with serving(hook) as port, telling(town, port, "two-person"):
        await town.pending(amount=1)
        town.profile = "two-person"
        approval = await town.pending(amount=2)
        await until(lambda: hook.requests)
        await town.decide(approval, word="deny")
        count = len(hook.requests)
        await until(lambda: True)
        assert {hook.told(at)["data"]["id"] for at in range(count)} == {approval.id}
    assert not town.seen
