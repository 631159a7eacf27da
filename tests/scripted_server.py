"""A server of the middle that does what a test says, and remembers what it was asked."""

import json
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import anyio

from sluicegate.catalog.snapshot import KINDS
from sluicegate.catalog_cache import CatalogCache, ListSettings, Resolver
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.hub import Hub
from sluicegate.protocol import input_requests_server
from sluicegate.protocol.jsonrpc import METHOD_NOT_FOUND, Json
from sluicegate.protocol.methods import LISTS
from sluicegate.protocol.model import (
    Call,
    Client,
    Decision,
    Era,
    Failure,
    Outcome,
    Result,
    Subscribed,
    Updated,
    Verdict,
    refuse,
)
from sluicegate.router import Cursors, MayList, MaySee, Router
from sluicegate.router.tasks import InspectState, uninspected
from sluicegate.router.tool_search import WITHOUT, SearchDeps
from sluicegate.router.visible_lists import PermissionKey, no_permission_key
from sluicegate.store.memory import MemoryStore

ALL = {"tools": {"listChanged": True}, "prompts": {"listChanged": True}, "resources": {"listChanged": True}}
ALLOWED, DENIED, ASKED = (Decision(verdict, "test", "") for verdict in (Verdict.ALLOW, Verdict.DENY, Verdict.ASK))
Answer = Callable[[Call], Awaitable[Outcome]]


class Scripted:
    """Lists its items in pages of `per_page`, its own cursors being offsets; `answers` overrides a method."""

    def __init__(self, key: str, *, per_page: int = 100, capabilities: Json | None = None, **lists: list[Any]) -> None:
        self.key = self.identity = key
        self.status: Literal["starting", "up", "down", "disabled"] = "up"
        self.per_page = per_page
        self.capabilities = ALL if capabilities is None else capabilities
        self.instructions: str | None = None
        self.items: dict[str, list[Any]] = {
            "tools/list": tools(*lists.get("tools", [])),
            "prompts/list": tools(*lists.get("prompts", [])),
            "resources/list": resources(*lists.get("resources", [])),
            "resources/templates/list": [{"name": uri, "uriTemplate": uri} for uri in lists.get("templates", [])],
        }
        self.ttl_ms = 0
        self.answers: dict[str, Answer] = {}
        self.asked: list[Call] = []
        self.scopes: Callable[[Client], str] = lambda client: client.principal
        self.is_ready = anyio.Event()
        self.is_ready.set()
        self.held = 0
        self.told: list[tuple[str, Updated]] = []
        self.refuses: dict[str, Failure] = {}
        self.holds: list[BaseException | None] = []  # what the next holds raise

    def unavailable(self, call: Call) -> Outcome:
        why = "it has not said yet what it offers."
        return refuse(call.method, "server_unavailable", f"The server {self.key} is not available: {why}")

    def shows(self, client: Client) -> bool:
        return self.status != "down"

    def era_for(self, client: Client) -> Era | None:
        return client.era

    def capability_set(self, client: Client, era: Era) -> str:
        return input_requests_server.capability_set(client.capabilities)

    def scope(self, client: Client) -> str:
        return self.scopes(client)

    start_timeout = start_left = 30.0

    async def ready(self, is_needed: bool = False) -> None:
        await self.is_ready.wait()

    async def hold(self, client: Client) -> Callable[[], None]:
        problem = self.holds.pop(0) if self.holds else None
        if problem is not None:
            raise problem
        self.held += 1
        return self._release

    async def subscribe(self, client: Client, uris: Collection[str], tell: Updated) -> Subscribed:
        problem = self.holds.pop(0) if self.holds else None
        if problem is not None:
            raise problem
        wanted = [uri for uri in uris if uri not in self.refuses]
        for uri in wanted:
            self.told.append((uri, tell))
        return partial(self._unsubscribe, wanted, tell), {uri: self.refuses[uri] for uri in uris if uri in self.refuses}

    def _unsubscribe(self, uris: list[str], tell: Updated, uri: str | None = None) -> None:
        for gone in [each for each in uris if uri in (None, each)]:
            uris.remove(gone)
            self.told.remove((gone, tell))

    def update(self, of: str, **params: Any) -> None:
        """Says that something changed to whoever subscribed to `of`."""
        for uri, tell in self.told:
            if uri == of:
                tell({"uri": of, **params})

    def _release(self) -> None:
        self.held -= 1

    def count(self, method: str) -> int:
        return sum(call.method == method for call in self.asked)

    async def __call__(self, call: Call) -> Outcome:
        self.asked.append(call)
        if call.method in self.answers:
            return await self.answers[call.method](call)
        if call.method == "server/discover":
            text = {} if self.instructions is None else {"instructions": self.instructions}
            return Result({"capabilities": self.capabilities, **text})
        if call.method in LISTS:
            return self._page(call)
        return Failure(METHOD_NOT_FOUND, "Method not found")

    def _page(self, call: Call) -> Outcome:
        if LISTS[call.method].capability not in self.capabilities:
            return Failure(METHOD_NOT_FOUND, "Method not found")
        start = int(call.params.get("cursor", "0"))
        items = self.items[call.method]
        more = {"nextCursor": str(start + self.per_page)} if start + self.per_page < len(items) else {}
        page = items[start : start + self.per_page]
        return Result({LISTS[call.method].key: page, **more, "ttlMs": self.ttl_ms, "cacheScope": "private"})


