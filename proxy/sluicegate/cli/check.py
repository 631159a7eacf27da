"""`check` and `config schema`: what can be said about a config and its policy without running anything."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio

from sluicegate import config
from sluicegate.app import policy_loading, settings, state
from sluicegate.catalog_cache import pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.snapshot_store import definitions, places
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, coloured, count, give, info, located, print_json, stop, with_config
from sluicegate.cli.programs import not_found
from sluicegate.policy.finding import PolicyError
from sluicegate.policy.globs import is_glob
from sluicegate.policy.lint import suggest
from sluicegate.protocol.jsonrpc import Json, inside
from sluicegate.store.memory import MemoryStore


def check(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the config file and the policy. Prints each finding with its file and line; exits 3 if one is an error."""
    path, checked = examine(config_file)
    findings = [finding.as_json() for finding in checked.findings]
    disabled = list(checked.config.disabled) if checked.config else []
    said = {"file": str(path), "ok": not checked.errors, "disabled": disabled, "findings": findings}
    give(as_json, said, _lines(checked.findings))
    if checked.errors:
        starts = f"; Sluice starts without {', '.join(disabled)}" if checked.config else ""
        stop(Code.CONFIG, f"{path}: {count(len(checked.errors), 'error')}{starts}")
    info(f"{path}: fine" + (f", {count(len(checked.findings), 'warning')}" if checked.findings else ""))


def _lines(findings: list[config.ConfigFinding]) -> Iterator[str]:
    for finding in findings:
        line = str(finding)
        location, _, _ = line.partition(" ")
        yield coloured(location, finding.severity) + line[len(location) :]


def examine(named: Path | None) -> tuple[Path, config.Checked]:
    """The config file, and all that can be said about it, its policy and the programs that it names. Starts
    nothing."""
    try:
        path = config.find_config(named)
    except config.ConfigError as error:
        return named or config.places()[0], config.Checked(None, error.findings)
    checked = config.check(path)
    if checked.config is None:
        return path, checked
    tools, prompts = (_complete_lists(checked.config, f"{kind}/list") for kind in ("tools", "prompts"))
    problems = [*_unknown_tools(checked.config, tools), *_unfit_shapes(checked.config, tools, prompts)]
    unknown = config.locate(path, problems)
    with_pins = replace(checked, findings=[*checked.findings, *unknown, *_replaced(path, checked.config, named)])
    names = {key: frozenset(available) for key, available in tools.items()}
    return path, _with_policy(path, with_pins, checked.config, names)


Definitions = Mapping[str, Mapping[str, Json]]
"""Of each server whose list is known: by own name."""


def stored_definitions(loaded: config.Config, method: str = "tools/list") -> dict[str, Mapping[str, Json]]:
    """The definitions of every server whose list is stored, whichever client it was for."""
    prefixes = {key: places(key, server.identity) for key, server in loaded.servers.items()}
    stored = state.peek(loaded, tuple(prefixes.values()))
    lists = (
        (key, definitions((data for name, data in stored.items() if name.startswith(prefix)), method))
        for key, prefix in prefixes.items()
    )
    return {key: found for key, found in lists if found is not None}


def _complete_lists(loaded: config.Config, method: str) -> Definitions:
    """Those of servers whose unlisted names are refused: any other server may have more than it lists."""
    every = stored_definitions(loaded, method)
    return {key: found for key, found in every.items() if loaded.servers[key].unlisted == "refuse"}


def _unknown_tools(loaded: config.Config, tools: Definitions) -> Iterator[config.Problem]:
    """Whole names: one with a typing mistake leaves its tool without a class, or open where it should be closed."""
    for key, available in tools.items():
        written = loaded.servers[key].tools
        places: list[tuple[str, int | str, str]] = [("classes", name, name) for name in written.classes]
        places += [("allow", at, name) for at, name in enumerate(written.allow)]
        places += [("deny", at, name) for at, name in enumerate(written.deny)]
        for part, last, name in places:
            if not is_glob(name) and name not in available:
                where = ("servers", key, "tools", part, last)
                message, hint = f"{key} has no tool of this name", suggest(name, available)
                yield config.Problem(where, "unknown-tool", message, hint, "warning", at_key=part == "classes")
    for name, toolset in loaded.toolsets.items():
        for part, globs in (("tools", toolset.tools), ("pinned", toolset.pinned)):
            for at, glob in enumerate(globs):
                server, _, own = glob.removeprefix("!").partition("/")
                if server in tools and not is_glob(own) and own not in tools[server]:
                    message, hint = f"{server} has no tool of this name", suggest(own, tools[server])
                    yield config.Problem(("toolsets", name, part, at), "unknown-tool", message, hint, "warning")


