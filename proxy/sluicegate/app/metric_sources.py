"""What is asked for at each scrape: the rooms' own counts, said as samples of series; and what is timed.

Decides nothing; knows which room knows what.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import anyio

from sluicegate.app import policy_loading
from sluicegate.app.server_control import ServerControl
from sluicegate.catalog_cache import CatalogCache, completeness
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.config import Config
from sluicegate.metrics import Metrics, Sample
from sluicegate.policy.rates import Windows
from sluicegate.protocol.model import Call, Decision, Target

Decide = Callable[[Call, Target], Decision]
LAG_EVERY: Final = 0.25

_CIRCUIT: Final = {"closed": 0, "half-open": 1, "open": 2}


def expect(metrics: Metrics, config: Config) -> None:
    """At the start and after each reload: what is configured by now has its series."""
    clients = ["local", *(f"key:{name}" for name in config.clients.keys)]
    clients += ["anonymous"] if config.clients.anonymous else []
    enabled = [key for key, server in config.servers.items() if server.enabled]
    metrics.expect(enabled, clients, policy_loading.profiles(config), config.toolsets)


def servers(control: ServerControl) -> Iterator[Sample]:
    for key in control.disabled:
        yield "sluice_server_up", (key,), 0
    for key, server in control.servers.items():
        numbers, labels = server.numbers(), (key,)
        yield "sluice_server_up", labels, server.status == "up"
        yield "sluice_server_restarts", labels, numbers["restarts"]
        yield "sluice_server_inflight", labels, numbers["in_flight"]
        yield "sluice_server_waiting", labels, numbers["waiting"]
        yield "sluice_server_concurrency_limit", labels, server.concurrency
        yield "sluice_circuit_state", labels, _CIRCUIT[numbers["circuit"]]


def definitions(servers: Iterable[str], lists: CatalogCache, pins: DefinitionPins) -> Iterator[Sample]:
    for key in servers:
        yield "sluice_catalog_tools", (key,), completeness.count_tools(lists, key)
        yield "sluice_definitions_withheld", (key,), pins.count_withheld(key)


def lists(tokens: Mapping[tuple[str, str], int], name_of: Callable[[str], str]) -> Iterator[Sample]:
    """Clients that the config does not know by name are one, with the longest list of theirs."""
    longest: dict[tuple[str, str], int] = {}
    for (principal, toolset), count in tuple(tokens.items()):
        key = name_of(principal), toolset
        longest[key] = max(count, longest.get(key, 0))
    for labels, count in longest.items():
        yield "sluice_tools_list_tokens", labels, count


def limits(windows: Mapping[str, Windows]) -> Iterator[Sample]:
    for scope, window in windows.items():
        yield "sluice_ratelimit_decisions", (scope, "passed"), window.passed
        yield "sluice_ratelimit_decisions", (scope, "limited"), window.limited


def timed(decide: Decide, observe: Callable[[float], None]) -> Decide:
    def decided(call: Call, target: Target) -> Decision:
        started = time.perf_counter()
        decision = decide(call, target)
        observe(time.perf_counter() - started)
        return decision

    return decided


async def watch_loop(observe: Callable[[float], None]) -> None:
    """Measures again and again how late a timer rings: every other task is as late."""
    while True:
        due = time.perf_counter() + LAG_EVERY
        await anyio.sleep(LAG_EVERY)
        observe(max(time.perf_counter() - due, 0.0))
