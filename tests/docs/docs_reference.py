"""The parts of the reference that come from the code, as Markdown. `make docs` writes them anew.

A page has `<!-- generated: NAME -->`, the part, and `<!-- end -->`.
"""

import json
import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import typer
from prometheus_client import Gauge
from typer.core import TyperArgument, TyperGroup

from sluicegate import config
from sluicegate.admin.routes import ROUTES, ApiRoute
from sluicegate.cli.commands import application
from sluicegate.metrics import Metrics
from sluicegate.metrics.scraped import TABLE
from sluicegate.policy.lint import AREAS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PART = re.compile(r"(?<=<!-- generated: )(\w+)( -->\n).*?(?=<!-- end -->)", re.DOTALL)
NAMED = {
    "clients.keys": "Key", "approvals.profiles": "Profile", "toolsets": "ToolsetSection",
    "servers.KEY.tools.shape": "ShapeSection", "servers.KEY.prompts.shape": "ShapeSection",
}  # fmt: skip


def written(text: str) -> str:
    """A page with its generated parts as the code has them."""
    return PART.sub(lambda found: f"{found[1]}{found[2]}{GENERATED[found[1]]()}", text)


def table(*rows: tuple[str, ...]) -> str:
    lines = [f"| {' | '.join(row)} |\n" for row in rows]
    return "".join([lines[0], "|---" * len(rows[0]), "|\n", *lines[1:]])


def keys() -> str:
    schema = config.schema()
    return table(("key", "default", "what it does"), *rows(schema, schema["$defs"], ""))


def rows(section: dict[str, Any], all_sections: dict[str, Any], prefix: str) -> Iterator[tuple[str, str, str]]:
    for key, value in section["properties"].items():
        name = f"{prefix}{key}"
        text = " ".join(value["description"].split())
        if name == "servers":
            yield f"`{name}`", "", text
            started, reached = all_sections["StdioServer"], all_sections["HttpServer"]
            in_image = {"image": all_sections["ImageServer"]["properties"]["image"]}
            every = (started["properties"] | in_image).items()
            own = {key: value for key, value in every if key not in reached["properties"]}
            yield from rows({**started, "properties": own}, all_sections, "servers.KEY.")
            yield from rows(reached, all_sections, "servers.KEY.")
        elif name in NAMED:
            yield f"`{name}`", "", text
            yield from rows(all_sections[NAMED[name]], all_sections, f"{name}.NAME.")
        elif inner := re.search(r'"#/\$defs/((?!JsonValue)\w+)"', json.dumps(value)):
            yield from rows(all_sections[inner[1]], all_sections, f"{name}.")
        else:
            default = f"`{json.dumps(value['default'])}`" if value.get("default") not in (None, {}, "") else ""
            shown = default.replace('`"', "`").replace('"`', "`")
            yield f"`{name}`", "required" if key in section.get("required", ()) else shown, text


COMMON = ("--config", "--json", "--key-file", "--key", "--operator")


def commands() -> str:
    found = walk(typer.main.get_command(application()), "sluice")
    return table(("command", "what it does", "options of its own"), *(shown(name, command) for name, command in found))


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if isinstance(command, TyperGroup):
        for word, inner in command.commands.items():
            yield from walk(inner, f"{name} {word}")
    else:
        yield name, command


def shown(name: str, command: Any) -> tuple[str, str, str]:
    arguments = [one for one in command.params if isinstance(one, TyperArgument)]
    words = [name, *(one.name.upper() if one.required else f"[{one.name.upper()}]" for one in arguments)]
    own = [one for one in command.params if one.opts[-1].startswith("-") and one.help and not is_common(one)]
    options = "<br>".join(f"`{', '.join(one.opts)}` {' '.join(one.help.split())}" for one in own)
    return f"`{' '.join(words)}`", " ".join(command.help.split()), options


def is_common(option: Any) -> bool:
    return option.opts[-1] in COMMON and option.help in dict(common()).values()


def common() -> Iterator[tuple[str, str]]:
    servers = dict(walk(typer.main.get_command(application(["servers"])), "sluice"))["sluice servers"]
    for one in servers.params:
        if not one.opts[-1].startswith("-"):
            continue
        yield ", ".join(one.opts), one.help


def options() -> str:
    return table(("option", "what it does"), *((f"`{name}`", text) for name, text in common()))


def metrics() -> str:
    own: Any = list(Metrics(version="").registry._collector_to_names)
    declared = {one._head[0]: (one._labels, one._head[1]) for one in own if hasattr(one, "_head")}
    declared |= {one._name: (one._labelnames, one._documentation) for one in own if isinstance(one, Gauge)}
    asked = {name: (series.labels, series.text) for name, series in TABLE.items()}
    return table(
        ("name", "labels", "what it says, and what to do"),
        *((f"`{name}`", " ".join(f"`{label}`" for label in labels), text)
          for name, (labels, text) in chain(declared.items(), asked.items())),
    )  # fmt: skip


def rights() -> str:
    return "".join(f"- `{area}`\n" for area in AREAS)


def requests() -> str:
    head = ("request", "right", "what it is for", "record")
    return table(head, *((f"`{route.method} {_target(route)}`", _right(route), route.summary, _record(route))
                         for route in ROUTES))  # fmt: skip


def _target(route: ApiRoute) -> str:
    query = "&".join(f"{name}=" for name in route.query)
    return route.path.replace(":path}", "}") + (f"?{query}" if query else "")


def _right(route: ApiRoute) -> str:
    return f"`admin:{route.area}` {route.act}" if route.area else "no credential" if route.is_open else "a credential"


def _record(route: ApiRoute) -> str:
    return f"`{route.audit}`" if route.audit else ""


GENERATED = {one.__name__: one for one in (keys, commands, options, metrics, rights, requests)}

if __name__ == "__main__":
    for page in DOCS.rglob("*.md"):
        page.write_text(written(page.read_text("utf-8")), "utf-8")
