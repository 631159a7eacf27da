"""Who cannot log in cannot hold up who did: slow and large requests and a storm of logins, beside calls of a client.

How much slower calls become meanwhile is measured by `make accept ARGS="--console attack"`.
"""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import httpx
import pytest
from console.test_console_process import Json, Tab, front, new_code
from peers.fleet import peers
from policy_bed import Bed, bearer

from sluicegate.admin.changes import MAX_PER_PRINCIPAL
from sluicegate.console.sessions import ATTEMPTS_WITHIN, MAX_ATTEMPTS

SLOW, STORM = 100, 200
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with front(tmp_path_factory.mktemp("black-box")) as running:
        yield running


@pytest.fixture(scope="module")
def tab(town: Bed) -> Iterator[Tab]:
    with Tab(town) as tab:
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        yield tab


def connected(town: Bed) -> socket.socket:
    host, _, port = town.process.admin.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=30)


def all_is_well(town: Bed, tab: Tab) -> None:
    """Clients call, and whoever is logged in goes on."""
    answer: Json = town.call("ann", "bank__look").json()
    assert answer["result"]["content"] == [{"type": "text", "text": "ran look"}]
    assert tab.ask("GET", "/api/v1/servers").status_code == 200
    assert town.process.get("/livez")[0] == 200


def test_heads_that_never_end_hold_up_nobody_and_are_ended_however_they_drip(town: Bed, tab: Tab) -> None:
    with ExitStack() as stack:
        slow = [stack.enter_context(connected(town)) for _ in range(SLOW)]
        for one in slow:
            one.sendall(b"GET /console HTTP/1.1\r\nHost: ")
        all_is_well(town, tab)
        dripping, *others = slow
        dripping.settimeout(0.5)
        answer = b""
        while not answer:
            try:
                answer = dripping.recv(4096)
            except TimeoutError:
                dripping.sendall(b"a")
                all_is_well(town, tab)
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert {one.recv(4096)[:13] for one in others} == {b"HTTP/1.1 408 "}


def test_streams_that_nobody_reads_are_bounded_for_each_principal_and_harm_no_other(town: Bed, tab: Tab) -> None:
    request = "GET /api/v1/events HTTP/1.1\r\nHost: {}\r\nAuthorization: {}\r\n\r\n"
    head = request.format(town.process.admin.removeprefix("http://"), bearer("leo")["Authorization"]).encode()
    with ExitStack() as stack:
        streams = [stack.enter_context(connected(town)) for _ in range(MAX_PER_PRINCIPAL)]
        for one in streams:
            one.sendall(head)
            assert b"200 OK" in one.recv(100)
        over = stack.enter_context(connected(town))
        over.sendall(head)
        got = b""
        while b"event: full" not in got and (part := over.recv(4096)):
            got += part
        assert b"event: full" in got
        with tab.client.stream("GET", "/api/v1/events", headers={"X-Sluice-Page": tab.page_key}) as own:
            assert next(own.iter_lines()) == "event: open"
        all_is_well(town, tab)


@pytest.mark.parametrize("size", [20_000, 1_000_000])
@pytest.mark.parametrize("name", ["Cookie", "X-Sluice-Page", "Authorization", "X-Large"])
def test_large_headers_are_refused_before_anything_is_looked_up(town: Bed, tab: Tab, name: str, size: int) -> None:
    with connected(town) as large:
        large.sendall(f"GET /console/session HTTP/1.1\r\nHost: x\r\n{name}: ".encode())
        try:
            large.sendall(b"a" * size + b"\r\n\r\n")
        except ConnectionError:
            pass  # it was refused while we went on
        assert large.recv(4096).startswith(b"HTTP/1.1 431 ")
    all_is_well(town, tab)
    assert "a" * 100 not in town.process.log()


@pytest.mark.parametrize("path", ["/console/session", "/approvals/x", "/api/v1/pins"])
def test_a_large_body_is_refused_before_it_is_whole(town: Bed, tab: Tab, path: str) -> None:
    """Each took 8 MiB of memory, of as many connections as somebody likes to open, who has shown no credential."""
    origin = town.process.admin
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {origin.removeprefix('http://')}\r\nOrigin: {origin}\r\n"
        "Sec-Fetch-Site: same-origin\r\nContent-Type: application/json\r\nContent-Length: 8000000\r\n\r\n"
    )
    with connected(town) as large:
        large.sendall(head.encode() + b" " * 500_000)
        assert large.recv(4096).split()[1] in (b"401", b"404", b"413")
    all_is_well(town, tab)


def test_a_storm_of_logins_tries_few_keys_and_locks_out_nobody_who_is_in_or_has_a_link(town: Bed, tab: Tab) -> None:
    before = sum(one.get("act") == "console_refused" for one in town.audit())
    headers = {"Origin": town.process.admin, "Sec-Fetch-Site": "same-origin"}
    began = time.monotonic()

    def wrong(number: int) -> int:
        key = f"a-key-that-is-none-{number:010}-and-long-enough"
        url = f"{town.process.admin}/console/session"
        return httpx.post(url, headers=headers, json={"key": key}, timeout=30).status_code

    with ThreadPoolExecutor(20) as threads:
        answers = threads.map(wrong, range(STORM))
        all_is_well(town, tab)
        statuses = list(answers)
    tried = statuses.count(401)
    assert set(statuses) == {401, 429} and tried <= MAX_ATTEMPTS * (1 + (time.monotonic() - began) // ATTEMPTS_WITHIN)
    all_is_well(town, tab)
    with Tab(town) as other:
        assert other.begins(other.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
    refused = [one for one in town.audit() if one.get("act") == "console_refused"]
    assert len(refused) - before == tried and not any("key-that-is-none" in str(one) for one in refused)
    assert "key-that-is-none" not in town.process.log()