def _unfit_shapes(loaded: config.Config, tools: Definitions, prompts: Definitions) -> Iterator[config.Problem]:
    """Shapes of what no server has: clients see it as it is, and give its arguments as they like."""
    for key, server in loaded.servers.items():
        for kind, shapes, lists in (("tool", server.tools.shape, tools), ("prompt", server.prompts.shape, prompts)):
            available = lists.get(key, {})
            for name, shape in shapes.items() if key in lists else ():
                where: tuple[str | int, ...] = ("servers", key, f"{kind}s", "shape", name)
                if name not in available:
                    message, hint = f"{key} has no {kind} of this name", suggest(name, available)
                    yield config.Problem(where, f"unknown-{kind}", message, hint, "warning", at_key=True)
                    continue
                if shape.name in available and shape.name not in shapes:
                    message = f"{key} has a {kind} of this name, which no client sees any more"
                    yield config.Problem((*where, "name"), "shadowed-name", message, "choose another", "warning")
                arguments = _arguments(available[name])
                if arguments is None:
                    continue
                for one in sorted(_required(available[name]) & set(shape.hide)):
                    message = f"{name} requires {one}, and nobody gives it"
                    yield config.Problem((*where, "hide"), "hidden-argument", message, "write a default", "warning")
                for one in sorted(shape.hidden - arguments):
                    part = "defaults" if one in shape.defaults else "hide"
                    message, hint = f"{name} has no argument {one}", suggest(one, arguments)
                    yield config.Problem((*where, part), "unknown-argument", message, hint, "warning", at_key=True)


def _arguments(definition: Json) -> frozenset[str] | None:
    """The names of its arguments; None where it takes any."""
    if isinstance(listed := definition.get("arguments"), list):
        return frozenset(str(inside(one, "name")) for one in listed)
    properties = inside(definition, "inputSchema", "properties")
    return frozenset(properties) if isinstance(properties, dict) else None


def _required(definition: Json) -> frozenset[str]:
    if isinstance(listed := definition.get("arguments"), list):
        return frozenset(str(inside(one, "name")) for one in listed if inside(one, "required") is True)
    required = inside(definition, "inputSchema", "required")
    return frozenset(filter(lambda one: isinstance(one, str), required)) if isinstance(required, list) else frozenset()


def _replaced(path: Path, loaded: config.Config, named: Path | None) -> Iterator[config.ConfigFinding]:
    """Servers that took the place of another one under their key, if somebody has to look at what they list."""
    stored_pins = state.peek(loaded, (pin_store.PINS, pin_store.WAITING))
    board = anyio.run(_board, loaded, stored_pins)
    for key in loaded.servers:
        if board.is_replaced(key) and (notice := board.notice(key)):
            look, take = (with_config(f"sluice pins {one}", named) for one in (f"diff {key}", f"accept {key} --all"))
            hint = f"`{look}` shows them, `{take}` accepts them"
            yield replace(config.finding_at(path, ("servers", key), "another-server", notice, hint), severity="warning")


async def _board(loaded: config.Config, stored_pins: Mapping[str, bytes]) -> DefinitionPins:
    store = MemoryStore()
    for key, value in stored_pins.items():
        await store.put(key, value)
    board = DefinitionPins(settings.pins(loaded), store)
    await board.books.load()
    return board


def _with_policy(
    path: Path, checked: config.Checked, loaded: config.Config, tools: Mapping[str, frozenset[str]]
) -> config.Checked:
    try:
        found, sound = list(policy_loading.load(loaded, tools).warnings), checked.config
    except PolicyError as error:
        found, sound = error.findings, None
    absent = config.locate(path, not_found(loaded))
    return config.Checked(sound, [*checked.findings, *absent, *located(path, found)])


def schema() -> None:
    """Print the JSON Schema of the config file."""
    print_json(config.schema())
