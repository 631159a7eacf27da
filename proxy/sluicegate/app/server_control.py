"""Which servers run, as config and operators say: they are started, replaced and stopped while Sluice runs.

A switch from one set of servers to another is one step of the event loop, so that every call sees either set. Servers
whose section did not change go on, with their connections and open calls.
"""

import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.app import settings
from sluicegate.catalog import cursor
from sluicegate.catalog.uris import Rewriting
from sluicegate.catalog_cache import CatalogCache
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.config import AnyServer, Config, Tools
from sluicegate.downstream.accounts import AccountServers, AnyDownstream, ServerTasks, inherit
from sluicegate.guards.inspect import Mode
from sluicegate.protocol.model import Client

log = logging.getLogger(__name__)

_CHANGED: Final = "its configuration was changed"
_DISABLED: Final = "an operator disabled it"
_RESTARTED: Final = "an operator restarts it"


MAX_REMOVED: Final = 64


class RunningServers(dict[str, AnyDownstream]):
    """The servers that run now, in the order of the config. Under the key of one that was removed, a call that began
    before still finds that one: it is stopped, and answers so. Nothing else shows it. Those that the last switch
    removed are there, and of those before at most `MAX_REMOVED`."""

    def __init__(self, servers: Mapping[str, AnyDownstream]) -> None:
        super().__init__(servers)
        self.removed: dict[str, AnyDownstream] = {}

    def __missing__(self, key: str) -> AnyDownstream:
        return self.removed[key]

    def replace(self, servers: Mapping[str, AnyDownstream]) -> list[AnyDownstream]:
        """Replaces the servers; returns those that no longer run."""
        ended = [server for key, server in self.items() if servers.get(key) is not server]
        removed = {server.key: server for server in ended if server.key not in servers}
        self.clear()
        self.update(servers)
        earlier = [one for one in self.removed.items() if one[0] not in servers and one[0] not in removed]
        self.removed = dict(earlier[-MAX_REMOVED:]) | removed
        return ended


class ServerTables:
    """What guards and lists know of servers by their keys. Calls that are under way when a server is removed still need
    its rows, as long as they find that server."""

    def __init__(self) -> None:
        self.rewriting: dict[str, Rewriting | None] = {}
        self.inspection: dict[str, Mode] = {}
        self.generations: cursor.Generations = {}

    def update(self, config: Config, running: Collection[str], removed: Collection[str] = ()) -> None:
        for gone in self.rewriting.keys() - config.servers.keys() - set(removed):
            del self.rewriting[gone], self.inspection[gone]
        for key, server in config.servers.items():
            self.rewriting[key] = Rewriting(server.prefix, server.uris == "plain") if server.prefix else None
            self.inspection[key] = server.results
        self.generations = cursor.generations(settings.generation(config, running))


