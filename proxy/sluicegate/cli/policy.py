"""`policy test` and `policy diff`: the policy as something that is tested and reviewed before it is in force."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate import config
from sluicegate.app import policy_loading
from sluicegate.audit import recover
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, count, give, info, load, located, stop
from sluicegate.policy import files
from sluicegate.policy.diff import Side, compare, compare_rows, render
from sluicegate.policy.files import BUNDLED, LoadedPolicy, PolicySources
from sluicegate.policy.finding import PolicyError

FAILED: Final = "test-failed"


def load_policy(path: Path, loaded: config.Config) -> LoadedPolicy:
    """The policy of a config. Raises `ConfigError` with every finding if one of them is an error."""
    try:
        return policy_loading.load(loaded)
    except PolicyError as error:
        raise config.ConfigError(located(path, error.findings)) from None


def test(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Run the tests of the policy. Exits 1 if one of them fails."""
    path, loaded = load(config_file, quietly=True)
    try:
        passed, failed = len(policy_loading.load(loaded).cases), list[config.ConfigFinding]()
    except PolicyError as error:
        passed, failed = 0, [one for one in located(path, error.findings) if one.severity == "error"]
    if any(one.code != FAILED for one in failed):
        raise config.ConfigError(failed)
    data = {"ok": not failed, "passed": None if failed else passed, "failed": [one.as_json() for one in failed]}
    give(as_json, data, map(str, failed))
    if failed:
        stop(Code.NEGATIVE, f"{count(len(failed), 'test')} failed")
    info(f"{count(passed, 'test')} passed" if passed else "there are no tests: name a file of them with policy.tests")


def diff(
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="A config, a policy's folder or CSV file, or open, personal, team.")
    ],
    replay: Annotated[
        Path | None,
        typer.Option("--replay", metavar="AUDIT",
                     help="Compare the decisions on the calls of this audit log, or folder of logs."),
    ] = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Compare the policy with another one. By rows, or by decisions on recorded calls. Exits 1 if they differ."""
    path, loaded = load(config_file, quietly=True)
    old, new = load_policy(path, loaded), _other(other, loaded)
    is_same = _replay(replay, old, new, as_json) if replay else _compare(old, new, as_json)
    raise typer.Exit(Code.OK if is_same else Code.NEGATIVE)


def _compare(old: LoadedPolicy, new: LoadedPolicy, as_json: bool) -> bool:
    gone, come = compare_rows(old.policy.rows, new.policy.rows)
    rules = sorted(
        f"{server}/{tool}"
        for server, tool in old.arguments.digests.keys() | new.arguments.digests.keys()
        if old.arguments.digest(server, tool) != new.arguments.digest(server, tool)
    )
    data = {
        "removed": [{"at": row.where, "row": str(row)} for row in gone],
        "added": [{"at": row.where, "row": str(row)} for row in come], "argument_rules": rules,
    }  # fmt: skip
    rows = [f"{sign} {row}    {row.where}" for sign, some in (("-", gone), ("+", come)) for row in some]
    give(as_json, data, [*rows, *(f"~ the argument rule of {name}" for name in rules)])
    return not (gone or come or rules)


def _replay(audit: Path, old: LoadedPolicy, new: LoadedPolicy, as_json: bool) -> bool:
    report = compare(Side(old.policy, old.arguments), Side(new.policy, new.arguments), _records(audit))
    give(as_json, report.as_json(), [render(report)])
    return not report.changes


def _other(name: str, loaded: config.Config) -> LoadedPolicy:
    """Its own tests are its own business: a draft that breaks them can be compared all the same."""
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        _, wanted = load(path, quietly=True)
        sources, settings = policy_loading.sources(wanted), wanted
    else:
        sources, settings = _sources(name, path, policy_loading.sources(loaded)), loaded
    try:
        return files.load(replace(sources, tests=None), policy_loading.profiles(settings))
    except PolicyError as error:
        beside = path if path.suffix in (".yaml", ".yml") else Path("sluice.yaml")
        raise config.ConfigError(located(beside, error.findings)) from None


def _sources(name: str, path: Path, ours: PolicySources) -> PolicySources:
    if path.is_dir():
        arguments = path / "arguments"
        there = arguments if arguments.is_dir() else None
        return PolicySources(files.bundled_model(), tuple(sorted(path.glob("*.csv"))), Path(), there)
    if path.suffix == ".csv":
        return replace(ours, files=(path,), base=Path())
    if name in BUNDLED:
        return files.bundled(name)
    stop(Code.USAGE, f"{name} is no config (*.yaml), no policy (*.csv or its folder) and none of {', '.join(BUNDLED)}")


def _records(audit: Path) -> Iterator[dict[str, Any]]:
    """Every record of a log or of all logs of a folder; a last line that was cut is passed over."""
    logs = sorted(audit.glob("*.jsonl*")) if audit.is_dir() else [audit]
    if not logs:
        stop(Code.USAGE, f"there is no audit log in {audit}")
    for log in logs:
        try:
            with log.open(encoding="utf-8", errors="replace") as lines:
                yield from filter(None, map(recover.load, lines))
        except OSError as error:
            stop(Code.USAGE, f"cannot read {log}: {error.strerror}")
