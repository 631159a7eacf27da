"""deploy/fleet/compose.yaml: its services, their config, nginx.conf and Prometheus belong together."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from peers.debian import provide
from peers.install import MODULES, install
from ruamel.yaml import YAML

from sluicegate import config
from sluicegate.store.keys import KeyRing

Json = dict[str, Any]
DEPLOY = Path(__file__).parents[2] / "deploy"
FLEET = DEPLOY / "fleet"
COMPOSE: Json = YAML(typ="safe").load(FLEET / "compose.yaml")
SERVICES: Json = COMPOSE["services"]
REPLICAS = ("r0", "r1", "r2")
NGINX = (FLEET / "nginx.conf").read_text()
SCRAPE: Json = YAML(typ="safe").load(FLEET / "scrape.yaml")


def mounted(service: str) -> dict[str, str]:
    """What lies where in a container."""
    return {place.split(":")[1]: place.split(":")[0] for place in SERVICES[service]["volumes"]}


def loaded(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> config.Config:
    """The config of that replica as its container has it, with what `secrets` makes in another folder than /keys."""
    monkeypatch.setenv("REPLICA", name)
    for place, source in mounted(name).items():
        if source.startswith("."):
            text = (FLEET / source).read_text().replace("/keys/", f"{folder}/keys/")
            (folder / Path(place).name).write_text(text)
    checked = config.check(folder / "sluice.yaml")
    assert checked.config is not None and not checked.findings, checked.findings
    return checked.config


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """As the service `secrets` makes them, but for the client's key: that has a test of its own."""
    made = tmp_path / "keys"
    made.mkdir()
    subprocess.run([sys.executable, FLEET / "rings.py", made], check=True)
    (made / "demo.hash").write_text(f"sha256:{'0' * 64}")
    (made / "demo.hash").chmod(0o400)
    return made


def test_the_stack_is_what_the_specification_of_compose_says() -> None:
    install(lambda text: None)
    schema = json.loads((MODULES / "dclint" / "schemas" / "compose.schema.json").read_text())
    assert not list(Draft7Validator(schema).iter_errors(COMPOSE))


def test_it_publishes_to_this_machine_alone_mounts_what_is_there_and_pins_what_it_runs() -> None:
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    for name, service in SERVICES.items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert re.search(r":[^:]*\d", service["image"]) if "image" in service else "build" in service
        assert set(service.get("networks", ())) == ({"fleet"} if "network_mode" not in service else set()), name
        for source in mounted(name).values() if "volumes" in service else ():
            assert source in COMPOSE["volumes"] or (FLEET / source).exists(), source
        if "build" in service:
            assert f" AS {service['build']['target']}" in dockerfile
            assert (FLEET / service["build"]["context"]).samefile(DEPLOY.parent)
            assert service["build"]["dockerfile"] == "deploy/Dockerfile"
    assert not [port for name in (*REPLICAS, "database") for port in SERVICES[name].get("ports", [])]


def test_what_all_replicas_share_is_made_once_and_only_theirs(tmp_path: Path, keys: Path) -> None:
    before = {path.name: path.read_bytes() for path in keys.iterdir()}
    subprocess.run([sys.executable, FLEET / "rings.py", keys], check=True)
    assert {path.name: path.read_bytes() for path in keys.iterdir()} == before
    assert len({KeyRing.parse(before[name].decode()).newest for name in ("seal", "digest", "sign")}) == 3
    assert {path.stat().st_mode & 0o777 for path in keys.iterdir()} == {0o400}
    command = SERVICES["secrets"]["entrypoint"][2]
    assert "/demo/key.py" in command and "/fleet/rings.py" in command
    assert SERVICES["database"]["environment"]["POSTGRES_PASSWORD_FILE"] == "/keys/database"
    assert {mounted(name)["/keys"] for name in ("secrets", "database", "traffic", *REPLICAS)} == {"keys"}


def test_replicas_differ_in_their_names_and_disks_alone(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in REPLICAS:
        found = loaded(tmp_path, name, monkeypatch)
        assert found.fleet is not None and found.fleet.peer is not None and found.state.url is not None
        assert (found.fleet.name, found.fleet.peer.url) == (name, f"http://{name}:{found.fleet.peer.listen.port}")
        assert f"@database/{SERVICES['database']['environment']['POSTGRES_DB']}" in found.state.url.get_secret_value()
        assert mounted(name)["/var/lib/sluice"] == name and str(found.state.dir).startswith("/var/lib/sluice/")
        assert str(found.audit.path).startswith("/var/lib/sluice/")
        grace = int(SERVICES[name]["stop_grace_period"].removesuffix("s"))
        assert grace == found.drain_delay + found.drain + 15
        assert found.listen.trusted_proxies and str(found.listen.trusted_proxies[0]) == subnet()
    bare = [{key: SERVICES[name][key] for key in SERVICES[name].keys() - {"environment", "volumes", "networks"}}
            for name in REPLICAS]  # fmt: skip
    assert bare[0] == bare[1] == bare[2] and bare[0]["read_only"] and bare[0]["cap_drop"] == ["ALL"]


def subnet() -> str:
    return str(COMPOSE["networks"]["fleet"]["ipam"]["config"][0]["subnet"])


def test_nginx_finds_each_replica_at_the_address_that_it_has(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = loaded(tmp_path, "r0", monkeypatch).listen.mcp.port
    for name in REPLICAS:
        address = SERVICES[name]["networks"]["fleet"]["ipv4_address"]
        assert address.startswith(subnet().removesuffix("0/24"))
        assert f"~^{name}\\.    sluice-{name};" in NGINX
        assert f"upstream sluice-{name} {{ server {address}:{port} " in NGINX
        assert f"    server {address}:{port} max_fails=1" in NGINX
    listens = re.search(r"listen (\d+);", NGINX)
    assert listens is not None and SERVICES["nginx"]["ports"] == [f"127.0.0.1:8080:{listens[1]}"]
    assert f"http://nginx:{listens[1]}/mcp" in SERVICES["traffic"]["entrypoint"]
    hosts = YAML(typ="safe").load(FLEET / "sluice.yaml")["listen"]["allowed_hosts"]
    assert f"nginx:{listens[1]}" in hosts and "127.0.0.1:8080" in hosts
    assert mounted("nginx") == {"/etc/nginx/conf.d/sluice.conf": "./nginx.conf"}


def test_prometheus_takes_its_config_and_scrapes_each_replica_by_its_name(
    tmp_path: Path, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin = loaded(tmp_path, "r0", monkeypatch).listen.admin.port
    job = SCRAPE["scrape_configs"][0]
    assert [(one["targets"], one["labels"]["replica"]) for one in job["static_configs"]] == [
        ([f"{name}:{admin}"], name) for name in REPLICAS
    ]
    assert job["job_name"] == "sluice", "alerts look for it"
    for place, source in mounted("prometheus").items():
        if source.startswith("."):
            shutil.copy(FLEET / source, tmp_path / Path(place).name)
    assert "--config.file=/etc/fleet/scrape.yaml" in SERVICES["prometheus"]["command"]
    command = [provide("promtool", "prometheus"), "check", "config", "scrape.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "rules found" in done.stdout, done.stdout + done.stderr
