"""The admin port tells what it should to whom it should, whatever Host, Origin and path say."""

import json
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import anyio
import httpx
import pytest
from admin_deps import admin_deps, not_given
from loop_steps import Steps
from waiting import until

from sluicegate.admin import REFUSALS_A_MINUTE, AdminApplication
from sluicegate.admin.response import in_parts
from sluicegate.http.hosts import ServedNames
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Client
from sluicegate.runtime.reader_threads import in_reader_thread

TOKEN = "operator-secret"
KEY = "client-key"
OPERATOR = {"Authorization": f"Bearer {TOKEN}"}
LOOPBACK, FAR = ("127.0.0.1", 50_000), ("10.1.2.3", 50_000)


async def servers() -> list[Json]:
    return [{"name": "github", "status": "up"}]


async def list_tools(client: str) -> list[Json] | None:
    return {"local": [{"name": "gh__echo"}], "key:ci": []}.get(client)


def asker(
    peer: tuple[str, int] = LOOPBACK, reasons: list[str] | None = None, at: str = "http://127.0.0.1:7411", **given: Any
) -> httpx.AsyncClient:
    names = ServedNames(("Admin.acme.com",), ("https://App.acme.com",), trusted_proxies=given.get("proxies", ()))
    sources = admin_deps(
        ready=lambda: list(reasons or []),
        metrics=given.get("metrics", lambda: lambda: (b"sluice_sessions 0\n", "text/plain; version=1")),
        describe_servers=given.get("servers", servers),
        list_tools=given.get("listed", list_tools),
        judge_tools=given.get("listed", list_tools),
        list_prompts=given.get("listed", list_tools),
        approvals=given.get("approvals", not_given),
        client_of=lambda key: Client("key:ci") if key == KEY else None,
        may=lambda who, area, act: who.principal == "local" or (who.principal, area) in given.get("rights", ()),
        refused=given.get("refused"),
        denied=given.get("denied", lambda who, area, act: None),
    )
    transport = httpx.ASGITransport(app=AdminApplication(TOKEN, sources, names), client=peer)  # type: ignore[arg-type]
    return httpx.AsyncClient(transport=transport, base_url=at)


async def test_a_client_key_may_read_what_a_row_gives_it() -> None:
    async with asker(rights={("key:ci", "tools")}) as ask:
        key = {"Authorization": f"Bearer {KEY}"}
        assert (await ask.get("/api/v1/tools", headers=key)).status_code == 200
        refused = await ask.get("/api/v1/servers", headers=key)
        assert refused.status_code == 403 and "key:ci" in refused.json()["error"]


async def test_who_lacks_a_right_again_and_again_is_summed_up() -> None:
    """Each refusal was a record, so that a key without rights filled the disk."""
    one_by_one, summed = list[str](), list[str]()
    note = {"denied": lambda who, area, act: one_by_one.append(area), "refused": lambda at, why: summed.append(why)}
    async with asker(**note) as ask:  # type: ignore[arg-type]
        key = {"Authorization": f"Bearer {KEY}"}
        for _ in range(REFUSALS_A_MINUTE + 5):
            assert (await ask.get("/api/v1/servers", headers=key)).status_code == 403
        assert len(one_by_one) == REFUSALS_A_MINUTE and summed == ["admin_denied"] * 5


async def test_who_asks_for_much_that_is_read_in_threads_leaves_one_of_them_to_others() -> None:
    """Two searches of one client at a time kept both: nobody could look at an approval until all of its were over."""
    order, released = list[str](), threading.Event()

    async def listed(client: str) -> list[Json]:
        def read() -> None:
            order.append(client)
            released.wait(20)

        await in_reader_thread(read)
        return []

    async with asker(listed=listed, rights={("key:ci", "tools")}) as ask, anyio.create_task_group() as group:
        try:
            for at in ("/api/v1/tools?as=key:ci", *["/api/v1/prompts?as=key:ci"] * 5):
                group.start_soon(partial(ask.get, at, headers={"Authorization": f"Bearer {KEY}"}))
            await until(lambda: order)
            group.start_soon(partial(ask.get, "/api/v1/tools", headers=OPERATOR))
            await until(lambda: len(order) == 2)
            assert order == ["key:ci", "local"]
        finally:
            released.set()
    assert len(order) == 7


