"""`/api/v1/logins` by itself: pages, and which bodies begin a login."""

from typing import Any

import pytest

from sluicegate.admin.logins import LoginsApi, begin, show
from sluicegate.protocol.model import Client

pytestmark = pytest.mark.anyio
ROWS = [{"id": f"lgn_{n}", "server": server, "principal": f"key:{n}"} for server in ("mail", "post") for n in range(3)]


async def every() -> list[dict[str, Any]]:
    return list(ROWS)


async def done(*asked: object) -> tuple[int, dict[str, Any]]:
    return 200, {"asked": asked}


API = LoginsApi(every, done, done)


async def test_pages_go_through_all_logins_once() -> None:
    found: list[str] = []
    query: dict[str, list[str]] = {"limit": ["2"]}
    while True:
        status, page = await show(API, query)
        assert status == 200 and page["total"] == 6 and len(page["logins"]) == 2
        found = [f"{row['server']} {row['id']}" for row in page["logins"]] + found
        if "next" not in page:
            break
        query["before"] = [page["next"]]
    assert found == [f"{row['server']} {row['id']}" for row in ROWS]
    _, page = await show(API, {"server": ["post"]})
    assert [row["server"] for row in page["logins"]] == ["post"] * 3


@pytest.mark.parametrize("query", [{"limit": ["0"]}, {"server": ["a", "b"]}, {"who": ["x"]}])
async def test_another_query_is_refused(query: dict[str, list[str]]) -> None:
    assert (await show(API, query))[0] == 400


async def test_a_login_begins_for_whoever_asks_or_for_whom_they_name() -> None:
    ann = Client("key:ann")
    assert await begin(API, b'{"server": "mail"}', ann) == (200, {"asked": ("mail", None, ann)})
    assert await begin(API, b'{"server": "mail", "as": "bob"}', ann) == (200, {"asked": ("mail", "bob", ann)})
    for body in (b"{}", b"[]", b'{"server": 1}', b'{"server": "mail", "as": null}', b'{"server": "mail", "x": 1}'):
        assert (await begin(API, body, ann))[0] == 400, body
