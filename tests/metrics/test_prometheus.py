"""A real Prometheus scrapes a real Sluice that has seen everything: each panel has something to show."""

import json
import random
import re
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from e2e.sluice_process import Sluice, sluice
from e2e.wire import META, Client
from metrics.test_dashboard import DASHBOARD, TARGETS, declared
from peers.debian import provide
from peers.fleet import free_port, running, wait_for_port
from peers.login.misbehaving import Misbehaving, misbehaving
from peers.postgres import postgres

Json = dict[str, Any]
TESTS = Path(__file__).parents[1]
MACHINE = {"per": "gateway", "grant": "client_credentials", "client_id": "sluice", "client_secret": "s3cret-of-it"}
CONFIG = """
global: {{scrape_interval: 500ms, evaluation_interval: 1s}}
rule_files: [{rules}]
scrape_configs:
  - job_name: sluice
    static_configs: [{{targets: ["{target}"]}}, {{targets: ["{replica}"], labels: {{replica: r0}}}}]
"""


@dataclass(frozen=True)
class Prometheus:
    url: str

    def ask(self, path: str, **values: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(values)}", timeout=30) as answer:
            return json.load(answer)["data"]

    def series(self, query: str) -> list[Json]:
        """What a panel would show of the last minutes: the traffic is in them, however slow the tests before this."""
        now = time.time()
        found = self.ask("query_range", query=query, start=str(now - 300), end=str(now), step="1")
        return list(found["result"])

    def wait_for_scrapes(self, count: int) -> None:
        give_up = time.monotonic() + 60
        while time.monotonic() < give_up:
            found = self.ask("query", query='count_over_time(up{job="sluice"}[1h])')["result"]
            if len(found) == 2 and min(int(one["value"][1]) for one in found) >= count:
                return
            time.sleep(0.2)
        raise AssertionError(f"Prometheus did not scrape {count} times")


@pytest.fixture(scope="module")
def site() -> Iterator[Misbehaving]:
    with misbehaving() as found:
        yield found


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory, site: Misbehaving) -> Iterator[Sluice]:
    """Sluice before a server that changes its mind, one that is honest, one that is not there, and one that wants a
    login; a tool that needs a person, and limits that are low."""
    folder = tmp_path_factory.mktemp("observed")
    (folder / "tools.json").write_text(json.dumps([{"name": "add", "inputSchema": {"type": "object"}}]))
    (folder / "calls").touch()
    (folder / "catalog.json").write_text(
        json.dumps({"tools": ["read", "write", "secret", "broken"], "broken": ["broken"]}
                   | {"prompts": [], "resources": [], "templates": []})
    )
    (folder / "policy.csv").write_text(
        "p, *, math, *, *, allow\np, *, mail, *, *, allow\np, *, notes, *, *, allow\n"
        "p, *, notes, tool:secret, *, deny\n"
        "p2, *, notes, tool:write, *, one-of-leads\n"
    )
    config: Json = {
        "servers": {
            "math": {"command": sys.executable, "args": [str(TESTS / "turncoat_server.py"), str(folder)]},
            "notes": {"command": sys.executable, "args": [str(TESTS / "recording_server.py"), str(folder)]},
            "gone": {"url": f"http://127.0.0.1:{free_port()}/mcp", "required": False},
            "mail": {"url": site.mcp, "required": False, "login": MACHINE},
        },
        "clients": {"anonymous": {"roles": []}, "local": {"roles": []}},
        "policy": {"files": ["policy.csv"]},
        "limits": {"per_tool": "20/min"},
        "approvals": {"hold_for": "1s", "profiles": {"one-of-leads": {"tier": "other", "approvers": ["role:lead"],
                                                                      "quorum": 1, "expires": "2s"}}},
    }  # fmt: skip
    site.authority.add_client("sluice", MACHINE["client_secret"])
    with sluice(config, folder) as process:
        yield process


