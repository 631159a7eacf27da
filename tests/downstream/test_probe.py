"""What an answer to the era probe proves: the table."""

from typing import Any

import pytest

from sluicegate.downstream.connector import judge, proves_legacy
from sluicegate.downstream.failures import Lost
from sluicegate.protocol.jsonrpc import Response

MODERN, LEGACY = {"modern"}, {"legacy"}


@pytest.mark.parametrize(
    ("result", "eras"),
    [
        ({"supportedVersions": ["2026-07-28"]}, MODERN),
        ({"supportedVersions": ["2026-07-28", "2025-11-25"]}, MODERN | LEGACY),
        ({"supportedVersions": ["2025-11-25"]}, LEGACY),
        ({"supportedVersions": ["2099-01-01"]}, LEGACY),
        ({"supportedVersions": "2026-07-28"}, LEGACY),
        ({}, LEGACY),
    ],
)
def test_a_result_proves_what_it_lists(result: dict[str, Any], eras: set[str]) -> None:
    assert judge(Response(1, result)) == eras


@pytest.mark.parametrize(
    ("error", "eras"),
    [
        ({"code": -32022, "data": {"supported": ["2026-07-28"]}}, MODERN),
        ({"code": -32022, "data": {"supported": ["2026-07-28", "2025-06-18"]}}, MODERN | LEGACY),
        ({"code": -32022, "data": {"supported": ["2025-06-18"]}}, LEGACY),
        ({"code": -32022}, LEGACY),
        ({"code": -32020}, MODERN),
        ({"code": -32021}, MODERN),
        ({"code": -32001}, LEGACY),
        ({"code": -32004, "data": {"supported": ["2026-07-28"]}}, LEGACY),
        ({"code": -32601}, LEGACY),
        ({"code": -32602}, LEGACY),
        ({"code": -32600}, LEGACY),
        ({"code": -32000}, LEGACY),
        ({}, LEGACY),
    ],
)
def test_an_error_proves_the_modern_era_only_by_the_codes_of_its_revision(
    error: dict[str, Any], eras: set[str]
) -> None:
    assert judge(Response(1, error=error)) == eras


def test_a_server_that_speaks_only_what_nobody_knows_cannot_be_reached() -> None:
    with pytest.raises(Lost, match="2099-01-01"):
        judge(Response(1, error={"code": -32022, "data": {"supported": ["2099-01-01"]}}))


@pytest.mark.parametrize("status", [None, 401, 403, 408, 429, 500, 502, 503])
def test_nothing_is_proven_by_trouble(status: int | None) -> None:
    assert not proves_legacy(Lost("", sent=False, status=status))


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 200])
def test_a_plain_refusal_over_http_is_a_legacy_server(status: int) -> None:
    assert proves_legacy(Lost("", sent=False, status=status))


def test_only_what_looks_like_a_revision_is_repeated() -> None:
    error = {"code": -32022, "message": "", "data": {"supported": ["2031-01-01", "secret \x1b[31m"]}}
    with pytest.raises(Lost, match=r"speaks only 2031-01-01$"):
        judge(Response(1, error=error))
