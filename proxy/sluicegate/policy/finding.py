"""One problem of a policy: where it stands, what it is, what to do about it. Knows no rule and no file system."""

from dataclasses import dataclass
from typing import Literal

from sluicegate.policy.target import printable

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class PolicyFinding:
    """`line` and `column` count from 1. An error keeps the policy out; a warning lets it in."""

    file: str
    line: int
    column: int
    code: str
    level: Level
    message: str
    hint: str = ""

    def __str__(self) -> str:
        warning = "warning: " if self.level == "warning" else ""
        hint = f" ({self.hint})" if self.hint else ""
        return printable(f"{self.file}:{self.line}:{self.column} {self.code} {warning}{self.message}{hint}")


class PolicyError(Exception):
    """The policy cannot be used. `findings` holds errors and warnings, in the order of the files."""

    def __init__(self, findings: list[PolicyFinding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings
