"""What a stranger's page or half a session gets from any request of the admin API's table: nothing."""

import json
from collections.abc import Iterator

import httpx
import pytest
from console.test_console_process import Tab, front, new_code
from console.test_paths_and_rights import BODIES, path_of
from peers.fleet import peers
from policy_bed import Bed

from sluicegate.admin.routes import API, ROUTES, ApiRoute

OURS = [one for one in ROUTES if one.path.startswith(API)]
WRITES = [one for one in OURS if one.method != "GET"]
EVERY = pytest.mark.parametrize("route", OURS, ids=lambda route: route.operation)
EVERY_WRITE = pytest.mark.parametrize("route", WRITES, ids=lambda route: route.operation)
FOREIGN = ["https://evil.example", "null", "http://127.0.0.1:1", "http://localhost", None]
FORMS = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"]
__all__ = ["peers"]


@pytest.fixture(scope="module")
def town(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    with front(tmp_path_factory.mktemp("all-routes")) as running:
        yield running


@pytest.fixture(scope="module")
def local(town: Bed) -> Iterator[Tab]:
    """The operator, who has every right."""
    with Tab(town) as tab:
        assert tab.begins(tab.ask("POST", "/console/session", json={"code": new_code(town)})).status_code == 200
        yield tab


def body_of(route: ApiRoute) -> bytes | None:
    return json.dumps(BODIES.get(route.operation, {})).encode() if route.method == "POST" else None


def sent(local: Tab, route: ApiRoute, headers: dict[str, str], has_cookie: bool = True) -> httpx.Response:
    """With these headers, and no other of a browser."""
    cookies = local.client.cookies if has_cookie else None
    kind = {"Content-Type": "application/json"} if route.method == "POST" else {}
    with httpx.Client(base_url=local.client.base_url, cookies=cookies, timeout=20, verify=False) as client:
        return client.request(route.method, path_of(route), headers=kind | headers, content=body_of(route))


def nothing(answer: httpx.Response, status: int) -> bool:
    return answer.status_code == status and set(answer.json()) == {"error"}


def of_ours(local: Tab) -> dict[str, str]:
    return {"Origin": str(local.client.base_url).rstrip("/"), "Sec-Fetch-Site": "same-origin"}


@EVERY
def test_neither_half_of_a_session_alone_is_one(local: Tab, route: ApiRoute) -> None:
    assert nothing(sent(local, route, of_ours(local)), 401), "the cookie alone"
    assert nothing(sent(local, route, of_ours(local) | {"X-Sluice-Page": "x" * 22}), 401)
    page_key = {"X-Sluice-Page": local.page_key}
    assert nothing(sent(local, route, of_ours(local) | page_key, has_cookie=False), 401), "the page key alone"


@EVERY_WRITE
@pytest.mark.parametrize("origin", FOREIGN)
def test_no_page_of_somebody_else_writes(local: Tab, route: ApiRoute, origin: str | None) -> None:
    headers = {"X-Sluice-Page": local.page_key, "Sec-Fetch-Site": "same-origin"}
    assert nothing(sent(local, route, headers | ({"Origin": origin} if origin else {})), 403)


@EVERY
@pytest.mark.parametrize("site", ["cross-site", "same-site", "none", None])
def test_only_what_our_own_pages_fetch_is_answered(local: Tab, route: ApiRoute, site: str | None) -> None:
    headers = of_ours(local) | {"X-Sluice-Page": local.page_key}
    del headers["Sec-Fetch-Site"]
    assert nothing(sent(local, route, headers | ({"Sec-Fetch-Site": site} if site else {})), 403)


@pytest.mark.parametrize("kind", FORMS)
@pytest.mark.parametrize("route", [one for one in WRITES if one.method == "POST"], ids=lambda route: route.operation)
def test_a_form_is_no_request_of_ours(local: Tab, route: ApiRoute, kind: str) -> None:
    headers = of_ours(local) | {"X-Sluice-Page": local.page_key, "Content-Type": kind}
    answer = sent(local, route, headers)
    is_asked_who = answer.status_code == 403 and "step_up" in answer.json()
    assert nothing(answer, 415) or is_asked_who, answer.text