def tools(*names: Any) -> list[Any]:
    return [{"name": name, "inputSchema": {"type": "object"}} if isinstance(name, str) else name for name in names]


def resources(*uris: Any) -> list[Any]:
    return [{"uri": uri, "name": uri} if isinstance(uri, str) else uri for uri in uris]


def seal(purpose: str, payload: Json, bound: str) -> str:
    """No secret, but any change of it, or of what it is bound to, shows."""
    text = json.dumps([purpose, payload, bound])
    return json.dumps([payload, hash(text)]).encode().hex()


def unseal(purpose: str, token: str, bound: str) -> Json | None:
    try:
        payload, mark = json.loads(bytes.fromhex(token))
    except ValueError:
        return None
    return payload if mark == hash(json.dumps([purpose, payload, bound])) else None


class Front:
    """Lists, resolver and router in front of scripted servers, wired as the application does it."""

    def __init__(
        self, *servers: Scripted, hide: Callable[[str, str], bool] = lambda server, own: False,
        store: MemoryStore | None = None, generation: str = "1", pins: DefinitionPins | None = None,
        may_list: MayList | None = None, may_see: MaySee | None = None, asked: Collection[str] = (),
        permission_key: PermissionKey = no_permission_key, inspected: InspectState = uninspected,
        current: Callable[[Client], Client | None] = lambda client: client, searching: SearchDeps = WITHOUT,
        **settings: Any,
    ) -> None:  # fmt: skip
        self.hide = hide
        self.servers = {server.key: server for server in servers}
        self.hub = Hub()
        base = ListSettings(prefixes={key: key for key in self.servers}, list_timeout=2.0)
        self.lists = CatalogCache(replace(base, **settings), self.servers, self.hub, store, pins)

        def not_hidden(call: Call, server: str, target: Any) -> bool:
            return not self.hide(server, target.own)

        may_list = may_list or not_hidden
        self.resolver = Resolver(self.lists, may_list)
        self.cursors = Cursors(seal, unseal, lambda: dict.fromkeys(self.servers, generation))
        self.router = Router(
            self.servers, self.lists, self.resolver, self.hub, self.cursors, may_list,
            may_see or (lambda call, server: not self.hide(server, "*")),
            lambda call, target: (
                DENIED if not may_list(call, target.server, target) else ASKED if target.own in asked else ALLOWED
            ),
            permission_key=permission_key, inspected=inspected, current=current, searching=searching,
        )  # fmt: skip

    async def __aenter__(self) -> "Front":
        return self

    async def __aexit__(self, *error: object) -> None:
        self.lists.close()
        self.hub.close()

    async def ask(self, method: str, client: Client | None = None, **params: Any) -> Outcome:
        return await self.router(Call(client or CLIENT, method, params))

    async def page(self, method: str, client: Client | None = None, **params: Any) -> Json:
        outcome = await self.ask(method, client, **params)
        assert isinstance(outcome, Result), outcome
        return outcome.value

    async def pages(self, method: str, client: Client | None = None) -> list[list[Any]]:
        """All pages to the end. A null or empty cursor, or an empty page before the last, fails."""
        found: list[list[Any]] = []
        params: Json = {}
        while True:
            value = await self.page(method, client, **params)
            found.append(value[LISTS[method].key])
            if "nextCursor" not in value:
                return found
            assert isinstance(value["nextCursor"], str) and value["nextCursor"]
            assert found[-1], "an empty page while more follows"
            params = {"cursor": value["nextCursor"]}

    async def names(self, method: str, client: Client | None = None) -> list[str]:
        key = {"tool": "name", "prompt": "name", "res": "uriTemplate"}.get(KINDS.get(method, ""), "uri")
        return [item[key] for page in await self.pages(method, client) for item in page]


CLIENT = Client("key:a")
OTHER = Client("key:b")
