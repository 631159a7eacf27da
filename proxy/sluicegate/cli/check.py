"""`check` and `config schema`: what can be said about a config and its policy without running anything."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import anyio

from sluicegate import config
from sluicegate.app import policy_loading, settings, state
from sluicegate.catalog_cache import pin_store
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.snapshot_store import places, tool_names
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, count, give, info, located, print_json, stop
from sluicegate.cli.programs import not_found
from sluicegate.cli.terminal import coloured
from sluicegate.policy.finding import PolicyError
from sluicegate.policy.globs import is_glob
from sluicegate.policy.lint_syntax import suggest
from sluicegate.store.memory import MemoryStore


def check(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the config file and the policy. Prints each finding with its file and line; exits 3 if one is an error."""
    path, checked = examine(config_file)
    findings = [finding.as_json() for finding in checked.findings]
    give(as_json, {"file": str(path), "ok": not checked.errors, "findings": findings}, _lines(checked.findings))
    if checked.errors:
        stop(Code.CONFIG, f"{path}: {count(len(checked.errors), 'error')}")
    info(f"{path}: fine" + (f", {count(len(checked.findings), 'warning')}" if checked.findings else ""))


def _lines(findings: list[config.ConfigFinding]) -> Iterator[str]:
    for finding in findings:
        line = str(finding)
        place, _, _ = line.partition(" ")
        yield coloured(place, finding.severity) + line[len(place) :]


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
    tools = stored_tools(checked.config)
    unknown = config.locate(path, _unknown_tools(checked.config, tools))
    with_pins = replace(checked, findings=[*checked.findings, *unknown, *_replaced(path, checked.config)])
    return path, _with_policy(path, with_pins, checked.config, tools)


def stored_tools(loaded: config.Config) -> dict[str, frozenset[str]]:
    """Own names of the tools of every server whose list is stored. One that relays what it does not list has others."""
    prefixes = {
        key: places(key, server.identity) for key, server in loaded.servers.items() if server.unlisted == "refuse"
    }
    stored = state.peek(loaded, tuple(prefixes.values()))
    lists = {
        key: tool_names(data for store_key, data in stored.items() if store_key.startswith(prefix))
        for key, prefix in prefixes.items()
    }
    return {key: names for key, names in lists.items() if names is not None}


def _unknown_tools(loaded: config.Config, tools: Mapping[str, frozenset[str]]) -> Iterator[config.Problem]:
    """Whole names: one with a typing mistake leaves its tool without a class, or open where it should be closed."""
    for key, names in tools.items():
        written = loaded.servers[key].tools
        places: list[tuple[str, int | str, str]] = [("classes", name, name) for name in written.classes]
        places += [("allow", at, name) for at, name in enumerate(written.allow)]
        places += [("deny", at, name) for at, name in enumerate(written.deny)]
        for part, last, name in places:
            if not is_glob(name) and name not in names:
                where = ("servers", key, "tools", part, last)
                message, hint = f"{key} has no tool of this name", suggest(name, names)
                is_key = part == "classes"
                yield config.Problem(where, "unknown-tool", message, hint, at_key=is_key, severity="warning")


def _replaced(path: Path, loaded: config.Config) -> Iterator[config.ConfigFinding]:
    """Servers that took the place of another one under their key, if somebody has to look at what they list."""
    stored_pins = state.peek(loaded, (pin_store.PINS, pin_store.WAITING))
    board = anyio.run(_board, loaded, stored_pins)
    for key in loaded.servers:
        if board.is_replaced(key) and (notice := board.notice(key)):
            hint = f"`sluice pins diff {key}` shows them, `sluice pins accept {key} --all` accepts them"
            yield replace(config.finding_at(path, ("servers", key), "another-server", notice, hint), severity="warning")


async def _board(loaded: config.Config, stored_pins: Mapping[str, bytes]) -> DefinitionPins:
    store = MemoryStore()
    for key, value in stored_pins.items():
        await store.put(key, value)
    board = DefinitionPins(settings.pins(loaded), store)
    await board.load()
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