@pytest.fixture(scope="module")
def replica(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    """One of a fleet: what nobody else has is told by it."""
    folder = tmp_path_factory.mktemp("replica")
    ring = "A" * 43
    with postgres("fsync=off") as cluster:
        config: Json = {
            "servers": {}, "clients": {"keys": {}}, "fleet": {"name": "r0"},
            "state": {"dir": str(folder / "state"), "url": cluster.url,
                      "keys": {"seal": ring, "digest": ring, "sign": ring}},
        }  # fmt: skip
        with sluice(config, folder) as process:
            yield process


@pytest.fixture(scope="module")
def prometheus(front: Sluice, replica: Sluice, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program, port = provide("prometheus", "prometheus"), free_port()
    folder = tmp_path_factory.mktemp("prometheus")
    rules = TESTS.parent / "grafana" / "prometheus" / "rules.yaml"
    file, log = folder / "prometheus.yaml", folder / "prometheus.log"
    targets = {"target": front.admin.removeprefix("http://"), "replica": replica.admin.removeprefix("http://")}
    file.write_text(CONFIG.format(rules=rules, **targets))
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder}/data",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with running(command, log) as process:
        wait_for_port(port, process, log)
        yield Prometheus(f"http://127.0.0.1:{port}")


async def traffic(url: str) -> None:
    """Every outcome that a panel is about, from clients of both eras."""
    for modern in (False, True):
        async with Client(url, modern) as client:
            for _ in range(15):
                await client.call("math__add", {})
                await client.call("notes__read", {})
            for name in ("notes__secret", "notes__nothing", "notes__broken", "notes__write"):
                await client.call(name, {})


@pytest.fixture(scope="module")
def watched(front: Sluice, prometheus: Prometheus) -> Prometheus:
    """After traffic before and after a first scrape: a rate needs two."""
    for round in (1, 2):
        anyio.run(traffic, front.url)
        prometheus.wait_for_scrapes(3 * round)
    return prometheus


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[title for title, _ in TARGETS])
def test_every_panel_has_something_to_show(watched: Prometheus, title: str, target: Json) -> None:
    query = target["expr"].replace("$__rate_interval", "30s").replace("$__range", "300s")
    for name in ("job", "instance", "replica", "server", "client", "tool"):
        query = query.replace(f"${name}", ".*")
    give_up = time.monotonic() + 30
    while not (found := watched.series(query)) and time.monotonic() < give_up:
        time.sleep(0.5)
    assert found, query


VARIABLES = [one["definition"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]


@pytest.mark.parametrize("definition", VARIABLES)
def test_every_variable_has_something_to_choose(watched: Prometheus, definition: str) -> None:
    """As Grafana asks: the values of that label in all series that the selector finds."""
    selector, label = definition.removeprefix("label_values(").removesuffix(")").rsplit(", ", 1)
    assert watched.ask(f"label/{label}/values", **{"match[]": re.sub(r"\$\w+", ".*", selector)})


def test_the_annotations_can_be_asked_for(watched: Prometheus) -> None:
    for note in DASHBOARD["annotations"]["list"]:
        watched.series(re.sub(r"\$\w+", ".*", note["expr"].replace("$__rate_interval", "30s")))


def test_the_alerts_are_loaded_and_one_is_about_the_server_that_is_gone(watched: Prometheus) -> None:
    groups = watched.ask("rules")["groups"]
    rules = {rule["name"]: rule for group in groups for rule in group["rules"]}
    assert all(rule["health"] == "ok" for rule in rules.values())
    assert rules["SluiceServerDown"]["state"] == "pending"
    assert rules["SluiceServerDown"]["alerts"][0]["labels"]["server"] == "gone"
    assert rules["SluiceAuditLost"]["state"] == "inactive"


def test_what_is_exported_is_what_is_declared_and_promtool_is_content(watched: Prometheus, front: Sluice) -> None:
    status, page = front.get("/metrics")
    assert status == 200
    families = {line.split()[2] for line in page.splitlines() if line.startswith("# TYPE ")}
    known = {name.removesuffix("_bucket").removesuffix("_sum").removesuffix("_count") for name in declared()}
    assert families <= known
    done = subprocess.run(
        [provide("promtool", "prometheus"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_clients_invent_makes_no_series(watched: Prometheus, front: Sluice) -> None:
    """Over the wire; a hundred thousand of them, without one, are in test_cardinality.py."""

    async def invent(modern: bool) -> None:
        async with Client(front.url, modern) as client:
            for number in range(300):
                invented = f"{random.getrandbits(64):x}"
                await client.call(f"math__{invented}" if number % 2 else invented, {})
                await client.request(invented, {"_meta": META} if modern else {})

    async def everybody() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(invent, True)
            group.start_soon(invent, False)

    before = len(front.get("/metrics")[1].splitlines())
    anyio.run(everybody)
    page = front.get("/metrics")[1]
    assert len(page.splitlines()) - before < 100
    assert float(re.search(r'sluice_calls_total{.*outcome="unknown".*tool="_other"} (.*)', page)[1]) >= 600  # type: ignore[index]
