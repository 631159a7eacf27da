"""The data of the redaction: `words.tsv`, `patterns.tsv`, `forms.tsv` and `vendors.tsv`, which are read at import.

A row is a kind and its fields, with tabs between them: words, or one regular expression. A peer writes the texts that
are searched: an expression runs with a limit (`bounded`) or is proven to take few steps at each position.
"""

from pathlib import Path

from sluicegate.audit.bounded import BoundedPattern


def rows(table: str, kind: str) -> list[list[str]]:
    """The fields of the rows of one kind, in order."""
    lines = Path(__file__).with_name(f"{table}.tsv").read_text("utf-8").splitlines()[1:]
    return [fields for name, *fields in (line.split("\t") for line in lines) if name == kind]


def words(kind: str) -> list[str]:
    return [word for (text,) in rows("words", kind) for word in text.split()]


def alternatives(kind: str) -> str:
    """One expression for all words or expressions of a kind that has no blanks in them."""
    return "|".join(words(kind))


def expression(name: str) -> str:
    """One of the expressions in `patterns.tsv`."""
    return rows("patterns", name)[0][0]


def pattern(name: str) -> BoundedPattern:
    return BoundedPattern(expression(name))
