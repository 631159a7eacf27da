"""Every client before every server in every situation: matrix.py says what must come of it, matrix_bed.py does it."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from e2e.matrix import CLIENTS, ELSEWHERE, ROWS, SERVERS, UNABLE, Row, eras
from e2e.matrix_bed import Json, matrix

ROOT = Path(__file__).resolve().parents[2]
Reports = dict[str, dict[str, Json]]


@pytest.fixture(scope="module")
def reports(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reports]:
    with matrix(tmp_path_factory.mktemp("matrix")) as came:
        yield came


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.situation)
@pytest.mark.parametrize("client", CLIENTS)
def test_what_comes_of_it(reports: Reports, client: str, row: Row) -> None:
    came = {server: reports[client][server][row.situation] for server in SERVERS}
    assert came == {
        server: row.expected(eras(CLIENTS[client], side), server) for server, side in SERVERS.items()
    }  # fmt: skip


@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_without_the_capability_is_not_asked(reports: Reports, client: str) -> None:
    for server, side in SERVERS.items():
        wanted = [UNABLE[side.sdk]["legacy" if CLIENTS[client].is_legacy else "modern"]]
        if CLIENTS[client].transport == "stdio" and side.transport != "http":
            # Those clients are one person and share a channel: where calls of several are open on it, it cannot be told
            # which of them asked, and each has its server's own words.
            wanted.append(UNABLE[side.sdk]["legacy"])
        came = reports[client][server]["without_the_capability"]
        assert came.startswith(tuple(wanted)) and "elicitation" in came, (server, came)


@pytest.mark.parametrize("situation", ELSEWHERE)
def test_what_is_shown_elsewhere_is_shown(situation: str) -> None:
    file, name = ELSEWHERE[situation]
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(), re.MULTILINE)
