"""What one step of the event loop does is bounded, whatever shape a hostile peer gives its messages. Counted in a real
Sluice, for on a busy machine no time proves anything."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from bed import Bed, Plan, is_open, sluice
from hostile import CLIENTS, Attack, attacks, bodies, servers
from load import legacy_session, message
from subjects import HERE, free_port, running

from sluicegate.protocol.jsonrpc import MAX_NODES, MAX_RESULT_NODES

ATTACKS = list(attacks())
READ = 256 * 1024
"""Bytes that asyncio reads at once."""


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    folder = tmp_path_factory.mktemp("peers")
    ports = free_port(), free_port()
    healthy = [sys.executable, str(HERE / "many_server.py"), str(ports[0]), "5", "0"]
    bad = [sys.executable, str(HERE / "trouble_server.py"), str(ports[1])]
    cores = sorted(os.sched_getaffinity(0))
    with (
        running(cores, healthy, folder / "many.log", lambda: is_open(ports[0])),
        running(cores, bad, folder / "trouble.log", lambda: is_open(ports[1])),
    ):
        yield f"http://127.0.0.1:{ports[0]}", f"http://127.0.0.1:{ports[1]}"


def from_clients(bed: Bed, attack: Attack, client: httpx.Client) -> int:
    """One request of each era's hostile client: how many were answered."""
    asked = islice(bodies(attack, bed, client), 2)
    return sum(bool(client.post(bed.subject.url, content=body, headers=head).content) for head, body, _ in asked)


def from_server(bed: Bed, number: int, head: dict[str, str]) -> bool:
    """One call of a hostile server: whether it reached it."""
    params = {"name": f"bad{number}__do_0", "arguments": {"text": ""}}
    answer = bed.client.post(bed.subject.url, json=message("tools/call", params), headers=head)
    return answer.status_code == 200 and b"Unknown tool" not in answer.content


def most(folder: Path, plan: Plan, act: Any, steps: str = "pieces") -> dict[str, int]:
    """The most that a step did while `act` had its way with a Sluice. `steps` is "pieces" where each piece of a large
    message is a step, as on a slow machine, or "shipped"."""
    file = folder / "counts"
    file.touch()
    command = [sys.executable, str(HERE / "counting_sluice.py"), str(file), steps]
    with sluice(folder / "sluice", plan, command, core=sorted(os.sched_getaffinity(0))) as bed:
        act(bed)
    return dict(json.loads(file.read_text()))


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("part", range(3))
def test_a_step_reads_and_decodes_no_more_than_the_bounds_of_one_message_of_a_client(
    tmp_path: Path, urls: tuple[str, str], part: int
) -> None:
    def act(bed: Bed) -> None:
        with httpx.Client(trust_env=False, timeout=60) as client:
            for attack in ATTACKS[part::3]:
                assert from_clients(bed, attack, client) == 2, attack.name

    plan = Plan(servers(*urls, ATTACKS[0]), keys=1 + CLIENTS, strangers=CLIENTS)
    found = most(tmp_path, plan, act)
    assert 0 < found["bytes read"] <= READ
    assert found["large decoded"] == found["large weighed"] == found["large judged"] == 1
    assert found["values decoded"] <= MAX_NODES
    assert found["bytes weighed"] <= 4 * 1024 * 1024 and found["bytes decoded"] <= 4 * 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
@pytest.mark.parametrize("part", range(3))
def test_nor_does_one_of_a_server(tmp_path: Path, urls: tuple[str, str], part: int) -> None:
    chosen = ATTACKS[part::3]
    plan = Plan({f"bad{n}": servers(*urls, attack)["bad0"] for n, attack in enumerate(chosen)})

    def act(bed: Bed) -> None:
        head = legacy_session(bed.subject, bed.client)
        for number in range(len(chosen)):
            assert from_server(bed, number, head), chosen[number].name

    found = most(tmp_path, plan, act)
    assert 0 < found["bytes read"] <= READ
    assert found["large decoded"] == found["large weighed"] == 1
    assert found["values decoded"] <= MAX_RESULT_NODES
    assert found["bytes weighed"] <= 8 * 1024 * 1024 and found["bytes decoded"] <= 8 * 1024 * 1024


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux")
def test_nor_where_short_pieces_are_done_in_one_step(tmp_path: Path, urls: tuple[str, str]) -> None:
    """As it ships: a step may have several large messages, and has no more bytes or values for that."""
    chosen = ATTACKS[::3]
    plan = Plan({f"bad{n}": servers(*urls, attack)["bad0"] for n, attack in enumerate(chosen)})

    def act(bed: Bed) -> None:
        head = legacy_session(bed.subject, bed.client)
        for number in range(len(chosen)):
            assert from_server(bed, number, head), chosen[number].name

    found = most(tmp_path, plan, act, "shipped")
    assert 0 < found["bytes read"] <= READ and found["large decoded"] > 0
    assert found["values decoded"] <= MAX_RESULT_NODES
    assert found["bytes weighed"] <= 8 * 1024 * 1024 and found["bytes decoded"] <= 8 * 1024 * 1024
