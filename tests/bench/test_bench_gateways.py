"""The comparison with other gateways: its table and chart are made of its results, and a wrong answer is no figure."""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gateway_page
import httpx
import pytest
from gateways import GATEWAYS, KIND, PeerGateway, _Stage, add_gateways, measured, named
from load import make_call
from subjects import HERE, LOAD_CORE, NotMeasured, Subject, fast_server

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pins cores")


def at(cpu: float, ratio: float | None) -> dict[str, Any]:
    figures = {"cpu": cpu, "rate": 1e6 / cpu, "p50": cpu * 10, "p99": cpu * 30, "memory": 11.2, "ratio": ratio}
    return {concurrency: figures for concurrency in ("1", "16", "64")}


RESULT = {
    "machine": {"cpu": "A <B> CPU", "cores": 2, "date": "2026-01-02", "python": "3.11.2", "nginx": "nginx/1",
                "load": 0.1, "sluice": "0.1.0", "disk_us": [90, 1_234]},
    "rounds": 5,
    "rows": [
        {"kind": "legacy JSON", "name": "nginx", "to": None, "at": at(20, None)},
        {"kind": "legacy JSON", "name": "Sluice, full", "to": "nginx", "at": at(160, 8.0)},
        {"kind": "legacy JSON", "name": "slow & steady", "to": "nginx", "at": at(36_000, 1800.0)},
    ],
    "missing": {"agentgateway": "no <program>"},
}  # fmt: skip


def test_the_table_has_each_row_and_says_what_was_not_measured() -> None:
    table = gateway_page.table(RESULT)
    assert "| Sluice, full | 160 (8.0x) | 1,600, 4,800 | 1,600, 4,800 | 1,600, 4,800 | 6,250 | 11 |" in table
    assert "| slow & steady | 36,000 (1,800x) |" in table
    assert "| agentgateway | **not measured**: no <program> |" in table and "2026-01-02" in table
    assert "takes 90 us, 1,234 at p99." in table
    assert gateway_page.name_of(RESULT) == "peers-a-b-cpu-2-cores"


def test_one_that_answers_nothing_at_64_is_told_so_there_alone() -> None:
    few = {name: figures for name, figures in at(100, 5.0).items() if name != "64"}
    result = {**RESULT, "rows": [{"kind": "legacy JSON", "name": "few", "to": "nginx", "at": few}]}
    row = "| few | 100 (5.0x) | 1,000, 3,000 | 1,000, 3,000 | no answer in time |  | 11 |"
    assert row in gateway_page.table(result)
    ElementTree.fromstring(gateway_page.chart(result))


def test_the_chart_is_a_picture_of_each_row_that_is_read_on_light_and_dark_pages() -> None:
    picture = gateway_page.chart(RESULT)
    root = ElementTree.fromstring(picture)
    texts = ["".join(node.itertext()) for node in root.iter("{http://www.w3.org/2000/svg}text")]
    for said in ("nginx", "Sluice, full", "slow & steady", "160 us, 8.0x", "agentgateway: not measured, no <program>"):
        assert said in texts
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    for node in root.iter():
        for axis, most in (("x", width), ("x1", width), ("x2", width), ("cx", width), ("y", height), ("cy", height)):
            assert 0 <= float(node.attrib.get(axis, 0)) <= most
    card, text = re.compile(r"\.card \{ fill: (#\w+) \}"), re.compile(r"\.text \{ fill: (#\w+) \}")
    light, dark = (tuple(found.findall(picture)[n] for found in (card, text)) for n in (0, 1))
    for back, front in (light, dark):
        assert abs(int(back[1:3], 16) - int(front[1:3], 16)) > 128


def test_the_page_has_what_was_measured() -> None:
    found = gateway_page.results()
    assert gateway_page.part(found) in gateway_page.PAGE.read_text(), "run: make bench ARGS=--table"
    for result in found:
        picture = gateway_page.IMAGES / f"{gateway_page.name_of(result)}.svg"
        assert picture.read_text() == gateway_page.chart(result), "run: make bench ARGS=--table"


def test_a_program_is_named_by_a_gateway_and_a_path() -> None:
    assert named(f"agentgateway={sys.executable}") == ("agentgateway", Path(sys.executable).resolve())
    for wrong in ("agentgateway=", f"nobody={sys.executable}", "agentgateway=/none"):
        with pytest.raises(Exception, match="NAME=PATH"):
            named(wrong)


@pytest.mark.parametrize("gateway", GATEWAYS, ids=lambda gateway: gateway.name)
def test_each_gets_a_config_with_the_server_and_its_own_port(gateway: PeerGateway, tmp_path: Path) -> None:
    told = [*gateway.configure(tmp_path, "http://127.0.0.1:1234/mcp", 4321), (tmp_path / "config.json").read_text()]
    assert "http://127.0.0.1:1234/mcp" in told[-1] and "4321" in "".join(told)


# ---------------------------------------------------------------- against real processes


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[_Stage]:
    with ExitStack() as stack:
        backend = stack.enter_context(fast_server(tmp_path, LOAD_CORE))
        client = stack.enter_context(httpx.Client(trust_env=False, timeout=30))
        yield _Stage(tmp_path, backend, client, stack, [], {})


def of_server(name: str, wrong: str = "") -> PeerGateway:
    """The fast server itself in the place of a gateway; what it says instead of its `echo`, if that is `wrong`."""
    code = f"import fast_server; fast_server.LEGACY_ANSWERS['echo'] = fast_server.rest(fast_server.said({wrong!r}));"
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); {code if wrong else 'import fast_server;'}"
    start = "import uvloop; uvloop.run(fast_server.serve({port}))"
    return PeerGateway(name, name, "", lambda folder, url, port: ["-c", f"{code} {start.format(port=port)}"])


@linux
def test_one_that_answers_wrongly_has_no_row_and_is_named(
    stage: _Stage, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    stage.add("nginx", stage.backend)
    python = Path(sys.executable)
    wrong, gone = of_server("wrong", "another text"), of_server("gone")
    add_gateways(stage, {of_server("right"): python, wrong: python, gone: Path("/none")})
    right, *others = [row.name for row in stage.rows if row.name != "nginx"]
    assert right.startswith("right ") and not others
    first, second = stage.missing
    assert first.startswith("wrong ") and "answered 200" in stage.missing[first]
    assert second.startswith("gone ") and "did not start" in stage.missing[second]
    assert "WRONG" in capsys.readouterr().err


@linux
@pytest.mark.skipif(shutil.which("wrk") is None, reason="needs wrk")
def test_one_that_answers_wrongly_later_ends_its_row_and_no_other(stage: _Stage) -> None:
    stage.add("nginx", stage.backend)
    stage.add("lapsing", stage.backend, may_fail=True)
    stage.rows[1].call = replace(stage.rows[1].call, answered=10_000)
    found = measured(stage, 1)
    assert [row["name"] for row in found["rows"]] == ["nginx"] and "were expected" in found["missing"]["lapsing"]
    stage.rows[1].may_fail = False
    with pytest.raises(NotMeasured, match="were expected"):
        measured(stage, 1)


@linux
def test_a_subject_that_must_answer_ends_the_bench(stage: _Stage) -> None:
    with pytest.raises(SystemExit, match="Method not found"):
        make_call(KIND, Subject(stage.backend.pid, stage.backend.url, "none"), stage.client)
