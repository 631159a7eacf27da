"""From what a client names (a tool, a prompt, a resource, a template) to the one server it belongs to.

Knows snapshots and prefixes. A name that several servers could mean is never guessed, with the one exception that
the contract makes for plain URIs: there the order of the config decides. What a client may not see does not exist
here: `may_list` is asked wherever several servers are compared.
"""

import asyncio
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import anyio

from sluicegate.catalog.names import SEPARATOR, prefix_of
from sluicegate.catalog.snapshot import Snapshot
from sluicegate.catalog.uris import TemplateMatcher, is_clean, own_uri
from sluicegate.catalog_cache.cache import LIST_OF, CatalogCache
from sluicegate.catalog_cache.list_walk import walk
from sluicegate.protocol.methods import JUDGED_BY_NAME, TARGET_KINDS
from sluicegate.protocol.model import Call, Kind, Outcome, Target

MayList = Callable[[Call, str, Target], bool]
"""(call, server key, target): whether this client may know of the target; the same decision as for a call."""

NAMED: Final[dict[str, Kind]] = {
    method: kind for method, kind in TARGET_KINDS.items() if JUDGED_BY_NAME[method] == "name"
}
# 2026-07-28 server/tools#tool-names, and SEP-986, which has the slash. Others could be folded into these by a server.
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
WEB: Final = ("http:", "https:")
SEARCH_AGAIN: Final = 60.0
_LEARNED_AT_ONCE: Final = 256
_STEPS: Final = 2_000  # of matching templates, without a turn for others
_LONG: Final = 256  # characters

ServerSnapshots = list[tuple[str, Snapshot | None]]