async def test_only_what_approvers_read_waits_for_nothing_else_that_the_same_client_reads() -> None:
    """A search of the log held up the approvals of everybody who decides as `local`. An area of its own for each turn
    let a client with two rights have both threads."""
    order, released = list[str](), threading.Event()

    def reads(kind: str, answer: Any) -> Callable[..., Awaitable[Any]]:
        def read() -> None:
            order.append(kind)
            released.wait(20)

        async def described(*of: object) -> Any:
            await in_reader_thread(read)
            return answer

        return described

    class Approvals:
        get = staticmethod(reads("approvals", (200, {})))

    rights, key = {("key:ci", "tools"), ("key:ci", "servers")}, {"Authorization": f"Bearer {KEY}"}
    given = {"listed": reads("tools", []), "servers": reads("servers", []), "approvals": Approvals(), "rights": rights}
    async with asker(**given) as ask, anyio.create_task_group() as group:
        try:
            group.start_soon(partial(ask.get, "/api/v1/tools", headers=key))
            await until(lambda: order)
            group.start_soon(partial(ask.get, "/api/v1/servers", headers=key))
            await anyio.wait_all_tasks_blocked()
            group.start_soon(partial(ask.get, "/api/v1/tools", headers=OPERATOR))
            await until(lambda: len(order) == 2)
            assert order == ["tools", "tools"]
        finally:
            released.set()
    order.clear()
    released.clear()
    async with asker(**given) as ask, anyio.create_task_group() as group:
        try:
            for _ in range(3):
                group.start_soon(partial(ask.get, "/api/v1/tools", headers=OPERATOR))
            await until(lambda: order)
            group.start_soon(partial(ask.get, "/api/v1/approvals/apr_1", headers=OPERATOR))
            await until(lambda: len(order) == 2)
            assert order == ["tools", "approvals"]
        finally:
            released.set()
    assert len(order) == 4


async def test_a_path_that_is_none_is_recorded_by_its_beginning() -> None:
    """Its area was searched for secrets whole, in one step of the event loop."""
    areas = list[str]()
    async with asker(denied=lambda who, area, act: areas.append(area)) as ask:
        answer = await ask.get("/api/v1/" + "password=" * 1_500, headers={"Authorization": f"Bearer {KEY}"})
        assert answer.status_code == 403 and len(answer.text) < 1_000
        assert areas == [("password=" * 10)[:64]]


async def test_probes_need_no_credential() -> None:
    async with asker(peer=FAR) as ask:
        assert (await ask.get("/livez")).json() == {"status": "ok"}
        metrics = await ask.get("/metrics")
        assert (metrics.text, metrics.headers["content-type"]) == ("sluice_sessions 0\n", "text/plain; version=1")
        assert (await ask.get("/readyz")).status_code == 200


async def test_metrics_that_are_off_are_not_there() -> None:
    async with asker(metrics=None) as ask:
        assert (await ask.get("/metrics")).status_code == 404


@pytest.mark.parametrize(
    ("peer", "headers", "sees"),
    [
        (LOOPBACK, {}, True),
        (("::1", 5), {}, True),
        (LOOPBACK, {"Host": "rebound.evil.com"}, False),
        (LOOPBACK, {"X-Forwarded-For": "10.1.2.3"}, False),
        (LOOPBACK, {"Forwarded": "for=10.1.2.3"}, False),
        (FAR, {}, False),
        (FAR, OPERATOR, False),
        (FAR, {"Authorization": "Bearer wrong"}, False),
        (FAR, {"Authorization": f"Bearer {KEY}"}, True),
        (LOOPBACK, {**OPERATOR, "Host": "kubernetes"}, True),
    ],
)
async def test_reasons_are_for_this_machine_and_for_credentials(
    peer: tuple[str, int], headers: dict[str, str], sees: bool
) -> None:
    async with asker(peer, ["no policy is loaded"]) as ask:
        answer = await ask.get("/readyz", headers=headers)
        assert answer.status_code == 503
        if sees:
            assert answer.json() == {"status": "not ready", "reasons": ["no policy is loaded"]}
        else:
            assert answer.content == b""


async def test_the_operator_sees_servers_and_the_catalog_of_a_client() -> None:
    async with asker() as ask:
        ask.headers.update(OPERATOR)
        assert (await ask.get("/api/v1/servers")).json() == {"servers": [{"name": "github", "status": "up"}]}
        assert (await ask.get("/api/v1/tools")).json() == {"as": "local", "tools": [{"name": "gh__echo"}]}
        assert (await ask.get("/api/v1/tools?as=key%3Aci")).json() == {"as": "key:ci", "tools": []}
        assert (await ask.get("/api/v1/tools?as=nobody")).status_code == 404
        for query in ("as=a&as=b", "like=a", "as=" + "a" * 5_000, "limit=0", "limit=1001", "limit=-1", "limit=\u0661"):
            assert (await ask.get(f"/api/v1/tools?{query}")).status_code == 400


