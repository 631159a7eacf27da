"""deploy/k8s: each object has the form that Kubernetes wants, what they name is there, and the config loads."""

import os
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
import yaml
from authority import issue
from kubernetes_validate import validate

from sluicegate import config

Json = dict[str, Any]
FILE = Path(__file__).parents[2] / "deploy" / "k8s" / "sluice.yaml"
OBJECTS: list[Json] = list(yaml.safe_load_all(FILE.read_text()))
NAMED = {f"{one['kind']}/{one['metadata']['name']}": one for one in OBJECTS}
POD: Json = NAMED["StatefulSet/sluice"]["spec"]["template"]
CONTAINER: Json = POD["spec"]["containers"][0]


@pytest.mark.parametrize("name", NAMED)
def test_an_object_is_valid(name: str) -> None:
    validate(NAMED[name], "1.31", strict=True)


def test_what_objects_name_is_there() -> None:
    claims = {one["metadata"]["name"] for one in NAMED["StatefulSet/sluice"]["spec"]["volumeClaimTemplates"]}
    volumes = {one["name"] for one in POD["spec"]["volumes"]} | claims
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes
    ports = {one["name"] for one in CONTAINER["ports"]}
    for name in ("Service/sluice", "Service/sluice-peers"):
        assert NAMED[name]["spec"]["selector"].items() <= POD["metadata"]["labels"].items()
        assert {one["targetPort"] for one in NAMED[name]["spec"]["ports"]} <= ports
    rules = NAMED["NetworkPolicy/sluice"]["spec"]["ingress"]
    assert {port["port"] for rule in rules for port in rule["ports"]} == ports
    assert NAMED["StatefulSet/sluice"]["spec"]["serviceName"] == "sluice-peers"
    paths = NAMED["Ingress/sluice"]["spec"]["rules"][0]["http"]["paths"]
    assert {one["path"] for one in paths} == {"/mcp", "/sse", "/messages", "/login", "/oauth", "/.well-known"}
    assert {one["backend"]["service"]["name"] for one in paths} == {"sluice"}


def test_its_config_loads_and_fits_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files in place of the secrets, whose paths alone are others."""
    for name, text in NAMED["ConfigMap/sluice"]["data"].items():
        (tmp_path / name).write_text(text.replace("/run/secrets", str(tmp_path)))
    secrets = {name: b64encode(os.urandom(32)) for name in ("seal", "digest", "sign")}
    pem = dict(zip(("ca.crt", "tls.crt", "tls.key"), issue("*.sluice-peers.mcp.svc"), strict=True))
    for folder, files in {"keys": secrets, "database": {"password": b"secret"}, "peers": pem}.items():
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
            (tmp_path / folder / name).chmod(0o400)
    monkeypatch.setenv("HOSTNAME", "sluice-1")
    checked = config.check(tmp_path / "sluice.yaml")
    assert checked.config is not None and not checked.findings, checked.findings
    loaded = checked.config
    assert loaded.fleet is not None and loaded.fleet.peer is not None
    assert loaded.fleet.peer.url == "https://sluice-1.sluice-peers.mcp.svc:7413"
    ports = {one["name"]: one["containerPort"] for one in CONTAINER["ports"]}
    listens = {"mcp": loaded.listen.mcp.port, "admin": loaded.listen.admin.port, "peers": loaded.fleet.peer.listen.port}
    assert listens == ports
    assert POD["spec"]["terminationGracePeriodSeconds"] == loaded.drain_delay + loaded.drain + 15
    assert str(loaded.state.dir).startswith("/var/lib/sluice/")
