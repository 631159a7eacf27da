"""`check` and `config schema`: what can be said about a config file without running anything."""

from pathlib import Path

from proxy import config
from proxy.cli.talk import AsJson, Code, ConfigFile, say, stop, tell, tell_json


def check(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Check the config file: every finding, with its place. Errors exit 3."""
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
    return path, config.check(path)


def schema() -> None:
    """Print the JSON Schema of the config file."""
    tell_json(config.schema())


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("s" if number != 1 else "")
