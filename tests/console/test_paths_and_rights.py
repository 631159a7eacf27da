"""What a session reaches by any path: its rights, no file, no other site; and nothing where nothing can be recorded."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import httpx
import pytest
from console.test_console_process import Json, Tab, front, new_code, operator
from peers.fleet import peers
from policy_bed import Bed, bearer, key_of

from sluicegate.admin.routes import API, ROUTES, ApiRoute

__all__ = ["peers"]
SECRET = "what-only-who-may-reads"
BANK = {"key": "bank", "id": "apr_000000000000"}
BODIES: dict[str, Json] = {
    "preview": {"method": "resources/read", "target": "mem://a"},
    "explain": {"as": "ann", "method": "tools/call", "target": "bank/wire"},
    "accept_pins": {"server": "bank", "accept": []},
    "add_block": {"what": "bank"},
    "decide": {"decision": "deny"},
}
GUARDED = [one for one in ROUTES if one.area]
# What stands for "up one folder" somewhere; the last is a name that a symbolic link may have.
UPWARDS = ["../../sluice.yaml", "..%2f..%2fsluice.yaml", "%2e%2e/%2e%2e/sluice.yaml", "..%5c..%5csluice.yaml",
           "%252e%252e%252fsluice.yaml", "....//sluice.yaml", "%00sluice.yaml", "/etc/passwd", "%2fetc%2fpasswd",
           "linked"]  # fmt: skip
ELSEWHERE = ["//evil.example", "/%2Fevil.example", "/%5Cevil.example", "/console//evil.example",
             "/console/%2F%2Fevil.example", "/console/%5Cevil.example/", "/console/a/b/", "/console/", "/console//",
             "/console/session/", "/?next=//evil.example", "/console?next=https://evil.example", "/.evil.example",
             "/console/..%2F..%2F%2Fevil.example/", "/@evil.example", "/console/@evil.example/"]  # fmt: skip


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("paths")
    (folder / "hidden").write_text(SECRET)
    with front(folder) as running:
        (folder / "state" / "linked").symlink_to(folder / "hidden")
        (folder / "audit" / "linked").symlink_to(folder / "hidden")
        yield running


@pytest.fixture(scope="module")
def ann(town: Bed) -> Iterator[Tab]:
    """She has no right on Sluice itself."""
    with Tab(town) as tab:
        assert tab.log_in("ann").status_code == 200
        yield tab


@pytest.fixture(scope="module")
def local(town: Bed) -> Iterator[Tab]:
    """The operator, who has every right."""
    with Tab(town) as tab:
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        yield tab


def path_of(route: ApiRoute) -> str:
    return route.path.format(**BANK)


def sent(tab: Tab, route: ApiRoute, path: str = "") -> httpx.Response:
    body = {"json": BODIES.get(route.operation, {})} if route.method == "POST" else {}
    return tab.ask(route.method, path or path_of(route), **body)


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: route.operation)
def test_a_session_without_the_right_of_a_route_gets_no_data(town: Bed, ann: Tab, route: ApiRoute) -> None:
    answer = sent(ann, route)
    assert answer.status_code == 403 and set(answer.json()) <= {"error", "step_up"}, answer.text
    assert ("step_up" in answer.json()) == (route.step_up == "always")


def test_without_a_right_a_step_up_gives_none(town: Bed, ann: Tab) -> None:
    assert ann.begins(ann.ask("POST", "/console/session/step-up", json={"key": key_of("ann")})).status_code == 200
    for route in GUARDED:
        answer = sent(ann, route)
        assert answer.status_code == 403 and set(answer.json()) == {"error"}, route.operation
        assert f"admin:{route.area} {route.act}" in answer.json()["error"]


@pytest.mark.parametrize("upwards", UPWARDS)
def test_no_path_leads_to_a_file(town: Bed, local: Tab, upwards: str) -> None:
    shown = [part for part in (town.folder / "sluice.yaml").read_text().split('"') if len(part) > 60]
    paths = {part.rpartition("/")[0] for one in ROUTES if "{" in (part := one.path)}
    read = {part.rpartition("/")[0] for one in ROUTES if "{" in (part := one.path) and one.method == "GET"}
    static = httpx.get(f"{town.process.admin}/console").text.partition('src="')[2].partition('"')[0].rpartition("/")[0]
    for folder in sorted({*paths, "/console", "/console/static", static, f"{static}/vendor", "/approvals"}):
        place = folder.replace("{key}", "bank").replace("{id}", "apr_000000000000")
        answer = local.ask("GET", f"{place}/{upwards}")
        refusals = (400, 404, 405) if folder in paths - read else (400, 404)
        assert answer.status_code in refusals or answer.headers["content-type"].startswith("text/html"), place
        for secret in (SECRET, "root:x:", *shown):
            assert secret not in answer.text, place


def test_a_row_names_no_file_of_the_policy_but_those_that_are_loaded(town: Bed, local: Tab) -> None:
    """The lines around a row are read again: what is a link by then is not followed to another row's text."""
    policy = town.folder / "policy.csv"
    rows = policy.read_text()
    (town.folder / "elsewhere").write_text("\n".join([SECRET] * 20))
    policy.unlink()
    policy.symlink_to(town.folder / "elsewhere")
    try:
        answer = local.ask("POST", f"{API}policy/explain", json=BODIES["explain"])
        assert answer.status_code == 200 and SECRET not in answer.text
    finally:
        town.write(rows)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_no_answer_leads_to_another_site(town: Bed, local: Tab, path: str) -> None:
    """A Location of ours is a path: behind a proxy that speaks https it stays https."""
    for who in ("", "lea"):
        headers = bearer(who)
        answer = httpx.get(f"{town.process.admin}{path}", headers=headers, follow_redirects=False)
        where = answer.headers.get("location", "/")
        assert urlsplit(urljoin("https://own.example", where)).netloc == "own.example", where
        assert where.startswith("/") and not where.startswith(("//", "/\\")), where
    answer = local.ask("GET", path, follow_redirects=False)
    assert answer.headers.get("location", "/console") == "/console"


