"""The ways in which desktop clients write variables, turned into ours; and what looks like a secret.

Pure. What has no counterpart becomes a variable of its own name, and is said.
"""

import re
from collections.abc import Callable, Sequence
from typing import Final

from sluicegate.audit.redact import Redactor

Note = Callable[[str], None]

_REFERENCE = re.compile(r"\$\{([^}]*)\}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_WITH_DEFAULT = re.compile(r"(?:env:)?([A-Za-z_][A-Za-z0-9_]*)(:-.*)?", re.DOTALL)
_BARE = re.compile(r"\$([A-Z_][A-Z0-9_]*)")
_SECRET_NAME = re.compile(
    r"token|secret|passw|api[_-]?key|authorization|credential|private|(?<![a-z])auth$", re.IGNORECASE
)
_SECRET_TEXT = re.compile(
    r"\b(?:sk-|gh[opsur]_|github_pat_|glpat-|xox[abpr]-|AKIA|eyJ[A-Za-z0-9_-]{8})[A-Za-z0-9_-]{8,}|"
    r"--?[a-z-]*(?:token|secret|password|api-?key)=\S{8,}",
    re.IGNORECASE,
)
_REDACTOR: Final = Redactor(b"")
_SHORTEST: Final = 4
_HOMES: Final = frozenset({"userHome", "HOME", "env:HOME"})


def ours(text: str, note: Note) -> str:
    """`${X}`, `${env:X}`, `${X:-d}`, `${input:x}`, `${userHome}`, `$X` alone -> `${env:...}`; `${file:p}` stays."""
    if bare := _BARE.fullmatch(text):
        return f"${{env:{bare[1]}}}"
    return _REFERENCE.sub(lambda match: _reference(match[1], note), text)


def _reference(body: str, note: Note) -> str:
    if body in _HOMES:
        return "${env:HOME}"
    if body.startswith("file:"):  # Windsurf reads it; elsewhere it was plain text, which a stranger may have written
        note("a ${file:...} in it is a file of this machine: its server gets what is in there")
        return f"${{{body}}}"
    if body.startswith("input:") or _is_of_an_editor(body):
        name = re.sub(r"[^A-Z0-9]+", "_", body.removeprefix("input:").upper()).strip("_")
        name = name if _NAME.fullmatch(name) else f"INPUT_{name}"
        note(f"${{{body}}} is asked or known by the client alone; set the variable {name} instead")
        return f"${{env:{name}}}"
    if match := _WITH_DEFAULT.fullmatch(body):
        return f"${{env:{match[1]}{match[2] or ''}}}"
    note("a ${...} in it means nothing here and is kept as text")
    return f"$${{{body}}}"


def _is_of_an_editor(body: str) -> bool:
    """${workspaceFolder}, ${workspaceFolderBasename}, ${command:...}, ${config:...} and so on."""
    return body.startswith(("workspace", "command:", "config:")) or body == "pathSeparator"


def as_text(text: str) -> str:
    """A value of ours that is this text: no variable, file or secret is read in it."""
    return text.replace("${", "$${")


def is_secret(text: str, name: str = "") -> bool:
    """Whether a value that is no variable looks like a secret, here or to the audit log."""
    if "${" in text or _BARE.fullmatch(text) or len(text) < _SHORTEST:
        return False
    if _SECRET_TEXT.search(text) or (_SECRET_NAME.search(name) and len(text) >= 8):
        return True
    about = {name or "value": text}
    return bool(_REDACTOR.arguments(about, "") != about)


def options(args: Sequence[str]) -> list[str]:
    """For each argument the option that it may be the value of: `--api-key` of what follows it; else nothing."""
    pairs = zip(["", *args], args, strict=False)
    return [before if before.startswith("-") and not arg.startswith("-") else "" for before, arg in pairs]
