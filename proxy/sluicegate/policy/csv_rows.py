"""Policy rows: CSV text to rows that know where they stand. Strict, because what casbin's own reader lets through is
a hole: it drops unknown row types, splits on commas inside names, and a short row breaks every later decision.

Knows the shape of a row, not what its words mean. One row a line, `#` starts a comment line, fields are trimmed, a
field with a comma in it stands in double quotes (`""` is a quote inside).
"""

import difflib
import re
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from sluicegate.policy.finding import PolicyFinding

COLUMNS: Final = {
    "p": ("sub", "srv", "obj", "act", "eft"),
    "p2": ("sub", "srv", "obj", "act", "profile"),
    "g": ("member", "role"),
}
_FIELD = re.compile(r'[ \t]*(?:"((?:[^"]|"")*)"|([^",]*?))[ \t]*(,|$)')
_QUOTED = re.compile(r'[",]|^\s|\s$')
# Characters that a reviewer cannot see: controls, formats (zero width, bidi, tags), line and paragraph separators.
_UNSEEN: Final = frozenset({"Cc", "Cf", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Row:
    """One row: its type, its fields, and the column where each of them begins (the type's own column first)."""

    file: str
    line: int
    kind: str
    fields: tuple[str, ...]
    columns: tuple[int, ...]

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def last(self) -> str:
        """What the row says: the effect of a `p`, the profile of a `p2`, the role of a `g`."""
        return self.fields[-1]

    @property
    def denies(self) -> bool:
        return self.kind == "p" and self.last == "deny"

    def __str__(self) -> str:
        return written(self.kind, *self.fields)

    def column(self, field: str) -> int:
        return self.columns[COLUMNS[self.kind].index(field) + 1]


def granted(rows: Iterable[Row]) -> dict[str, tuple[str, ...]]:
    """Member to the roles that `g` rows give it."""
    found: dict[str, tuple[str, ...]] = {}
    for row in rows:
        if row.kind == "g":
            member, role = row.fields
            found[member] = (*found.get(member, ()), role)
    return found


def written(*fields: str) -> str:
    """The row of these fields as a file has it."""
    quoted = ('"' + field.replace('"', '""') + '"' if _QUOTED.search(field) else field for field in fields)
    return ", ".join(quoted)


def read_rows(text: str, file: str) -> tuple[list[Row], list[PolicyFinding]]:
    """Reads all rows of one file, with a finding for each line that is none."""
    rows: list[Row] = []
    findings: list[PolicyFinding] = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        row = _read_row(line, file, number)
        if isinstance(row, PolicyFinding):
            findings.append(row)
        else:
            rows.append(row)
    return rows, findings


def _read_row(line: str, file: str, number: int) -> Row | PolicyFinding:
    def wrong(column: int, code: str, message: str, hint: str = "") -> PolicyFinding:
        return PolicyFinding(file, number, column, code, "error", message, hint)

    unseen = next((i for i, char in enumerate(line) if unicodedata.category(char) in _UNSEEN and char != "\t"), None)
    if unseen is not None:
        return wrong(unseen + 1, "invisible-character", f"a character that nobody can see: U+{ord(line[unseen]):04X}")
    fields = list(_split(line))
    texts, columns = tuple(text for text, _ in fields), tuple(column for _, column in fields)
    if columns[-1] < 0:
        hint = 'a field with a comma or a quote in it is written "like ""this"""'
        return wrong(-columns[-1], "bad-quoting", "a quote that does not enclose a whole field", hint)
    kind = texts[0]
    if kind not in COLUMNS:
        near = difflib.get_close_matches(kind.lower(), COLUMNS, n=1)
        hint = f'did you mean "{near[0]}"?' if near else "p, p2 or g"
        return wrong(columns[0], "unknown-row-type", f'"{kind}" is no type of row', hint)
    expected = COLUMNS[kind]
    if len(texts) != len(expected) + 1:
        message = f"a {kind} row has {len(expected)} fields after its type, this one has {len(texts) - 1}"
        return wrong(columns[-1], "column-count", message, f"{kind}, {', '.join(expected)}")
    if "" in texts:
        return wrong(columns[texts.index("")], "empty-field", "an empty field", "write * for anything")
    return Row(file, number, kind, texts[1:], columns)


def _split(line: str) -> Iterator[tuple[str, int]]:
    """(text, column) of each field; a column below zero says where the quoting breaks."""
    position = 0
    while match := _FIELD.match(line, position):
        quoted, plain, end = match.groups()
        group = 1 if quoted is not None else 2
        yield (quoted.replace('""', '"') if quoted is not None else plain), match.start(group) + 1
        if not end:
            return
        position = match.end()
    yield "", -(position + len(line[position:]) - len(line[position:].lstrip()) + 1)
