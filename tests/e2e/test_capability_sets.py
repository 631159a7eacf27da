"""The reference server shows tools by what a client can do: through Sluice every client gets its own, in any order."""

from pathlib import Path

import anyio
import pytest
from e2e.sluice_process import Sluice, sluice
from peers.fleet import run_client
from peers.install import HERE, MCP1, MCP2, NODE, SERVER_EVERYTHING

CLIENTS = HERE / "clients"
SERVER = [str(NODE), str(SERVER_EVERYTHING), "stdio"]
ABLE = ("elicitation", "sampling", "list_roots")
SDK1 = [str(MCP1 / "python"), str(CLIENTS / "tools1.py"), "{job}"]
SDK2 = [str(MCP2 / "python"), str(CLIENTS / "tools2.py"), "{job}"]
# Program and what it declares, one after the other on one Sluice.
ORDERS = [
    [(SDK1, ()), ([*SDK2, "modern"], ABLE)],
    [([*SDK2, "legacy"], ABLE), ([*SDK2, "modern"], ())],
]


@pytest.fixture(scope="module")
def direct(peers: None) -> "dict[tuple[str, ...], list[str]]":
    """What the server shows without Sluice."""
    every = {declares for order in ORDERS for _, declares in order}
    return {one: run_client(SDK1, {"command": SERVER, "declares": one})["tools"] for one in every}


@pytest.mark.parametrize("order", ORDERS, ids=["bare first", "able first"])
async def test_whoever_lists_first_does_not_decide_what_others_may_use(
    direct: "dict[tuple[str, ...], list[str]]", tmp_path: Path, order: "list[tuple[list[str], tuple[str, ...]]]"
) -> None:
    assert len(direct[()]) < len(direct[ABLE])
    with sluice({"servers": {"every": {"command": SERVER[0], "args": SERVER[1:]}}}, tmp_path) as process:
        for program, declares in order:
            assert await listed(process, program, declares) == [f"every__{name}" for name in direct[declares]]
        assert "withheld" not in process.log()


async def listed(process: Sluice, program: "list[str]", declares: "tuple[str, ...]") -> "list[str]":
    job = {"url": process.url, "declares": declares}
    with anyio.fail_after(120):
        return list((await anyio.to_thread.run_sync(run_client, program, job))["tools"])
