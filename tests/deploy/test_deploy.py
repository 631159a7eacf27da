"""What is in deploy/ works: the image's steps, the stack's files, the unit, and nginx as it is configured there."""

import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import httpx
import pytest
from e2e.sluice_process import COMMAND, sluice
from e2e.wire import META, MODERN
from jsonschema import Draft7Validator
from peers.debian import provide
from peers.fleet import free_port, running, wait_for_port
from peers.install import MODULES, install
from ruamel.yaml import YAML

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE: Json = YAML(typ="safe").load(DEPLOY / "compose.yaml")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ")
KEY = secrets.token_urlsafe(32)
CATALOG = json.dumps({"tools": ["read"], "prompts": [], "resources": [], "templates": []})


def instructions(word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in DOCKERFILE.splitlines() if line.startswith(f"{word} ")]


# ---------------------------------------------------------------- the image


def test_hadolint_has_nothing_to_say() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, DEPLOY / "Dockerfile"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_steps_of_the_image_make_a_sluice_that_runs(tmp_path: Path) -> None:
    """Each COPY and RUN of the first stage, in folders of the test's own instead of the image's."""
    source, prefix = tmp_path / "src", tmp_path / "opt"
    source.mkdir()
    stage = DOCKERFILE.split("FROM ")[1]
    for line in stage.splitlines():
        word, _, rest = line.partition(" ")
        if word == "COPY":
            *names, target = shlex.split(rest)
            for name in names:
                copy(ROOT / name, source / target if target not in (".", "./") else source / name)
        elif word == "RUN":
            command = rest.replace("/opt/", f"{prefix}/").replace("python -m venv", f"{sys.executable} -m venv")
            quick = re.sub(r"--no-cache(-dir)? |--compile-bytecode ", "", command)
            subprocess.run(quick, shell=True, cwd=source, check=True, capture_output=True, env=outside())
    said = subprocess.run([prefix / "sluice/bin/sluice", "--version"], capture_output=True, text=True, check=True)
    assert re.search(r"\d+\.\d+", said.stdout)
    packages = prefix.glob("sluice/lib/python*/site-packages/*.dist-info")
    installed = {path.name.split("-")[0].lower() for path in packages}
    assert "sluicegate" in installed and not installed & {"pytest", "mypy", "hypothesis", "pip_tools"}
    notes_nothing_of_the_build(next(prefix.glob("sluice/lib/python*/site-packages")))
    holds_what_it_needs(prefix / "sluice/bin", tmp_path)


def notes_nothing_of_the_build(site: Path) -> None:
    """No times and no folders: the layer is the same in each build."""
    notes = {path.name for path in next(site.glob("sluicegate-*.dist-info")).iterdir()}
    assert not notes & {"uv_cache.json", "direct_url.json"}, "the time of the wheel, and where it was"
    compiled = list((site / "sluicegate").rglob("*.pyc"))
    assert compiled and {path.read_bytes()[4:8] for path in compiled} == {b"\1\0\0\0"}, "by content (PEP 552)"
    assert DOCKERFILE.count("PYC_INVALIDATION_MODE=UNCHECKED_HASH") == DOCKERFILE.count("--compile-bytecode") == 1


def holds_what_it_needs(programs: Path, folder: Path) -> None:
    """A policy that comes along, the collector's client, and a health check that knows up from down."""
    listen = {"mcp": f"127.0.0.1:{free_port()}", "admin": f"127.0.0.1:{free_port()}"}
    collector = {"otlp": f"http://127.0.0.1:{free_port()}"}
    config: Json = {"version": 1, "policy": {"use": "team"}, "servers": {}, "listen": listen, "telemetry": collector}
    file = folder / "sluice.yaml"
    file.write_text(json.dumps(config | {"state": {"dir": str(folder / "state")}}))
    probe = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    probe = [word.replace("127.0.0.1:7411", listen["admin"]) for word in probe]

    def is_healthy() -> bool:
        path = outside() | {"PATH": str(programs)}
        return subprocess.run(probe, env=path, capture_output=True, check=False).returncode == 0

    assert not is_healthy()
    with running([str(programs / "sluice"), "serve", "-c", str(file)], folder / "sluice.log") as process:
        wait_for_port(int(listen["admin"].partition(":")[2]), process, folder / "sluice.log")
        assert is_healthy()


