"""A real Grafana takes the dashboard and shows it. Only where there is one, for none can be installed from a registry.

GRAFANA_URL says where it is, with the user in it if it needs one; GRAFANA_PICTURE where the picture is to go.

    GRAFANA_URL=http://admin:admin@127.0.0.1:3000 python -m pytest -m grafana -rs
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from metrics.test_dashboard import DASHBOARD
from peers.install import MODULES, NODE

URL = os.environ.get("GRAFANA_URL", "").rstrip("/")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
LOOK = Path(__file__).with_name("look.mjs")
PANELS = sum(panel["type"] != "row" for panel in DASHBOARD["panels"])
PNG = b"\x89PNG\r\n\x1a\n"

pytestmark = [
    pytest.mark.grafana,
    pytest.mark.skipif(not URL, reason="NO GRAFANA: set GRAFANA_URL to have the dashboard imported and looked at"),
]


@pytest.fixture(scope="module")
def imported() -> Iterator[httpx.Client]:
    """Under a name of its own, and gone afterwards: one that is provisioned there stays as it is."""
    copy = DASHBOARD | {"uid": "sluice-test", "title": "Sluice (test)", "id": None}
    with httpx.Client(base_url=URL, timeout=30) as client:
        answer = client.post("/api/dashboards/db", json={"dashboard": copy, "overwrite": True})
        assert answer.status_code == 200, answer.text
        yield client
        client.delete("/api/dashboards/uid/sluice-test").raise_for_status()


def test_grafana_takes_the_dashboard_whole(imported: httpx.Client) -> None:
    kept = imported.get("/api/dashboards/uid/sluice-test").raise_for_status().json()["dashboard"]
    assert [panel["title"] for panel in kept["panels"]] == [panel["title"] for panel in DASHBOARD["panels"]]


@pytest.mark.skipif(BROWSER is None, reason="NO PICTURE: install chromium (apt-get install chromium)")
def test_it_can_be_looked_at(imported: httpx.Client, tmp_path: Path) -> None:
    picture = Path(os.environ.get("GRAFANA_PICTURE", tmp_path / "dashboard.png"))
    page = imported.build_request("GET", "/d/sluice-test/sluice-test?kiosk&from=now-15m&to=now").url
    bare = page.copy_with(username=None, password=None)
    command = [NODE, LOOK, BROWSER, bare, page.username, page.password, picture, MODULES / "playwright-core"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    print(f"the dashboard: {picture}")
    assert seen["panels"] >= PANELS * 0.9 and not seen["failed"] and not seen["broken"], seen
    assert picture.read_bytes().startswith(PNG)
