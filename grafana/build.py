"""Makes dashboards/sluice.json of panels.yaml: `python grafana/build.py`. A test asserts that the two belong together.

A dashboard's JSON is a hundred lines of layout for each line of meaning. Classic JSON (schemaVersion 39), written for
Grafana 10 to 13; README.md says which were tried.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ruamel.yaml import YAML

HERE: Final = Path(__file__).parent
SELECTOR: Final = 'job=~"$job", instance=~"$instance", replica=~"$replica"'
SOURCE: Final = {"type": "prometheus", "uid": "$datasource"}
FAILED: Final = (
    "server_unavailable|timeout|outcome_unknown|result_too_large|audit_unavailable|store_unavailable|protocol_error"
)
SIZES: Final = {"stat": (3, 4), "timeseries": (8, 8), "table": (8, 8), "state-timeline": (8, 8)}
OPTIONS: Final = {
    "stat": {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value", "graphMode": "area", "textMode": "value",
    },
    "timeseries": {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    "table": {"showHeader": True, "sortBy": [{"displayName": "Value", "desc": True}]},
    "state-timeline": {"showValue": "never", "legend": {"displayMode": "list", "placement": "bottom"}},
}  # fmt: skip

Json = dict[str, Any]


def query(text: str) -> str:
    return text.replace("@", SELECTOR).replace("FAILED", FAILED)


def layout(rows: list[Json]) -> Iterator[Json]:
    """Every row and panel in its place: left to right, and down where the 24 columns are full."""
    number, top = 1, 0
    for row in rows:
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        yield {"id": number, "type": "row", "title": row["row"], "collapsed": False, "panels": [], "gridPos": place}
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in row["panels"]:
            width, high = SIZES[panel.get("kind", "timeseries")]
            width = panel.get("width", width)
            if left + width > 24:
                top, left, height = top + height, 0, 0
            yield rendered(panel, number) | {"gridPos": {"x": left, "y": top, "w": width, "h": high}}
            number, left, height = number + 1, left + width, max(height, high)
        top += height


def rendered(panel: Json, number: int) -> Json:
    kind = panel.get("kind", "timeseries")
    steps = [{"color": color, "value": value or None} for color, value in panel.get("colors", {"green": 0}).items()]
    defaults = {"unit": panel["unit"], "thresholds": {"mode": "absolute", "steps": steps}} | states(panel)
    shown: Json = {
        "id": number, "type": kind, "title": panel["title"], "description": panel["about"], "datasource": SOURCE,
        "targets": [target(one, chr(ord("A") + at), kind) for at, one in enumerate(panel["queries"])],
        "fieldConfig": {"defaults": defaults, "overrides": []}, "options": OPTIONS[kind],
    }  # fmt: skip
    if kind == "table":
        shown["transformations"] = [{"id": "organize", "options": {"excludeByName": {"Time": True}}}]
    return shown


def states(panel: Json) -> Json:
    """Words and colours of a state timeline. Unasked, Grafana colours from green, the lowest, to red: down is green;
    by thresholds, it leaves the words out."""
    if "states" not in panel:
        return {}
    words = {str(value): {"text": text, "color": color} for value, (text, color) in panel["states"].items()}
    return {"color": {"mode": "palette-classic"}, "mappings": [{"type": "value", "options": words}]}


def target(one: Json, name: str, kind: str) -> Json:
    is_table = kind == "table"
    return {
        "refId": name, "expr": query(one["expr"]), "legendFormat": one.get("legend", "__auto"), "datasource": SOURCE,
        "instant": is_table, "range": not is_table, "format": "table" if is_table else "time_series",
    }  # fmt: skip


def variable(name: str, values: str, about: str, every: str = ".*") -> Json:
    """`every` is what all of them match: a call need not have a tool, but everything has a job and an instance."""
    return {
        "name": name, "type": "query", "label": name.capitalize(), "description": about, "datasource": SOURCE,
        "query": {"query": values, "refId": name}, "definition": values, "refresh": 2, "sort": 1,
        "includeAll": True, "allValue": every, "multi": True, "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def variables() -> list[Json]:
    source = {
        "name": "datasource", "type": "datasource", "label": "Data source", "query": "prometheus", "refresh": 1,
        "current": {}, "includeAll": False, "multi": False,
    }  # fmt: skip
    return [
        source,
        variable("job", "label_values(sluice_build_info, job)", "Prometheus' job", ".+"),
        variable("instance", 'label_values(sluice_build_info{job=~"$job"}, instance)', "One Sluice", ".+"),
        variable("replica", 'label_values(sluice_build_info{job=~"$job"}, replica)', "One of a fleet"),
        variable("server", f"label_values(sluice_server_up{{{SELECTOR}}}, server)", "A server's key in the config"),
        variable("client", f"label_values(sluice_client_calls_total{{{SELECTOR}}}, client)", "A configured client"),
        variable("tool", f'label_values(sluice_calls_total{{{SELECTOR}, server=~"$server"}}, tool)', "An own name"),
    ]


def dashboard() -> Json:
    reloads = f"changes(sluice_policy_last_reload_timestamp_seconds{{{SELECTOR}}}[$__rate_interval]) > 0"
    reloaded = {
        "name": "Reloads", "enable": True, "iconColor": "blue", "datasource": SOURCE, "expr": reloads,
        "titleFormat": "Config or policy was reloaded",
    }  # fmt: skip
    return {
        "uid": "sluice-overview", "title": "Sluice", "tags": ["mcp", "sluice"], "schemaVersion": 39, "version": 1,
        "description": "What agents do with tools, what the policy says of it, and how Sluice and its servers are.",
        "editable": False, "graphTooltip": 1, "refresh": "30s", "time": {"from": "now-1h", "to": "now"},
        "annotations": {"list": [reloaded]}, "templating": {"list": variables()},
        "panels": list(layout(YAML(typ="safe").load(HERE / "panels.yaml"))),
    }  # fmt: skip


def text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    (HERE / "dashboards" / "sluice.json").write_text(text())
