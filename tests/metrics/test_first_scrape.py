"""What a real Sluice shows at its first scrape: 0 for what is configured, also where it came with a reload."""

import hashlib
import json
from pathlib import Path

import httpx
from e2e.sluice_process import sluice
from waiting import until_so


def key(name: str) -> dict[str, str]:
    return {"hash": f"sha256:{hashlib.sha256(name.encode()).hexdigest()}"}


def test_the_first_scrape_has_every_configured_server_client_and_profile(tmp_path: Path) -> None:
    config = {
        "servers": {"later": {"command": "none", "lazy": True, "required": False}},
        "clients": {"keys": {"ci": key("ci")}, "local": {"roles": []}},
    }
    with sluice(config, tmp_path) as process:
        page = process.get("/metrics")[1]
        for line in (
            'sluice_calls_total{method="tools/call",outcome="timeout",server="later",tool="_other"} 0.0',
            'sluice_client_calls_total{client="key:ci",outcome="denied"} 0.0',
            'sluice_decisions_total{class="write",server="later",verdict="deny"} 0.0',
            'sluice_tool_definition_changes_total{kind="tool",server="later"} 0.0',
            'sluice_approvals_total{profile="confirm",result="expired"} 0.0',
            'sluice_approval_wait_seconds_count{profile="confirm"} 0.0',
            'sluice_audit_records_total{result="refused",sink="file"} 0.0',
            'sluice_credentials_refused_total{reason="expired"} 0.0',
        ):
            assert line in page, page
        refused = httpx.post(process.url, json={}, headers={"Authorization": "Bearer eve"})
        assert refused.status_code == 401
        assert 'sluice_credentials_refused_total{reason="credential"} 1.0' in process.get("/metrics")[1]
        assert "\nsluice_event_loop_tasks " in page and "\nsluice_event_loop_tasks 0" not in page
        changed = json.loads(process.config.read_text())
        changed["clients"]["keys"]["new"] = key("new")
        process.config.write_text(json.dumps(changed))
        expected = 'sluice_client_calls_total{client="key:new",outcome="ok"} 0.0'
        until_so(lambda: expected in process.get("/metrics")[1], describe=process.log)