def test_a_build_sees_what_it_copies_and_nothing_else() -> None:
    lines = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    copied = [name for line in instructions("COPY") if "--from" not in line for name in shlex.split(line)[:-1]]
    assert "*" in lines and {line[1:] for line in lines if line.startswith("!")} == set(copied)


def copy(origin: Path, target: Path) -> None:
    if origin.is_dir():
        shutil.copytree(origin, target, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(origin, target)


def outside() -> dict[str, str]:
    """As in a build: no environment of this test's own."""
    return {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}


def test_the_image_runs_without_root() -> None:
    assert instructions("USER")[0] == "10001" and instructions("USER")[-1] == "10001"
    assert instructions("ENTRYPOINT") == ['["sluice"]']
    assert any("useradd" in line and "chmod 700 /var/lib/sluice" in line for line in instructions("RUN"))


def test_the_default_image_can_start_servers_from_npm_and_pypi() -> None:
    """The links lead where the official image of Node has npm, and what is fetched lies where the user may write."""
    stage = DOCKERFILE.split("FROM ")[-1]
    assert stage.startswith("slim AS sluice\n") and "HOME=/var/lib/sluice" in stage
    for copied in ("/usr/local/bin/node", "/usr/local/lib/node_modules/npm", "/opt/uv/bin/uv", "/opt/uv/bin/uvx"):
        assert re.search(rf"^COPY --from=(node|build) .*{copied} ", stage, re.M), copied
    links = dict(re.findall(r"ln -s (\S+) /usr/local/bin/(\w+)", stage))
    assert links == {f"../lib/node_modules/npm/bin/{name}-cli.js": name for name in ("npm", "npx")}


# ---------------------------------------------------------------- the stack


def test_the_stack_is_what_the_specification_of_compose_says() -> None:
    """Its JSON Schema, which a linter brings along: a misspelt key is an error, as it is for docker compose."""
    install(lambda text: None)
    schema = json.loads((MODULES / "dclint" / "schemas" / "compose.schema.json").read_text())
    assert not list(Draft7Validator(schema).iter_errors(COMPOSE))
    misspelt = COMPOSE | {"services": {"sluice": COMPOSE["services"]["sluice"] | {"healtcheck": {}}}}
    assert list(Draft7Validator(schema).iter_errors(misspelt))


def test_the_stack_publishes_to_this_machine_alone_and_pins_what_it_runs() -> None:
    for name, service in COMPOSE["services"].items():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert "image" not in service or not service["image"].endswith(("latest", service["image"].partition(":")[0]))
        assert not service.get("privileged") and "docker.sock" not in json.dumps(service)
    hardened = COMPOSE["services"]["sluice"]
    assert hardened["read_only"] and hardened["cap_drop"] == ["ALL"] and hardened["init"]


def test_what_the_stack_mounts_is_there() -> None:
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", [])]
    sources = {mount.partition(":")[0] for mount in mounts}
    for source in sources:
        assert source in COMPOSE["volumes"] or (DEPLOY / source).exists(), source
    targets = {service["build"]["target"] for service in COMPOSE["services"].values() if "build" in service}
    assert all(f" AS {target}" in DOCKERFILE for target in targets)


def test_the_example_makes_its_key_and_sends_traffic_that_is_allowed_refused_and_failing(tmp_path: Path) -> None:
    """The stack's own key, config, policy and traffic, with processes instead of containers."""
    keys = tmp_path / "keys"
    keys.mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = outside() | {"PATH": path, "PYTHONPATH": str(ROOT / "proxy")}
    subprocess.run([sys.executable, DEPLOY / "compose/key.py", keys], check=True, env=environ)
    before = (keys / "demo.hash").read_text()
    subprocess.run([sys.executable, DEPLOY / "compose/key.py", keys], check=True, env=environ)
    assert (keys / "demo.hash").read_text() == before and (keys / "demo.key").stat().st_mode & 0o777 == 0o400
    config: Json = YAML(typ="safe").load(DEPLOY / "compose/sluice.yaml")
    shutil.copy(DEPLOY / "compose/policy.csv", tmp_path)
    config["clients"]["keys"]["demo"]["hash"] = f"${{file:{keys}/demo.hash}}"
    config["servers"]["time"] |= {"command": sys.executable, "args": recorder(tmp_path / "time", "get_current_time")}
    everything = {key: value for key, value in config["servers"]["everything"].items() if key != "url"}
    config["servers"]["everything"] = everything | {
        "command": sys.executable, "args": recorder(tmp_path / "every", "echo", "get-sum", "get-env"),
    }  # fmt: skip
    config["listen"] |= {"mcp": f"0.0.0.0:{free_port()}", "admin": f"0.0.0.0:{free_port()}"}
    del config["state"], config["audit"]
    with sluice(config, tmp_path) as process:
        for command in (["check"], ["servers"], ["tools", "--as", "demo"], ["audit", "tail"]):
            done = subprocess.run([*COMMAND, *command, "-c", process.config], cwd=ROOT, env=environ, check=False)
            assert done.returncode == 0, command
        url = process.url.replace("0.0.0.0", "127.0.0.1")
        wrong = [sys.executable, DEPLOY / "compose/traffic.py", url, keys / "demo.hash"]
        assert b"answers 401" in subprocess.run(wrong, capture_output=True, timeout=60, check=False).stderr
        command = [sys.executable, DEPLOY / "compose/traffic.py", url, keys / "demo.key"]
        with running(list(map(str, command)), tmp_path / "traffic.log") as traffic:
            wanted = ['outcome="ok"', 'outcome="denied"', 'outcome="unknown"']
            give_up = time.monotonic() + 60
            while missing := [word for word in wanted if word not in process.get("/metrics")[1]]:
                assert traffic.poll() is None and time.monotonic() < give_up, missing
                time.sleep(0.2)
            traffic.terminate()
            assert traffic.wait(30) == -signal.SIGTERM


def recorder(folder: Path, *tools: str) -> list[str]:
    folder.mkdir()
    (folder / "catalog.json").write_text(CATALOG.replace('"read"', ", ".join(f'"{tool}"' for tool in tools)))
    return [str(ROOT / "tests/recording_server.py"), str(folder)]


# ---------------------------------------------------------------- the unit


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    """systemd reads the unit as it is, but for the program, which has to exist."""
    analyze = provide("systemd-analyze", "systemd")
    unit = tmp_path / "sluice.service"
    text = (DEPLOY / "sluice.service").read_text()
    unit.write_text(text.replace("/opt/sluice/bin/sluice", sys.executable))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "sluice.service" not in done.stderr, done.stderr
    assert "install -m 644 sluice.yaml" in (DEPLOY / "README.md").read_text(), "its user is nobody that files know"
    wait = int(re.search(r"TimeoutStopSec=(\d+)s", text)[1])  # type: ignore[index]
    assert wait > 30 + 6 + 3, "the default of `drain`, a server that does not leave, a collector that is away"


# ---------------------------------------------------------------- nginx


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    file = tmp_path / "both.pem"
    subject = ["-subj", "/CN=mcp.example.com", "-addext", "subjectAltName=DNS:mcp.example.com"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", file, "-out", tmp_path / "cert.pem"], check=True, capture_output=True)
    file.write_text(file.read_text() + (tmp_path / "cert.pem").read_text())
    return file


def test_nginx_as_configured_here_serves_it_under_a_prefix_with_tls_and_streams(
    tmp_path: Path, certificate: Path
) -> None:
    program, port = provide("nginx", "nginx-light"), free_port()
    (tmp_path / "catalog.json").write_text(CATALOG)
    recording = {"command": sys.executable, "args": [str(ROOT / "tests/recording_server.py"), str(tmp_path)]}
    listen = {
        "public_url": "https://mcp.example.com/tools/mcp", "trusted_proxies": ["127.0.0.1"],
        "allowed_hosts": ["mcp.example.com"],
    }  # fmt: skip
    keys = {"anybody": {"hash": f"sha256:{hashlib.sha256(KEY.encode()).hexdigest()}", "roles": ["role:all"]}}
    (tmp_path / "policy.csv").write_text("p, role:all, *, *, *, allow\n")
    login = {"issuer": "https://login.example.com", "client_id": "sluice"}
    config: Json = {"servers": {"web": recording}, "listen": listen, "clients": {"keys": keys, "login": login}}
    with sluice(config | {"policy": {"files": ["policy.csv"]}}, tmp_path) as process:
        text = (DEPLOY / "nginx.conf").read_text()
        text = text.replace("127.0.0.1:7410", process.url.removeprefix("http://").removesuffix("/mcp"))
        text = re.sub(r"/etc/ssl/mcp.example.com.(pem|key)", str(certificate), text)
        text = text.replace("listen 443 ssl", f"listen 127.0.0.1:{port} ssl")
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        paths = " ".join(f"{kind}_temp_path {tmp_path};" for kind in kinds)
        file = tmp_path / "nginx.conf"
        file.write_text(
            f"daemon off; master_process off; pid {tmp_path}/nginx.pid; error_log stderr warn;\n"
            f"events {{}}\nhttp {{ access_log off; {paths}\n{text}\n}}\n"
        )
        log = tmp_path / "nginx.log"
        with running([program, "-c", str(file), "-e", "stderr"], log) as nginx:
            wait_for_port(port, nginx, log)
            anyio.run(through_nginx, port, tmp_path / "cert.pem")


async def through_nginx(port: int, certificate: Path) -> None:
    trust = ssl.create_default_context(cafile=str(certificate))
    headers = {
        "Host": "mcp.example.com", "Accept": "application/json, text/event-stream", "Authorization": f"Bearer {KEY}",
    }  # fmt: skip
    named = {"sni_hostname": "mcp.example.com"}
    async with httpx.AsyncClient(
        verify=trust, base_url=f"https://127.0.0.1:{port}", headers=headers, timeout=30
    ) as client:
        call = {"name": "web__read", "arguments": {}, "_meta": META}
        modern = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": "web__read"}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = await client.post("/tools/mcp", json=message, headers=modern, extensions=named)
        assert answer.json()["result"]["content"][0]["text"] == "ran read"
        resource = await client.get("/.well-known/oauth-protected-resource/tools/mcp", extensions=named)
        assert resource.json()["authorization_servers"] == ["https://mcp.example.com/tools"]
        server = (await client.get("/.well-known/oauth-authorization-server/tools", extensions=named)).json()
        assert server["issuer"] == "https://mcp.example.com/tools"
        registration = urlsplit(server["registration_endpoint"]).path
        wanted = {"redirect_uris": ["https://client.example.com/back"]}
        assert (await client.post(registration, json=wanted, extensions=named)).status_code == 201
        assert (await client.get("/tools/login/web", extensions=named)).status_code == 200
        stranger = {"Host": "evil.example.com"}
        assert (await client.get("/tools/mcp", headers=stranger, extensions=named)).status_code >= 400
        assert (await client.post("/mcp", json=message, headers=modern, extensions=named)).status_code == 404
        # The first event of a stream that does not end comes at once, and says where to post: behind the prefix.
        with anyio.fail_after(30):
            async with client.stream("GET", "/tools/sse", extensions=named) as stream:
                async for line in stream.aiter_lines():
                    if line.startswith("data:"):
                        assert (
                            line.removeprefix("data:").strip().startswith(("/tools/", "https://mcp.example.com/tools/"))
                        )
                        return


def test_readmes_name_files_that_are_there() -> None:
    for readme in (DEPLOY / "README.md", ROOT / "grafana" / "README.md"):
        for name in re.findall(r"\]\((\.\./[^)#]+)", readme.read_text()):
            assert (readme.parent / name).exists(), name
