"""A name server that is silent holds up those alone who asked it, however many hosts are looked up there."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import httpx
import pytest
from waiting import until

from sluicegate.http.client.pool import NAMED_AT_ONCE, HttpClient, look_up
from sluicegate.http.egress import Egress
from sluicegate.http.fetch import Fetcher, Unfetched

UNUSED = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # one that reads the system's certificates takes a while


@dataclass
class Silence:
    """What the system asks about hosts of `.silent.test`, which nobody answers before `over`."""

    asked: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def silence(monkeypatch: pytest.MonkeyPatch) -> Iterator[Silence]:
    there, known = Silence(), socket.getaddrinfo

    def ask(host: str, *more: Any, **hints: Any) -> Any:
        if not host.endswith(".silent.test"):
            return known(host, *more, **hints)
        there.asked.append(host)
        there.over.wait(60)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    yield there
    there.over.set()


async def fetched(host: str, whose: str, configured: str = "") -> str:
    """Why nothing was had."""
    with pytest.raises(Unfetched) as error:
        await Fetcher(Egress(), within=0.6, context=UNUSED).get(f"https://{host}/doc", configured, whose)
    return str(error.value)


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
    writer.close()


@pytest.mark.parametrize("configured", ["", "https://{}/"], ids=["named by clients", "named by the operator"])
async def test_silent_hosts_keep_nobody_from_connecting(silence: Silence, configured: str) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = httpx.URL(f"http://localhost:{server.sockets[0].getsockname()[1]}/")
    client, most = HttpClient(connect_timeout=20), 24 if configured else NAMED_AT_ONCE
    async with server, anyio.create_task_group() as group:
        for number in range(24):
            host = f"h{number}.silent.test"
            group.start_soon(fetched, host, f"client {host}", configured.format(host))
        await until(lambda: len(silence.asked) == most)
        with anyio.fail_after(20):
            assert (await client.exchange(url, (), b"", "GET")).status == 200
        await client.aclose()
    assert len(silence.asked) == most


async def test_who_gave_up_frees_no_place_and_others_of_another_kind_have_their_own(silence: Silence) -> None:
    async with anyio.create_task_group() as group:
        for number in range(NAMED_AT_ONCE):
            group.start_soon(fetched, f"h{number}.silent.test", "client x")
    await until(lambda: len(silence.asked) == NAMED_AT_ONCE)
    await fetched("late.silent.test", "client y")
    assert "late.silent.test" not in silence.asked
    await fetched("idp.silent.test", "login mail")
    await until(lambda: silence.asked[-1] == "idp.silent.test")
    silence.over.set()
    with anyio.fail_after(20):
        while "not known" not in await fetched("late.silent.test", "client y"):
            pass  # the threads of those before have just been told
    assert silence.asked[-1] == "late.silent.test"


async def test_a_host_is_looked_up_once_for_all_who_wait(silence: Silence) -> None:
    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(fetched, "One.silent.test", "server bank", "https://one.silent.test/")
    assert len(silence.asked) == 1


async def test_where_no_thread_can_be_had_the_lookup_fails_and_the_next_one_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", full)
        for _ in range(NAMED_AT_ONCE + 1):
            with pytest.raises(OSError, match="new thread"):
                await look_up("localhost", 1, "client x")
    assert await look_up("localhost", 1, "client x")