@pytest.mark.parametrize("path", ["tools", "tools/judged", "prompts"])
async def test_a_list_comes_in_pages_for_whoever_asks_so(path: str) -> None:
    rows = [{"name": f"gh__{number}"} for number in range(5)]

    async def listed(principal: str) -> list[Json]:
        return rows

    async with asker(listed=listed) as ask:
        ask.headers.update(OPERATOR)
        got, cursor, pages = list[Json](), "", 0
        while pages == 0 or cursor:
            page = (await ask.get(f"/api/v1/{path}", params={"limit": "2", "cursor": cursor})).json()
            got += page[path.partition("/")[0]]
            cursor, pages = page.get("next", ""), pages + 1
        assert (got, pages) == (rows, 3)
        whole = (await ask.get(f"/api/v1/{path}?limit=5")).json()
        assert whole == (await ask.get(f"/api/v1/{path}")).json()
        assert "next" not in whole
        gone = await ask.get(f"/api/v1/{path}?cursor=gh__7")
        assert gone.status_code == 400
        assert "not any more" in gone.json()["error"]


@pytest.mark.parametrize(
    ("peer", "authorization", "status"),
    [
        (LOOPBACK, [f"Bearer {TOKEN}"], 200),
        (LOOPBACK, [f"bearer  {TOKEN} "], 200),
        (FAR, [f"Bearer {TOKEN}"], 401),
        (LOOPBACK, [], 401),
        (LOOPBACK, ["Bearer "], 401),
        (LOOPBACK, ["Bearer wrong"], 401),
        (LOOPBACK, ["Bearer \xe9"], 401),
        (LOOPBACK, [f"Basic {TOKEN}"], 401),
        (LOOPBACK, [f"Bearer {TOKEN}", f"Bearer {TOKEN}"], 401),
        (LOOPBACK, [f"Bearer {KEY}"], 403),
        (FAR, [f"Bearer {KEY}"], 403),
    ],
)
async def test_who_may_ask_the_api(peer: tuple[str, int], authorization: list[str], status: int) -> None:
    async with asker(peer) as ask:
        headers = [(b"authorization", value.encode("latin-1")) for value in authorization]
        answer = await ask.get("/api/v1/servers", headers=headers)
        assert answer.status_code == status
        assert ("www-authenticate" in answer.headers) == (status == 401)
        missing = await ask.get("/api/v1/nothing", headers=headers)
        assert missing.status_code == (404 if status == 200 else status)


async def test_a_forwarded_operator_token_is_none() -> None:
    async with asker() as ask:
        answer = await ask.get("/api/v1/servers", headers={**OPERATOR, "X-Forwarded-For": "127.0.0.1"})
        assert answer.status_code == 401


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics", "/api/v1/servers", "/"])
@pytest.mark.parametrize("host", ["a/?x=", "a#", "a?", "a b", "", "user@a", "[::1", "a:port", "a/../livez", "é"])
async def test_a_malformed_host_reaches_no_route(path: str, host: str) -> None:
    async with asker() as ask:
        answer = await ask.get(path, headers=[(b"Host", host.encode()), (b"Authorization", f"Bearer {TOKEN}".encode())])
        assert answer.status_code == 400


async def test_two_hosts_are_malformed() -> None:
    async with asker() as ask:
        assert (await ask.get("/livez", headers=[("Host", "127.0.0.1"), ("Host", "127.0.0.1")])).status_code == 400


@pytest.mark.parametrize(
    ("at", "host", "known"),
    [
        ("http://127.0.0.1:7411", "127.0.0.1:7411", True),
        ("http://127.0.0.1:7411", "localhost", True),
        ("http://127.0.0.1:7411", "LOCALHOST:80", True),
        ("http://127.0.0.1:7411", "[::1]:7411", True),
        ("http://127.0.0.1:7411", "admin.acme.com", True),
        ("http://127.0.0.1:7411", "localhost.evil.com", False),
        ("http://127.0.0.1:7411", "evil.com", False),
        ("http://10.0.0.1:7411", "10.0.0.1:7411", True),
        ("http://10.0.0.1:7411", "10.0.0.1", False),
        ("http://10.0.0.1:7411", "localhost:7411", False),
        ("http://10.0.0.1:7411", "127.0.0.1:7411", False),
    ],
)
async def test_the_api_is_served_under_its_own_names_alone(at: str, host: str, known: bool) -> None:
    async with asker(at=at) as ask:
        answer = await ask.get("/api/v1/servers", headers={**OPERATOR, "Host": host})
        assert answer.status_code == (200 if known else 421)
        assert (await ask.get("/livez", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    ("origins", "status"),
    [
        (["https://app.acme.com"], 200),
        (["http://127.0.0.1:7411"], 200),
        (["http://127.0.0.1:3000"], 403),
        (["https://evil.com"], 403),
        (["null"], 403),
        (["https://app.acme.com", "https://evil.com"], 403),
    ],
)
async def test_pages_of_other_origins_may_not_ask(origins: list[str], status: int) -> None:
    async with asker() as ask:
        headers = [("Origin", origin) for origin in origins]
        for path in ("/api/v1/servers", "/metrics", "/livez"):
            assert (await ask.get(path, headers=[*headers, *OPERATOR.items()])).status_code == status


async def test_a_page_that_a_foreign_name_led_here_may_not_even_read_metrics() -> None:
    """DNS rebinding: Host and Origin are the page's own name."""
    async with asker() as ask:
        page = {"Host": "rebound.evil.com:7411", "Origin": "http://rebound.evil.com:7411"}
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await ask.get(path, headers={"Host": page["Host"]})).status_code == 200
            assert (await ask.get(path, headers=page)).status_code == 403