class Resolver:
    def __init__(self, lists: CatalogCache, may_list: MayList) -> None:
        self._lists = lists
        self._may_list = may_list
        self.configure()

    def configure(self) -> None:
        """Other servers may be configured, or the same under other names."""
        settings = self._lists.settings
        self._plain = settings.plain
        self._forward = settings.transparent and settings.forward_unlisted
        self._by_prefix = {settings.prefixes[key]: key for key in self._lists.servers}
        self._only = self._by_prefix.get("")

    def find(self, call: Call) -> Target | None:
        """What the call is about, as far as that is known without waiting: most calls are of a listed tool."""
        kind, name = NAMED.get(call.method), call.params.get("name")
        if kind is None or not isinstance(name, str):
            return None
        server = self._only or self._by_prefix.get(prefix_of(name) or "")
        entry = None if server is None else self._lists.find(server, call.client, kind, name)
        return None if entry is None else entry.target

    async def resolve(self, call: Call) -> Target | None:
        """What the call is about; None for what does not exist. Waits only if the server's list is not known."""
        kind = NAMED.get(call.method)
        if kind is not None:
            return await self._named(call, kind, call.params.get("name"))
        if JUDGED_BY_NAME.get(call.method) == "uri":
            return await self._resource(call, call.params.get("uri"))
        return await self._reference(call, call.params.get("ref"))

    def unlisted(self, call: Call) -> Outcome | None:
        """What is said of a name that nothing resolves to while its server has not listed any such: that it is not to
        be had now, which says nothing of whether it exists. Only to who may use what is called so; None for others."""
        kind, name = NAMED.get(call.method), call.params.get("name")
        if kind is None or not isinstance(name, str):
            return None
        server = self._only or self._by_prefix.get(prefix_of(name) or "")
        if server is None or self._lists.has_listed(server, call.client, kind):
            return None
        own = name if self._only else name.partition(SEPARATOR)[2]
        if not self._may_list(call, server, Target(server, kind, own, name)):
            return None
        return self._lists.servers[server].unavailable(call)

    # ------------------------------------------------------------ tools and prompts

    async def _named(self, call: Call, kind: Kind, name: object) -> Target | None:
        if not isinstance(name, str):
            return None
        server = self._only or self._by_prefix.get(prefix_of(name) or "")
        if server is None:
            return await self._app_tool(call, name) if kind == "tool" and SEPARATOR not in name else None
        entry = self._lists.find(server, call.client, kind, name)
        if entry is None:
            await self._lists.recall(call.client)
            snapshot = await self._lists.snapshot(server, call.client, self._awaited(call, server, kind, name))
            entry = snapshot.find.get((kind, name)) if snapshot else None
            if entry is not None and self._lists.is_stored(server, call.client, kind):
                return replace(entry.target, is_stored=True)
        if entry is not None:
            return entry.target
        return self._unlisted(server, kind, name, snapshot) if self._forward else None

    def _unlisted(self, server: str, kind: Kind, name: str, snapshot: Snapshot | None) -> Target | None:
        """Not what the operator shaped: without its definition nothing says how that is called."""
        target = unlisted_target(server, kind, name, snapshot)
        if target is None or target.shape is not None:
            return target
        shapes = self._lists.namings[server].shapes
        taken = {text.lower() for (of, own), shape in shapes.items() if of == kind for text in (own, shape.name)}
        return None if target.own.lower() in taken else target

    def _awaited(self, call: Call, server: str, kind: Kind, name: str) -> tuple[Kind, str] | None:
        """What is waited for as long as its server may take to start: only what the client may use, or the time would
        tell it what is hidden."""
        snapshot = self._lists.current(server, call.client)
        entry = snapshot.find.get((kind, name)) if snapshot else None
        return (kind, name) if entry is not None and self._may_list(call, server, entry.target) else None

    async def _app_tool(self, call: Call, name: str) -> Target | None:
        """Apps call their own server's tools by own name (SEP-1865), without knowing that they were renamed."""
        found = [
            (snapshot, entry.target)
            for key, snapshot in await self._lists.all(call.client)
            if snapshot and (entry := snapshot.by_own.get(name)) and self._may_list(call, key, entry.target)
        ]
        if len(found) != 1:
            return None
        snapshot, target = found[0]
        return await self._named(call, "tool", target.public) if snapshot.has_app else None

    # ------------------------------------------------------------ resources and templates

    async def _reference(self, call: Call, ref: object) -> Target | None:
        """What a completion is for (2026-07-28 server/utilities/completion: ref/prompt or ref/resource)."""
        match ref:
            case {"type": "ref/prompt", "name": str() as name}:
                return await self._named(call, "prompt", name)
            case {"type": "ref/resource", "uri": str() as uri}:
                found = await self._template(call, uri)
                return found if found or self._is_withheld(call, uri) else await self._resource(call, uri)
        return None

    async def _template(self, call: Call, uri: str) -> Target | None:
        """A listed template, looked up as it is: its braces are no part of a URI that could be judged clean."""
        for key, snapshot in await self._candidates(call, uri):
            entry = snapshot.find.get(("res", uri)) if snapshot else None
            if entry is not None and self._may_list(call, key, entry.target):
                return replace(entry.target, is_stored=self._lists.is_stored(key, call.client, "res"))
        return None

    def _is_withheld(self, call: Call, uri: str) -> bool:
        """A template that the pins keep from clients is unknown, though as a URI it would be relayed unlisted."""
        return any(self._lists.catalogs.get(key, call.client).withholds("res", uri) for key in self._lists.servers)

    async def _candidates(self, call: Call, uri: str) -> ServerSnapshots:
        found = own_uri(uri, self._by_prefix)
        server = self._only or (self._by_prefix[found[0]] if found else None)
        if server is None:
            return await self._lists.all(call.client)
        return [(server, await self._lists.snapshot(server, call.client))]

    async def _resource(self, call: Call, uri: object) -> Target | None:
        if not isinstance(uri, str):
            return None
        if self._only is not None:
            return Target(self._only, "res", uri, uri) if is_clean(uri) else None
        found = own_uri(uri, self._by_prefix)
        if found is None:
            return await self._unprefixed(call, uri) if is_clean(uri) else None
        prefix, own = found
        return Target(self._by_prefix[prefix], "res", own, uri) if is_clean(own) else None

    async def _unprefixed(self, call: Call, uri: str) -> Target | None:
        """Whoever lists it, else has a template for it, else takes every plain URI; the first in config order of
        those who do, and only among servers on which the client may read it."""
        snapshots = ServerSnapshots()
        for key, snapshot in await self._lists.all(call.client):
            if len(uri) > _LONG:  # policy may take milliseconds
                await asyncio.sleep(0)
            if self._may_list(call, key, _plain(key, uri)):
                snapshots.append((key, snapshot))
        server = self._lister(call, snapshots, uri) or await _with_template(snapshots, uri)
        if server is None and uri.lower().startswith(WEB):
            await self._search(call, snapshots)
            server = self._lister(call, snapshots, uri)
        if server is None:
            server = next((key for key, _ in snapshots if key in self._plain), None)
        return None if server is None else _plain(server, uri)

    def _lister(self, call: Call, snapshots: ServerSnapshots, uri: str) -> str | None:
        return next((key for key, _ in snapshots if uri in self._lists.catalogs.get(key, call.client).learned), None)

    async def _search(self, call: Call, snapshots: ServerSnapshots) -> None:
        """The client may have its list from before a restart or from another replica: look where it could be from."""
        now = anyio.current_time()
        catalogs = [
            catalog
            for key, snapshot in snapshots
            if snapshot and snapshot.declares("resources") and self._lists.servers[key].status == "up"
            if (catalog := self._lists.catalogs.get(key, call.client)).searched_at + SEARCH_AGAIN < now
        ]
        async with anyio.create_task_group() as group:
            for catalog in catalogs:
                catalog.searched_at = now
                group.start_soon(self._learn_all, call, catalog.server.key)

    async def _learn_all(self, call: Call, server_key: str) -> None:
        catalog = self._lists.catalogs.get(server_key, call.client)
        settings = self._lists.settings
        walked = await walk(catalog.server, call.client, "resources/list", settings.list_timeout, settings.bounds)
        for number, item in enumerate(walked.items if walked else (), 1):
            if number % _LEARNED_AT_ONCE == 0:
                await asyncio.sleep(0)
            uri = item.get("uri") if isinstance(item, dict) else None
            if isinstance(uri, str) and self._lists.namings[server_key].uris.public(uri) == uri:
                catalog.learn(uri)

    def learn(self, call: Call, server_key: str, uri: str) -> None:
        """Remembers a listed resource that is shown under its own URI, so that a read of it finds its way back."""
        if self._only is None:
            self._lists.catalogs.get(server_key, call.client).learn(uri)


def unlisted_target(server: str, kind: Kind, name: str, snapshot: Snapshot | None) -> Target | None:
    """A name that the server has not listed: itself, or the one listed name that a server which ignores case could
    take it for. A tool that the operator gave another name is meant by its own one, too."""
    if _NAME.fullmatch(name) is None:
        return None
    alike = snapshot.alike(LIST_OF[kind], name) if snapshot else ()
    if not alike:
        return Target(server, kind, name, name, is_unlisted=True)
    return alike[0] if len(alike) == 1 else None


def _plain(server: str, uri: str) -> Target:
    return Target(server, "res", uri, uri)


async def _with_template(snapshots: ServerSnapshots, uri: str) -> str | None:
    for key, snapshot in snapshots:
        matcher, others_turn = TemplateMatcher(uri), _STEPS
        for entry in snapshot.entries("resources/templates/list") if snapshot else ():
            if matcher.matches(entry.target.own):
                return key
            if matcher.steps > others_turn:
                others_turn = matcher.steps + _STEPS
                await asyncio.sleep(0)
    return None
