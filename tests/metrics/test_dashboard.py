"""The dashboard and the alerts as files: what Grafana's own linter asks for, and that nothing is named in vain.

Of the linter's rules, `template-*`, `uneditable-dashboard`, `panel-*`, `target-job`, `target-instance` and
`target-rate-interval` are here; `target-promql` and `template-label-promql` are what a real Prometheus says
(test_prometheus.py).
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from peers.debian import provide
from ruamel.yaml import YAML

from sluicegate.metrics import Metrics
from sluicegate.metrics.scraped import TABLE

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "grafana"
DASHBOARD: Json = json.loads((GRAFANA / "dashboards" / "sluice.json").read_text())
PANELS: list[Json] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]
RULES: list[Json] = YAML(typ="safe").load(GRAFANA / "prometheus" / "rules.yaml")["groups"][0]["rules"]
NAME = re.compile(r"\b(?:sluice|mcp_client|mcp_server|process)_[a-z_]+(?=[{\[) ]|$)")
# Units of Grafana's that the panels use: a misspelt one is shown as no unit at all.
UNITS = {"reqps", "percentunit", "s", "short", "bool_yes_no", "dateTimeFromNow", "bytes"}
# Exported, and neither shown nor alerted on, by intent.
NOT_SHOWN = {
    "sluice_hook_verdicts_total": "most have no hook; a refusal by one shows among the denied calls",
    "sluice_hook_seconds_total": "most have no hook; for whoever looks at how long one takes",
    "sluice_policy_blocks": "for an alert of whoever blocks often; /readyz says which",
    "process_virtual_memory_bytes": "resident memory says more",
    "process_start_time_seconds": "for whoever wants the age of a process",
    "sluice_login_flows_total": "most logins are begun by the command line, which is another process",
    "sluice_login_refresh_total": "a refresh that fails shows as a login that is needed",
    "sluice_tools_list_tokens": "for whoever looks at what lists cost; `sluice tools --cost` says which definition",
    "sluice_toolset_calls_total": "most have no toolset; for whoever looks at how one is used",
}


def declared() -> set[str]:
    """Every series that Sluice can export, by the names that queries use."""
    metrics = Metrics(version="1")
    names = {name + ("_total" if asked.is_counter else "") for name, asked in TABLE.items()}
    for family in metrics.registry.collect():
        if family.type == "histogram":
            names |= {f"{family.name}_{part}" for part in ("bucket", "sum", "count")}
        else:
            names.add(family.name + ("_total" if family.type == "counter" else ""))
    return names


def named(text: str) -> set[str]:
    return set(NAME.findall(text))


def shown() -> set[str]:
    queries = [target["expr"] for _, target in TARGETS] + [rule["expr"] for rule in RULES]
    variables = [variable.get("definition", "") for variable in DASHBOARD["templating"]["list"]]
    notes = [note["expr"] for note in DASHBOARD["annotations"]["list"]]
    return set().union(*(named(text) for text in queries + variables + notes))


# ---------------------------------------------------------------- the dashboard


def test_what_is_committed_is_what_the_panels_make(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-c", "import build; print(build.text(), end='')"],
        cwd=GRAFANA, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert made.stdout == (GRAFANA / "dashboards" / "sluice.json").read_text(), "run: python grafana/build.py"


def test_every_name_in_dashboard_and_alerts_is_exported() -> None:
    assert shown() <= declared(), shown() - declared()


def test_every_exported_series_is_shown_or_left_out_by_intent() -> None:
    bases = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown()}
    exported = {re.sub(r"_(bucket|sum|count)$", "", name) for name in declared()}
    assert exported - bases == set(NOT_SHOWN)


def test_the_dashboard_cannot_be_edited_and_has_a_stable_name() -> None:
    assert DASHBOARD["editable"] is False and DASHBOARD["uid"] == "sluice-overview"
    assert 39 <= DASHBOARD["schemaVersion"] <= 41
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_its_variables_are_those_that_queries_select_by() -> None:
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert set(variables) == {"datasource", "job", "instance", "replica", "server", "client", "tool"}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for name, variable in variables.items():
        if name != "datasource":
            assert variable["datasource"]["uid"] == "$datasource" and variable["includeAll"] and variable["multi"]
            assert variable["definition"].startswith("label_values(") and variable["type"] == "query"
            assert variable["label"] == name.capitalize()
    assert variables["datasource"]["label"] == "Data source"
    assert variables["job"]["allValue"] == variables["instance"]["allValue"] == ".+"
    assert variables["replica"]["allValue"] == ".*", "most Sluices are no replicas"


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_says_what_it_shows(panel: Json) -> None:
    assert panel["title"] and len(panel["description"]) > 15
    assert panel["datasource"] == {"type": "prometheus", "uid": "$datasource"}
    assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
    assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24


@pytest.mark.parametrize(("title", "target"), TARGETS, ids=[title for title, _ in TARGETS])
def test_a_query_is_of_this_job_and_these_instances(title: str, target: Json) -> None:
    query = target["expr"]
    selectors = re.findall(r"\{([^{}]*)\}", query)
    which = 'job=~"$job", instance=~"$instance", replica=~"$replica"'
    assert selectors and all(which in selector for selector in selectors)
    # rate() needs four scrapes, which only Grafana knows; increase() over what a table shows is what is meant there.
    assert set(re.findall(r"\[([^\]]+)\]", query)) <= {"$__rate_interval", "$__range"}
    assert ("$__range" in query) <= (target["instant"] or "sluice_decision_errors" in query)
    for counter in re.findall(r"\b\w+_total\b", query):
        assert re.search(rf"(rate|increase)\({counter}\{{", query) or "lost" in counter


def test_a_state_has_a_word_and_a_colour() -> None:
    """Without, a state timeline goes from green for the lowest value to red for the highest; and Grafana joins what
    lies between the same thresholds, whatever words it has."""
    timelines = [panel for panel in PANELS if panel["type"] == "state-timeline"]
    assert [panel["title"] for panel in timelines] == ["Up", "Database"]
    defaults = timelines[0]["fieldConfig"]["defaults"]
    assert defaults["color"] == {"mode": "palette-classic"}
    assert defaults["mappings"][0]["options"] == {
        "0": {"text": "Down", "color": "red"}, "1": {"text": "Up", "color": "green"},
    }  # fmt: skip


def test_no_two_panels_lie_on_one_another() -> None:
    taken: dict[tuple[int, int], str] = {}
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} lies on {taken[x, y]}"
                taken[x, y] = panel["title"]


# ---------------------------------------------------------------- the alerts


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_is_wrong_and_where_help_is(rule: Json) -> None:
    assert rule["annotations"]["summary"].endswith(".") and rule["labels"]["severity"] in ("page", "ticket", "info")
    file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = [line[3:] for line in (ROOT / file).read_text().splitlines() if line.startswith("## ")]
    assert anchor == rule["alert"].lower() and rule["alert"] in headings


def test_every_alert_has_a_test_that_makes_it_fire_and_resolve() -> None:
    tests = YAML(typ="safe").load(GRAFANA / "prometheus" / "tests.yaml")["tests"]
    fires, rests = set(), set()
    for case in tests:
        for check in case["alert_rule_test"]:
            (fires if check["exp_alerts"] else rests).add(check["alertname"])
    assert fires == rests == {rule["alert"] for rule in RULES}


@pytest.mark.parametrize(
    "words", [["check", "rules", "rules.yaml"], ["test", "rules", "tests.yaml"],
              ["check", "config", "--syntax-only", "scrape.yaml"]],
    ids=lambda words: " ".join(words[:2]),
)  # fmt: skip
def test_promtool_is_content(words: list[str]) -> None:
    promtool = provide("promtool", "prometheus")
    done = subprocess.run([promtool, *words], cwd=GRAFANA / "prometheus", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
