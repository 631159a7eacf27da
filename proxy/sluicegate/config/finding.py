"""One problem of a config file: where it is, what it is, what to do about it. Never a value of the file."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

Path = tuple[str | int, ...]
"""Where something stands in the tree of the file: keys and positions in lists."""


@dataclass(frozen=True, slots=True)
class ConfigFinding:
    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        warning = "warning: " if self.severity == "warning" else ""
        hint = f" ({self.hint})" if self.hint else ""
        text = f"{self.file}:{self.line}:{self.column} {self.code} {warning}{self.message}{hint}"
        return "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in text)  # a terminal gets it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


class ConfigError(Exception):
    """The config cannot be used. `findings` holds every reason, errors and warnings, in the order of the file."""

    def __init__(self, findings: list[ConfigFinding]) -> None:
        super().__init__("\n".join(str(finding) for finding in findings))
        self.findings = findings


@dataclass(frozen=True, slots=True)
class Problem:
    """A finding whose position in the file is not resolved yet."""

    path: Path
    code: str
    message: str
    hint: str = ""
    severity: Literal["error", "warning"] = "error"
    at_key: bool = False  # point at the key instead of its value
    meant: str = ""  # the key that a person has probably mistyped here
