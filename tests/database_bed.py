"""What tests of Sluices on one database share: machines with files of their own, and one server behind all of them."""

import json
import subprocess
import sys
from base64 import b64encode
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from peers.postgres import Cluster
from policy_bed import RECORDER, Bed, bearer, client_keys, recorder

Json = dict[str, Any]
ROWS = """\
p, role:authenticated, bank, *, *, allow
p, role:lead, sluice, admin:approvals, *, allow
p, role:lead, sluice, admin:policy, *, allow
p, role:lead, sluice, admin:grants, *, allow
p2, *, bank, tool:wire, *, one-of-leads
"""


@pytest.fixture
def database(engine: Cluster, request: pytest.FixtureRequest) -> str:
    """The URL of an empty one."""
    name = f"d{abs(hash(request.node.nodeid))}"
    engine.ask(f"CREATE DATABASE {name}")
    return f"{engine.url.rpartition('/')[0]}/{name}"


def settings(folder: Path, database: str) -> Json:
    """As on every machine: the same servers and keys, and files of its own."""
    rings = {name: b64encode(name.encode().ljust(32, b".")).decode() for name in ("seal", "digest", "sign", "login")}
    return {
        "servers": {"bank": bank(folder.parents[1])},
        "clients": {"keys": client_keys(ann=[], lea=["role:lead"]), "local": {"roles": ["role:lead"]}},
        "approvals": {"hold_for": "300ms"},
        "state": {"dir": str(folder / "state"), "url": database, "keys": rings},
    }


def bank(folder: Path) -> Json:
    """One server, started in the same folder on every machine: what was approved counts for it alone."""
    place = folder / "bank"
    if not place.exists():
        recorder(folder, "bank", tools=["wire", "look"])
    command = {"command": sys.executable, "args": [RECORDER, str(place)], "cwd": str(place)}
    return {**command, "sharing": "shared", "era": "legacy"}


def seen(process: Bed) -> list[str]:
    """The tools that were called at the server of all machines."""
    lines = (process.folder.parents[1] / "bank" / "seen.jsonl").read_text().splitlines()
    return [one["params"]["name"] for one in map(json.loads, lines) if one["method"] == "tools/call"]


def machine(folder: Path, name: str) -> Path:
    """Its files. The folder of the policy has the same name everywhere, for the name is part of the revision."""
    made = folder / name / "sluice"
    made.mkdir(parents=True)
    return made


def api(process: Bed, path: str, **options: Any) -> httpx.Response:
    url = f"{process.process.admin}/api/v1/{path}"
    return httpx.request(options.pop("method", "GET"), url, headers=bearer("lea"), timeout=20, **options)


def approve(process: Bed, id: str) -> int:
    seen = api(process, f"approvals/{id}").json()["digest"]
    body = {"decision": "approve", "seen_digest": seen}
    return api(process, f"approvals/{id}/decisions", method="POST", json=body).status_code


def command(process: Bed, *words: str, config: Path | None = None) -> "subprocess.CompletedProcess[str]":
    """What a command says and its exit code. What would serve has a process of its own."""
    file = str(config or process.process.config)
    if words[0] != "serve":
        return run(ROOT, *words, "-c", file)
    line = [*COMMAND, *words, "-c", file]
    return subprocess.run(line, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), check=False)
