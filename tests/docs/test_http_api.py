"""The admin API is as docs/reference/http-api.md says: each request is served, for the right that the page names."""

import re
import secrets
from hashlib import sha256
from pathlib import Path

import httpx
from api_schema import as_described
from docs_reference import DOCS
from e2e.sluice_process import sluice

ROW = re.compile(r"^\| (`.*`) \| `(admin:\w+)` (read|write) \|", re.MULTILINE)


def test_each_request_is_served_for_the_right_that_the_page_names(tmp_path: Path) -> None:
    key = secrets.token_urlsafe(32)
    rows = ROW.findall((DOCS / "reference" / "http-api.md").read_text("utf-8"))
    requests = [(*one.split(" "), area, act) for cell, area, act in rows for one in re.findall(r"`([^`]+)`", cell)]
    (tmp_path / "policy.csv").write_text("p, local, sluice, admin:*, *, allow\n")
    clients = {"keys": {"nobody": {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"}}}
    config = {"servers": {}, "clients": clients, "policy": {"files": ["policy.csv"]}}
    with sluice(config, tmp_path) as process, httpx.Client(base_url=process.admin, timeout=30) as http:
        token = (tmp_path / "state" / "operator.token").read_text().strip()
        assert len(requests) == 39
        for method, target, area, act in requests:
            if target.endswith("/events"):  # a stream: that it is refused shows that it is there
                continue
            path = target.replace("{id}", "apr_7f3k2m9q4x1z").replace("{key}", "files")
            refused = http.request(method, path, headers={"Authorization": f"Bearer {key}"})
            assert refused.status_code == 403 and f"{area} {act}" in refused.text, (target, refused.text)
            served = http.request(method, path, headers={"Authorization": f"Bearer {token}"}, content=b"{}")
            as_described(served)
            assert served.status_code not in (401, 403, 405) and "no such path" not in served.text, target