@pytest.mark.parametrize(
    ("proxies", "address"),
    [(("127.0.0.0/8",), "203.0.113.9"), (("127.0.0.1", "10.0.0.1"), "203.0.113.9"), (("10.0.0.1",), "127.0.0.1"),
     ((), "127.0.0.1")],
)  # fmt: skip
async def test_a_refused_credential_is_recorded_with_the_address_that_a_trusted_proxy_names(
    proxies: tuple[str, ...], address: str
) -> None:
    seen: list[tuple[str, str]] = []
    async with asker(proxies=proxies, refused=lambda *what: seen.append(what)) as ask:
        lines = [("X-Forwarded-For", "198.51.100.1"), ("X-Forwarded-For", "203.0.113.9")]
        assert (await ask.get("/api/v1/servers", headers=lines)).status_code == 401
    assert seen == [(address, "admin_none")]


@pytest.mark.parametrize("name", ["Forwarded", "X-Forwarded-Proto", "X-Forwarded-Ssl", "X-Real-IP", "Via"])
async def test_whoever_was_forwarded_is_not_of_this_machine_whatever_proxy_it_was(name: str) -> None:
    async with asker(proxies=("127.0.0.1",)) as ask:
        answer = await ask.get("/api/v1/servers", headers={**OPERATOR, name: "127.0.0.1"})
        assert answer.status_code == 401


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
async def test_nothing_can_be_changed_here(method: str) -> None:
    async with asker() as ask:
        for path in ("/livez", "/api/v1/servers"):
            answer = await ask.request(method, path, headers=OPERATOR, json={"command": "sh"})
            assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/livez/", "//livez", "/api/v1", "/api/v1/", "/api/v2/servers", "/mcp"])
async def test_other_paths_are_not_there(path: str) -> None:
    async with asker() as ask:
        assert (await ask.get(f"http://127.0.0.1:7411{path}", headers=OPERATOR)).status_code == 404


async def test_head_gives_the_headers_alone_and_nothing_is_cached() -> None:
    async with asker() as ask:
        answer = await ask.head("/livez")
        assert (answer.status_code, answer.content, answer.headers["content-length"]) == (200, b"", "16")
        assert answer.headers["cache-control"] == "no-store"


async def test_what_is_not_http_is_left_alone() -> None:
    def must_not(*_: object) -> Any:
        raise AssertionError("nothing is sent")

    sources = admin_deps()
    given: Callable[..., Any] = AdminApplication(TOKEN, sources)
    await given({"type": "lifespan"}, must_not, must_not)


async def test_rows_of_megabytes_are_sent_one_after_the_other() -> None:
    rows: list[Json] = [{"name": f"t{number}", "text": "d" * 500_000} for number in range(40)]
    steps, sent, whole = Steps(), Counter[int](), b""
    async for part in in_parts({"as": "local"}, "tools", rows):
        sent[steps.now] += len(part)
        whole += part
    steps.stop()
    assert max(sent.values()) < 510_000 and json.loads(whole) == {"as": "local", "tools": rows}
    odd: list[Json] = [{"name": "\ud800"}]
    for about in ({}, {"next": "b"}):
        for some in (odd, []):
            found = b"".join([part async for part in in_parts(about, "pins", some)])
            assert json.loads(found) == about | {"pins": some}


@pytest.mark.parametrize("lost", ["key", "right"])
async def test_what_is_revoked_while_the_body_comes_changes_nothing(lost: str) -> None:
    keys, rights, changed = {KEY: Client("key:ci")}, {"servers"}, list[str]()

    async def change(key: str, action: str, who: str) -> tuple[int, Json]:
        changed.append(action)
        return 200, {}

    async def body() -> AsyncIterator[bytes]:
        yield b"{"
        (keys if lost == "key" else rights).clear()
        yield b"}"

    deps = admin_deps(client_of=keys.get, may=lambda who, area, act: area in rights, change_server=change)
    transport = httpx.ASGITransport(app=AdminApplication(TOKEN, deps), client=FAR)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7411") as ask:
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        answer = await ask.post("/api/v1/servers/github/disable", content=body(), headers=headers)
        assert (answer.status_code, changed) == (401 if lost == "key" else 403, [])
