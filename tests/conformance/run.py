"""The official conformance suite against any endpoint: `PYTHONPATH=tests python -m conformance.run URL [REVISION...]`.

Runs the pinned suite on the Node of `.peers/` for the requirement set of each revision, or, of a revision that has
none, for all of its scenarios; reads every scenario's checks and prints one line a scenario. Exits 1 if a scored
scenario did not pass. A warning counts as not passed: it is a SHOULD of the specification, and the fixture server
satisfies all of them.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from peers.install import CONFORMANCE, NODE, install

REVISIONS = ("2025-11-25", "2026-07-28")
WITHOUT_SET = ("2025-06-18",)
"""Revisions of which the suite has scenarios, and no requirement set: all of them are scored here."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """How one scenario went. `scored` is false for extensions and what the suite itself calls pending."""

    revision: str
    name: str
    scored: bool
    reasons: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        verdict = "pass" if self.passed else "FAIL"
        scored = "" if self.scored else " (not scored)"
        return f"{self.revision}  {verdict}  {self.name}{scored}  {'; '.join(self.reasons)}".rstrip()


def run(url: str, revision: str, folder: Path) -> list[Scenario]:
    """All scenarios of one revision: those of its requirement set first, in the suite's order."""
    out = folder / revision
    has_set = revision not in WITHOUT_SET
    what = ["--requirements", revision] if has_set else ["--suite", "all", "--spec-version", revision]
    command = [NODE, CONFORMANCE, "server", "--url", url, *what, "--output-dir", out]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    found = {name_of(folder): folder for folder in sorted(out.glob("server-*"))}
    scored = scored_names(revision) if has_set else list(found)
    scenarios = [Scenario(revision, name, True, reasons_of(found.get(name))) for name in scored]
    extra = [Scenario(revision, name, False, reasons_of(at)) for name, at in found.items() if name not in scored]
    if not found:
        raise RuntimeError(f"the suite did not run:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    return scenarios + extra


def scored_names(revision: str, role: str = "server") -> list[str]:
    """The names under `server:`, or `client:`, of the suite's own requirement file."""
    lines = (CONFORMANCE.parent.parent / "requirements" / f"{revision}.yaml").read_text().splitlines()
    begin = lines.index(f"{role}:") + 1
    names = []
    for line in lines[begin:]:
        if line and not line.startswith((" ", "#")):
            break
        if line.strip().startswith("- "):
            names.append(line.strip().removeprefix("- ").split(" #")[0].strip())
    return names


def name_of(folder: Path) -> str:
    """server-<scenario>-2026-01-31T10-00-00-000Z"""
    return folder.name.removeprefix("server-").rsplit("-", 6)[0]


def reasons_of(folder: Path | None) -> tuple[str, ...]:
    """Why it did not pass: one reason a failed check; none if all passed."""
    if folder is None:
        return ("was not run",)
    checks = json.loads((folder / "checks.json").read_text())
    bad = [check for check in checks if check["status"] in ("FAILURE", "WARNING")]
    return tuple(f"{check['id']}: {explain(check)}" for check in bad)


def explain(check: dict[str, object]) -> str:
    details = check.get("details")
    violations = details.get("violations") if isinstance(details, dict) else None
    return str(check.get("errorMessage") or json.dumps(violations or details))[:500]


def run_all(url: str, revisions: tuple[str, ...] = WITHOUT_SET + REVISIONS) -> list[Scenario]:
    with tempfile.TemporaryDirectory() as folder:
        return [scenario for revision in revisions for scenario in run(url, revision, Path(folder))]


def table(scenarios: list[Scenario]) -> str:
    return "\n".join(map(str, scenarios))


def main() -> None:
    install(lambda line: print(line, file=sys.stderr))
    url, *revisions = sys.argv[1:]
    scenarios = run_all(url, tuple(revisions) or WITHOUT_SET + REVISIONS)
    print(table(scenarios))
    failed = [scenario for scenario in scenarios if scenario.scored and not scenario.passed]
    print(f"{len([s for s in scenarios if s.scored]) - len(failed)} passed, {len(failed)} failed (scored)")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