def test_with_a_slash_at_its_end_the_console_is_there_too(town: Bed) -> None:
    shell = httpx.get(f"{town.process.admin}/console/").text
    assert "<noscript>The console needs JavaScript. `sluice approvals list` and `sluice servers` do" in shell


DENY: Json = {"decision": "deny"}
UNRECORDED: list[tuple[str, str, Json | None]] = [
    ("POST", "/console/session/step-up", {"name": "wire"}), ("DELETE", f"{API}grants/none", None),
    ("POST", f"{API}approvals/ID/decisions", DENY), ("POST", f"{API}approvals/ID/cancel", {}),
    ("POST", f"{API}pins", BODIES["accept_pins"]), ("POST", f"{API}preview", BODIES["preview"]),
    ("POST", f"{API}policy/explain", BODIES["explain"]), ("POST", f"{API}audit/verify", {}),
    ("POST", f"{API}servers/bank/reconnect", {}), ("POST", f"{API}blocks", BODIES["add_block"]),
]  # fmt: skip


def test_where_the_log_cannot_be_written_nothing_is_done(peers: None, tmp_path: Path) -> None:
    with front(tmp_path) as town, Tab(town) as local:
        link = {"json": {"code": new_code(town)}}
        assert local.begins(local.ask("POST", "/console/session", **link)).status_code == 200
        id = town.call("ann", "bank__wire", n=1).json()["result"]["_meta"]["dev.sluice/approval"]["id"]
        log = tmp_path / "audit" / "sluice.jsonl"

        def breaks() -> None:
            """Its writer finds that the file was removed: nothing is recorded until it has begun another."""
            town.until(lambda: town.process.get("/readyz")[0] == 200 and log.exists())
            log.unlink()

        before = local.ask("GET", f"{API}servers/bank").json()["pids"]
        for method, path, body in UNRECORDED:
            breaks()
            answer = local.ask(method, path.replace("ID", id), **({} if body is None else {"json": body}))
            assert answer.status_code == 503 and "cannot be written" in answer.json()["error"], (path, answer.text)
        breaks()
        with Tab(town) as other:
            assert other.log_in("lea").status_code == 503 and not other.client.cookies
        breaks()
        assert httpx.post(f"{town.process.admin}/console/codes", headers=operator(town)).status_code == 503
        town.until(lambda: town.process.get("/readyz")[0] == 200 and log.exists())
        shown = httpx.get(f"{town.process.admin}{API}approvals/{id}", headers=bearer("leo")).json()
        assert (shown["state"], shown["votes"]) == ("pending", [])
        assert local.ask("GET", f"{API}servers/bank").json()["pids"] == before
        assert local.ask("GET", f"{API}blocks").json() == {"blocks": []}
        assert local.ask("GET", "/console/session").json()["step_up_seconds"] == 0
        breaks()
        assert local.ask("DELETE", "/console/session").status_code == 200, "to end a session only takes away"
