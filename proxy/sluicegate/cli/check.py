"""`check` and `config schema`: what can be said about a config and its policy without running anything."""

from pathlib import Path

from sluicegate import config
from sluicegate.app import law
from sluicegate.cli.talk import AsJson, Code, ConfigFile, located, say, stop, tell, tell_json
from sluicegate.policy.finding import PolicyError


def check(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the config file and the policy: every finding, with its place. Errors exit 3."""
    path, checked = _find(config_file)
    if as_json:
        findings = [finding.as_json() for finding in checked.findings]
        tell_json({"file": str(path), "ok": not checked.errors, "findings": findings})
    else:
        for finding in checked.findings:
            tell(str(finding))
    if checked.errors:
        stop(Code.CONFIG, f"{path}: {_count(len(checked.errors), 'error')}")
    say(f"{path}: fine" + (f", {_count(len(checked.findings), 'warning')}" if checked.findings else ""))


def _find(named: Path | None) -> tuple[Path, config.Checked]:
    try:
        path = config.find_config(named)
    except config.ConfigError as error:
        return named or config.places()[0], config.Checked(None, error.findings)
    checked = config.check(path)
    return path, checked if checked.config is None else _with_policy(path, checked, checked.config)


def _with_policy(path: Path, checked: config.Checked, loaded: config.Config) -> config.Checked:
    try:
        found, sound = list(law.load(loaded).warnings), checked.config
    except PolicyError as error:
        found, sound = error.findings, None
    return config.Checked(sound, [*checked.findings, *located(path, found)])


def schema() -> None:
    """Print the JSON Schema of the config file."""
    tell_json(config.schema())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")
