"""A server whose config names a variable that is not set: it is disabled, which is said, and its neighbour works."""

import json
from pathlib import Path

import httpx
import pytest
from e2e.desktop_clients import SERVER, Desktop, Json
from e2e.sluice_process import sluice, stdio_command

LACKS: Json = {"command": "npx", "env": {"TOKEN": "${env:NOT_SET_ANYWHERE}"}}
WHY = "variable NOT_SET_ANYWHERE is not set"


def test_over_stdio_the_other_server_works_and_stderr_says_what_is_disabled(tmp_path: Path) -> None:
    config = {"servers": {"asks": SERVER, "lacks": LACKS}}
    desktop = Desktop(stdio_command(config, tmp_path), "d")
    try:
        desktop.hello()
        tools = [tool["name"] for tool in desktop.ask("tools/list")["result"]["tools"]]
        assert tools and all(name.startswith("asks__") for name in tools)
        answer = desktop.ask("tools/call", name="lacks__anything", arguments={})
        assert "lacks__anything" in json.dumps(answer) and "NOT_SET_ANYWHERE" not in json.dumps(answer)
    finally:
        desktop.leave()
        said = desktop.said()
        desktop.close()
    lines = [line for line in said.splitlines() if "the server lacks is disabled" in line]
    place = f"{tmp_path}/sluice.yaml:"
    assert len(lines) == 1 and lines[0].startswith(place) and "NOT_SET_ANYWHERE is not set" in lines[0]


@pytest.mark.parametrize("required", [False, True])
def test_over_http_the_admin_port_says_what_is_disabled(tmp_path: Path, required: bool) -> None:
    servers = {"asks": SERVER, "lacks": LACKS | {"required": required}}
    with sluice({"servers": servers}, tmp_path, ready=not required) as process:
        token = tmp_path / "state" / "operator.token"
        process.wait_answering()
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        answer = httpx.get(f"{process.admin}/api/v1/servers", headers=headers)
        rows = {row["key"]: row for row in answer.json()["servers"]}
        assert (rows["lacks"]["status"], rows["lacks"]["last_error"]) == ("disabled", WHY)
        status, body = process.get("/readyz")
        if required:
            assert status == 503 and f"server lacks is disabled ({WHY})" in body
        else:
            assert status == 200 and rows["asks"]["status"] == "up"
        assert 'sluice_server_up{server="lacks"} 0.0' in process.get("/metrics")[1]
        assert WHY in process.log()
