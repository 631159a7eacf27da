"""The table of the admin API holds for every row of it: who is refused, and that nothing is shown or done then."""

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any, cast

import httpx
import pytest
from admin_deps import admin_deps
from jsonschema import Draft202012Validator

from sluicegate.admin import AdminApplication
from sluicegate.admin.approval_page import Page
from sluicegate.admin.approvals import ApprovalsApi
from sluicegate.admin.blocks import BlocksApi
from sluicegate.admin.calls import CallsApi
from sluicegate.admin.changes import AREAS as TOPICS
from sluicegate.admin.changes import Changes
from sluicegate.admin.endpoints import ENDPOINTS, PinsApi
from sluicegate.admin.logins import LoginsApi
from sluicegate.admin.response import AdminResponse
from sluicegate.admin.routes import ACTIONS, API, MAX_BODY, ROUTES, ApiRoute, openapi, pattern, step_up_of
from sluicegate.admin.verification import Verification
from sluicegate.http.hosts import ADMIN_PORT
from sluicegate.policy.lint import AREAS
from sluicegate.protocol.model import Client

CANARY = "what only those with the right may see"
KEY = {"Authorization": "Bearer client-key"}


class Sources:
    """Everything that the port can tell or do. `asked` has what was asked of it."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def facts(self, *words: str) -> dict[str, Any]:
        self.asked.append("facts")
        return {"said": CANARY}

    async def servers(self) -> list[dict[str, Any]]:
        self.asked.append("servers")
        return [{"key": CANARY, "status": "up"}, {"key": "gh", "status": CANARY}]

    def status(self) -> dict[str, Any]:
        self.asked.append("status")
        return {"version": CANARY, "policy": {"revision": "r", "mode": "enforce"}}

    async def tools(self, client: str) -> list[dict[str, Any]]:
        self.asked.append("tools")
        return [{"name": CANARY}]

    async def cost(self, *words: str) -> dict[str, Any]:
        self.asked.append("cost")
        return {"tools": [{"name": CANARY}]}

    async def resources(self, *words: str) -> dict[str, Any]:
        self.asked.append("resources")
        return {"resources": [{"uri": CANARY}], "templates": []}

    async def explain(self, *words: object) -> dict[str, Any]:
        self.asked.append("explain")
        return {"verdict": "deny", "rule": "", "reason": CANARY, "principal": "key:a"}

    async def logins(self) -> list[dict[str, Any]]:
        self.asked.append("logins")
        return [{"id": CANARY, "server": "gh", "principal": "key:a"}]

    async def login(self, *_: object) -> tuple[int, dict[str, Any]]:
        self.asked.append("login")
        return 200, {"url": CANARY}

    def output(self, *words: str) -> dict[str, Any]:
        self.asked.append("output")
        about = dict.fromkeys(("server", "transport", "status", "last_error", "exit", "position"), "")
        return {**about, "lines": [CANARY]}

    async def change_server(self, *words: str) -> tuple[int, dict[str, Any]]:
        self.asked.append("change")
        return 200, {"server": words[0], "action": words[1], "open_calls": 0}

    async def get(self, path: Any, *_: object) -> tuple[int, dict[str, Any]]:
        self.asked.append("approvals")
        return 200, {"said": CANARY}

    async def post(self, *_: object) -> tuple[int, dict[str, Any]]:
        self.asked.append("post")
        return 200, {"said": CANARY}

    async def delete(self, *_: object) -> tuple[int, dict[str, Any]]:
        self.asked.append("delete")
        return 200, {"said": CANARY}

    async def events(self, *_: object) -> AsyncGenerator[bytes, None]:
        self.asked.append("events")
        yield CANARY.encode()

    async def each_row(self, *_: object) -> AsyncGenerator[dict[str, Any], None]:
        self.asked.append("pins")
        yield {"name": CANARY}

    async def accept(self, *_: object) -> list[dict[str, Any]]:
        self.asked.append("accept")
        return [{"name": CANARY}]

    async def calls(self, *_: object) -> tuple[int, dict[str, Any]]:
        self.asked.append("calls")
        return 200, {"calls": [{"id": CANARY}]}

    page = show = records = calls

    async def preview(self, *_: object) -> dict[str, Any]:
        self.asked.append("preview")
        return {"call": "c1", "result": {"contents": [{"text": CANARY}]}}

    @property
    def start(self) -> Any:
        return self.status

    @property
    def problem(self) -> None:
        return None

    def head(self) -> None:
        self.asked.append("head")


class OpenedPage:
    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    async def get(self, *_: object) -> tuple[int, str]:
        self._sources.asked.append("page")
        return 200, CANARY

    post = get


def asker(
    may: Callable[[Client, str, str], bool] = lambda who, area, act: False, peer: str = "127.0.0.1"
) -> tuple[httpx.AsyncClient, Sources]:
    made = Sources()
    sources = admin_deps(
        ready=list, metrics=lambda: lambda: (b"sluice_sessions 0\n", "text/plain"), describe_servers=made.servers,
        list_tools=made.tools, judge_tools=made.tools, cost=made.cost,
        client_of=lambda key: Client("key:ci") if key == "client-key" else None, may=may,
        change_server=made.change_server, pins=cast(PinsApi, made), approvals=cast(ApprovalsApi, made),
        list_prompts=made.tools, list_resources=made.resources, output=made.output,
        audit=cast(Any, made), calls=cast(CallsApi, made), verification=cast(Verification, made),
        facts=made.facts, explain=made.explain, status=made.status, preview=made.preview,
        logins=LoginsApi(made.logins, made.login, made.login), changes=Changes(dict, lambda: True),
        blocks=BlocksApi(made.logins, made.login, made.login),
        page=cast(Page, OpenedPage(made)),
    )  # fmt: skip
    transport = httpx.ASGITransport(app=AdminApplication("token", sources), client=(peer, 5000))
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:7411"), made


BODIES = {
    "accept_pins": {"server": "gh", "accept": []},
    "explain": {"as": "a", "method": "tools/call", "target": "t"},
    "begin_login": {"server": "gh"},
    "add_block": {"what": "gh"},
    "preview": {"method": "resources/read", "target": "t"},
}  # fmt: skip


def target(route: ApiRoute) -> str:
    path = route.path.replace("{id:path}", "apr_1").replace("{id}", "apr_1").replace("{key}", "gh")
    return path + ("?as=a&method=tools/call&target=t" if route.operation == "find_facts" else "")


async def send(ask: httpx.AsyncClient, route: ApiRoute, **more: Any) -> httpx.Response:
    headers = {"Content-Type": "application/json", **more.pop("headers", {})}
    body = {"content": json.dumps(BODIES.get(route.operation, {}))} if route.method == "POST" else {}
    return await ask.request(route.method, target(route), headers=headers, **{**body, **more})


API_ROUTES = [route for route in ROUTES if not route.is_open]
each = pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
each_of_api = pytest.mark.parametrize("route", API_ROUTES, ids=lambda route: route.operation)
each_write = pytest.mark.parametrize(
    "route", [one for one in API_ROUTES if one.method == "POST"], ids=lambda route: route.operation
)


def may_all(who: Client, area: str, act: str) -> bool:
    return True


@each_of_api
async def test_without_a_credential_there_is_no_answer(route: ApiRoute) -> None:
    for headers in ({}, {"Authorization": "Bearer guess"}, {"Authorization": "Bearer token, Bearer token"}):
        ask, made = asker(may_all)
        answer = await send(ask, route, headers=headers)
        assert (answer.status_code, answer.headers["www-authenticate"], made.asked) == (401, "Bearer", [])


@each_of_api
async def test_the_operator_token_is_none_from_another_machine(route: ApiRoute) -> None:
    ask, made = asker(may_all, peer="10.0.0.1")
    assert (await send(ask, route, headers={"Authorization": "Bearer token"})).status_code == 401 and not made.asked


@each_of_api
async def test_without_the_right_there_is_no_data(route: ApiRoute) -> None:
    """Every other right is of no use."""
    others = [(area.removeprefix("admin:"), act) for area in AREAS for act in ("read", "write")]
    ask, made = asker(lambda who, area, act: (area, act) in others and (area, act) != (route.area, route.act))
    answer = await send(ask, route, headers=KEY)
    if route.area:
        assert f"admin:{route.area}" in AREAS
        assert answer.status_code == 403 and f"admin:{route.area} {route.act}" in answer.json()["error"]
    assert CANARY not in answer.text and not made.asked
    if not route.area:
        assert answer.status_code == 200 and route.operation in ("me", "openapi", "follow_changes")


@each_of_api
async def test_with_the_right_it_is_served(route: ApiRoute) -> None:
    """Its own right alone."""
    asked: list[tuple[str, str]] = []

    def may(who: str, area: str, act: str) -> bool:
        asked.append((area, act))
        return (area, act) == (route.area or "policy", route.act)

    ask, made = asker(may)
    answer = await send(ask, route, headers=KEY)
    # Of the audit log nothing is signed yet.
    assert answer.status_code == (404 if route.operation == "show_audit_head" else 200), answer.text
    assert "no such path" not in answer.text and len(made.asked) == bool(route.area)
    all_rights = {(area.removeprefix("admin:"), act) for area in AREAS for act in ("read", "write")}
    more = {
        "me": all_rights,
        "show_status": {("audit", "read")},
        "follow_changes": {(area, "read") for area in TOPICS.values()},
    }
    assert set(asked) == ({(route.area, route.act)} if route.area else set()) | more.get(route.operation, set())


async def test_me_names_the_rights_of_whoever_asks() -> None:
    ask, _ = asker(lambda who, area, act: (area, act) in {("servers", "read"), ("pins", "read"), ("pins", "write")})
    answer = await ask.get(API + "me", headers=KEY)
    assert answer.json() == {"principal": "key:ci", "rights": {"servers": ["read"], "pins": ["read", "write"]}}


async def test_one_server_is_the_row_of_its_key() -> None:
    ask, _ = asker(may_all)
    assert (await ask.get(API + "servers/gh", headers=KEY)).json() == {"key": "gh", "status": CANARY}
    assert (await ask.get(API + "servers/nope", headers=KEY)).status_code == 404


@each
async def test_under_another_name_nothing_is_served_but_probes(route: ApiRoute) -> None:
    ask, made = asker(may_all)
    answer = await send(ask, route, headers={**KEY, "Host": "rebound.evil.test"})
    assert answer.status_code == (200 if route.path in ADMIN_PORT.any_host else 421) and not made.asked


@each
@pytest.mark.parametrize("origin", ["https://evil.test", "null", "http://127.0.0.1:3000"])
async def test_pages_of_other_origins_get_nothing(route: ApiRoute, origin: str) -> None:
    ask, made = asker(may_all)
    answer = await send(ask, route, headers={**KEY, "Origin": origin})
    assert answer.status_code == 403 and not made.asked and CANARY not in answer.text


@each_write
@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
async def test_what_a_form_can_send_changes_nothing(route: ApiRoute, kind: str) -> None:
    ask, made = asker(may_all)
    answer = await send(ask, route, headers={**KEY, "Content-Type": kind})
    assert answer.status_code == 415 and not made.asked


@each_write
async def test_a_body_is_bounded_and_read_for_nobody_without_the_right(route: ApiRoute) -> None:
    for may, status in ((may_all, 413), (lambda who, area, act: False, 403)):
        ask, made = asker(may)
        answer = await send(ask, route, headers=KEY, content=b" " * (MAX_BODY + 1))
        assert answer.status_code == status and not made.asked


@pytest.mark.parametrize("path", sorted({route.path for route in ROUTES}))
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND"])
async def test_a_method_that_no_row_has_is_refused_before_the_credential(path: str, method: str) -> None:
    rows = [route for route in ROUTES if route.path == path]
    allowed = [name for route in rows for name in route.methods]
    ask, made = asker(may_all)
    answer = await ask.request(method, target(rows[0]))
    assert (answer.status_code == 405) == (method not in allowed)
    if method not in allowed:
        assert answer.headers["allow"] == ", ".join(allowed) and not made.asked


@pytest.mark.parametrize("path", ["nothing", "servers/gh/a/b", "servers/gh/explode", "approvals/a/b", "grants/a/b"])
async def test_who_has_no_credential_or_right_does_not_learn_what_is_not_there(path: str) -> None:
    area = path.partition("/")[0]
    for headers, may, status in (
        ({}, may_all, 401), (KEY, lambda who, area, act: False, 403), (KEY, may_all, 404),
    ):  # fmt: skip
        asked: list[str] = []
        ask, made = asker(lambda who, area, act, may=may, asked=asked: asked.append(area) or may(who, area, act))  # type: ignore[misc]
        assert (await ask.get(API + path, headers=headers)).status_code == status and not made.asked
        assert set(asked) <= {area}
        assert (await ask.post(API + path, headers=headers, json={})).status_code == 405


def test_every_operation_has_one_row_and_an_answer() -> None:
    operations = [route.operation for route in ROUTES]
    assert len(operations) == len(set(operations))
    assert {route.operation for route in API_ROUTES} == ENDPOINTS.keys()
    assert {route.path for route in ROUTES if route.is_open and not route.path.startswith("/approvals/")} == set(
        ADMIN_PORT.any_host
    )


def test_what_changes_something_leaves_a_record_and_what_only_shows_has_no_right_to_write() -> None:
    for route in API_ROUTES:
        # No URL has the arguments of `explain`: they may be secret. A proof takes long: no GET begins one.
        only_shows = route.method == "GET" or route.operation in ("explain", "verify_log")
        assert only_shows == (not route.audit), route.operation
        assert (route.act == "write") <= (route.method != "GET"), route.operation


def test_what_shows_a_secret_or_is_hard_to_undo_needs_step_up() -> None:
    found = {(route.method, target(route)): step_up_of(route.method, target(route)) for route in ROUTES}
    assert {request: when for request, when in found.items() if when} == {
        ("POST", f"{API}approvals/apr_1/reveal"): "always",
        ("POST", f"{API}servers/gh/restart"): "required", ("POST", f"{API}servers/gh/disable"): "required",
        ("POST", f"{API}pins"): "many",
        ("POST", f"{API}logins"): "always", ("DELETE", f"{API}logins/apr_1"): "always",
        ("DELETE", f"{API}blocks/apr_1"): "always",
    }  # fmt: skip
    assert not step_up_of("GET", f"{API}approvals/apr_1/reveal") and step_up_of("POST", "/nothing") == "always"


async def test_an_answer_without_a_body_says_its_length() -> None:
    """Else it is taken for a stream, which an answer of 204 cannot be."""
    assert AdminResponse(204, b"").headers["content-length"] == "0"


async def test_openapi_has_every_row_with_its_right_and_its_schemas_are_schemas() -> None:
    ask, _ = asker()
    document = (await ask.get(f"{API}openapi.json", headers=KEY)).json()
    assert document == json.loads(json.dumps(openapi())) and document["openapi"] == "3.1.0"
    found = {
        (method.upper(), path): operation
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    }
    assert len(found) == len(ROUTES)
    for route in ROUTES:
        operation = found[route.method, route.path.replace(":path}", "}")]
        assert operation["operationId"] == route.operation
        assert operation["x-right"] == (f"admin:{route.area} {route.act}" if route.area else "")
        assert bool(operation["security"]) == (not route.is_open)
        named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
        assert all("{" + name + "}" in route.path.replace(":path}", "}") for name in named)
        assert len(named) == route.path.count("{")
        for schema in (route.request, route.response):
            if schema is not None:
                Draft202012Validator.check_schema(schema)


def test_a_path_belongs_to_the_first_row_that_has_it() -> None:
    """`approvals/events` is no approval."""
    for route in ROUTES:
        first = next(one for one in ROUTES if pattern(one.path).fullmatch(target(route).partition("?")[0]))
        assert first.path == route.path
    assert len(ACTIONS) == sum(route.path.startswith(f"{API}servers/") for route in ROUTES if route.method == "POST")


async def test_changes_are_for_who_may_see_one_of_their_topics() -> None:
    ask, _ = asker(lambda who, area, act: (area, act) == ("pins", "read"))
    for query, status in (("", 200), ("?topics=pin,call", 200), ("?topics=call", 403), ("?topics=x", 400)):
        answer = await ask.get(f"{API}events{query}", headers=KEY)
        assert answer.status_code == status, query
        assert answer.text.startswith("event: open\n") if status == 200 else set(answer.json()) == {"error"}
    assert (
        "key:ci lacks the right admin:audit read on sluice"
        in (await ask.get(f"{API}events?topics=call", headers=KEY)).text
    )