class ServerControl:
    """`make` makes a server of its section. `may_see` says on which servers a client has a right.
    `on_switch` is called when other servers run, `on_end` with the keys of those whose section has changed, or that do
    not run any more."""

    def __init__(
        self, config: Config, transport: str, make: Callable[[str, AnyServer, Config], AnyDownstream],
        tables: ServerTables, switched_off: Iterable[str] = (),
        may_see: Callable[[Client, str], bool] = lambda client, server: True,
    ) -> None:  # fmt: skip
        self._started, self._transport, self._make, self._may_see = config, transport, make, may_see
        self.config = config
        """The config in force: its enabled servers run."""
        self._switched_off = set(switched_off)
        self._first_client: Client | None = None
        self._pins: DefinitionPins | None = None
        self._lists: CatalogCache | None = None
        self._put_pins: Callable[[], None] | None = None
        self.on_switch: list[Callable[[], None]] = []
        self.on_end: list[Callable[[Collection[str]], None]] = []
        self.tables = tables
        sections = self._wanted(config)
        self.tables.update(config, sections)
        self.servers = RunningServers({key: make(key, section, config) for key, section in sections.items()})
        self.tasks = ServerTasks(self.servers.values)

    def attach(self, lists: CatalogCache, pins: DefinitionPins) -> None:
        """Attaches the parts that are made of the servers."""
        self._lists, self._pins = lists, pins

    @property
    def disabled(self) -> dict[str, str]:
        """Servers that the file enables and that do not run: key to reason."""
        return {**self.config.disabled, **dict.fromkeys(self._off(), _DISABLED)}

    def _off(self) -> Iterable[str]:
        servers = self.config.servers
        return [key for key, server in servers.items() if server.enabled and key in self._switched_off]

    def _wanted(self, config: Config) -> dict[str, AnyServer]:
        servers = config.servers.items()
        return {key: one for key, one in servers if one.enabled and key not in self._switched_off}

    @asynccontextmanager
    async def prepared(self, config: Config) -> AsyncIterator[None]:
        """Whatever must be read for the servers of a config that is about to come into force has been, within."""
        assert self._pins is not None
        async with self._pins.configure(settings.pins(config)) as put:
            self._put_pins = put
            try:
                yield
            finally:
                self._put_pins = None

    def take(self, config: Config) -> None:
        """A config is in force. What only a restart changes stays as it was for new servers, too."""
        before = self.config.servers
        self.config = self._started.keeping_servers_of(config)
        if self._put_pins is not None:
            self._put_pins()
        again = {
            key for key, server in self.config.servers.items()
            if key in before and _as_reached(server) != _as_reached(before[key])
        }  # fmt: skip
        self._switch(again, _CHANGED)

    def shared(self) -> Iterator[tuple[str, int, AnyDownstream]]:
        """Key and `concurrency` of each server that runs."""
        for key, server in self.servers.items():
            yield key, self.config.servers[key].concurrency, server

    def objection(self, key: str, action: str) -> str:
        """Why that cannot be done with a server, in a sentence; empty where it can."""
        server = self.config.servers.get(key)
        if server is None:
            return f"there is no server {key}"
        if not server.enabled:
            why = self.config.disabled.get(key, "servers.KEY.enabled is false there")
            return f"the config file disables the server {key} ({why})"
        if key in self._switched_off and action in ("restart", "reconnect"):
            return f"the server {key} is disabled: enable it first"
        return ""

    def act(self, key: str, action: str) -> int:
        """Does it at once; how many open calls of that server end so. What is disabled stays so while Sluice runs."""
        running = self.servers.get(key)
        if action == "reconnect":
            self.servers[key].reconnect()
            return 0
        open_calls = 0 if running is None else running.open_calls
        (self._switched_off.add if action == "disable" else self._switched_off.discard)(key)
        is_restart = action == "restart"
        self._switch({key} if is_restart else (), _RESTARTED if is_restart else _DISABLED)
        return open_calls if self.servers.get(key) is not running else 0

    def switch_off(self, keys: Collection[str]) -> None:
        """Disables these servers and no others: what operators did while this process was starting."""
        self._switched_off = set(keys)
        self._switch((), _DISABLED)

    def take_logins(self, key: str, logins: Collection[str], new: Collection[str]) -> None:
        """These logins to a server are good now, and some of them are new or were renewed."""
        server = self.servers.get(key)
        if isinstance(server, AccountServers):
            server.take(logins, new)

    def _switch(self, again: Collection[str], why: str) -> None:
        config, running = self.config, self.servers
        servers = {
            key: running[key] if key in running and key not in again else self._make(key, section, config)
            for key, section in self._wanted(config).items()
        }
        keys = dict.fromkeys((*running, *servers))
        changed = {key: running.get(key) for key in keys if running.get(key) is not servers.get(key)}
        if not changed and list(running) == list(servers):
            return
        open_calls = {key: server.open_calls for key, server in changed.items() if server is not None}
        former = {**running.removed, **running}
        ended = running.replace(servers)
        for server in ended:
            server.retire(why if server.key in servers or server.key in self._switched_off else "it was removed")
        for key in changed.keys() & servers.keys() & former.keys():
            inherit(servers[key], former[key])
        self.tables.update(config, servers, running.removed)
        if self._lists is not None:
            self._lists.configure(settings.lists(config, servers, self._transport), changed)
        for listener in self.on_switch:
            listener()
        gone = frozenset(server.key for server in ended) if why != _RESTARTED else frozenset[str]()
        for end in self.on_end if gone else ():
            end(gone)
        for server in ended:
            self.tasks.end(server)
        for key in changed.keys() & servers.keys():
            self._expect(key)
            self.tasks.start(servers[key])
        for key in changed:
            word = "server removed" if key not in servers else "server replaced" if changed[key] else "server added"
            log.info(word, extra={"server": key, "open_calls": open_calls.get(key, 0)})

    def expect(self, client: Client) -> None:
        """This client comes first, for servers that are added later, too, while its session lasts."""
        self._first_client = client
        for key in self.servers:
            self._expect(key)

    def _expect(self, key: str) -> None:
        """A server on which that client has no right learns nothing of it."""
        if self._first_client is not None and self._may_see(self._first_client, key):
            self.servers[key].expect(self._first_client)

    def end_session(self, session: str) -> None:
        if self._first_client is not None and self._first_client.session == session:
            self._first_client = None
        for server in (*self.servers.values(), *self.servers.removed.values(), *self.tasks.ending):
            server.end_session(session)


def _as_reached(server: AnyServer) -> AnyServer:
    """Its section without what policy goes by: that changes and the server goes on. What clients are shown of it
    changes with its lists, which it makes anew."""
    return server.model_copy(update={"tools": Tools(shape=server.tools.shape)})
