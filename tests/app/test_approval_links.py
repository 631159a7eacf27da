"""When a client's user is sent to the page of an approval: only where they are sure to reach it."""

from pathlib import Path
from typing import Any

import pytest

from sluicegate.app.settings import has_reachable_pages
from sluicegate.config import load

HERE, ANYWHERE, OFFICE = "127.0.0.1", "0.0.0.0", "192.168.7.2"


@pytest.mark.parametrize(
    ("mcp", "admin", "more", "is_sure"),
    [
        (HERE, HERE, {}, True),
        (HERE, HERE, {"trusted_proxies": ["127.0.0.1"]}, False),
        (HERE, HERE, {"public_url": "https://mcp.acme.com/mcp"}, False),
        (OFFICE, HERE, {}, False),
        (OFFICE, OFFICE, {}, True),
        (HERE, ANYWHERE, {}, False),
        (HERE, "[::]", {}, False),
    ],
)
def test_a_link_is_given_where_its_page_can_be_reached(
    tmp_path: Path, mcp: str, admin: str, more: dict[str, Any], is_sure: bool
) -> None:
    listen = "".join(f", {name}: {value}" for name, value in more.items())
    file = tmp_path / "sluice.yaml"
    file.write_text(
        f'version: 1\nlisten: {{mcp: "{mcp}:7410", admin: "{admin}:7411"{listen}}}\n'
        "servers: {one: {command: none}}\nclients: {keys: {a: {hash: 'sha256:" + "0" * 64 + "'}}}\n"
        "policy: {use: personal}\n"
    )
    assert has_reachable_pages(load(file)) is is_sure
