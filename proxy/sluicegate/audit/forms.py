"""Secrets that have a place instead of a name: in commands, files, calls and tables. Pure.

The commands, files and calls are in `forms.tsv`: an expression ends where a secret begins.
"""

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

from sluicegate.audit import tables, values
from sluicegate.audit.bounded import BoundedPattern, lazy

Fit = Callable[[str], bool]

CJK: Final = lazy("(?:パスワード|暗証番号|合言葉|密码|密碼|口令|密钥|비밀번호|암호)")

# ---------------------------------------------------------------- options of programs

# The options in `forms.tsv`: `-p` gives a password; `-p+` one glued to the option; `-p?` one if it is a mixed word;
# `-u:` a user and a password.
_ROWS: Final = [(programs, options.split()) for programs, options, _ in tables.rows("forms", "program")]
_PROGRAMS: Final = lazy(rf"(?<![\w\-.])(?:{'|'.join(f'({row[0]})' for row in _ROWS)})(?:\.exe)?(?=[ \t])")
_OPTION: Final = tables.pattern("option")
_COMMAND: Final = 256  # characters of a command before its option
_STRONG: Final = lazy(r"[^a-z0-9]")
_PORTS: Final = lazy(r"[\d:.,]{1,4096}+(?:/\w{3})?$|[/.~\-]")


def _options(text: str) -> Iterator[tuple[int, Fit | None]]:
    if "-" not in text and "/user" not in text:
        return
    programs = [(found.start(), found.end(), found.lastindex or 1) for found in _PROGRAMS.finditer(text)]
    starts = [start for start, _, _ in programs]
    for option in _OPTION.find_all(text):
        separate, glued, user, sign = option.groups()
        nearest = bisect_left(starts, option.start()) - 1
        listed: list[str] = []
        if nearest >= 0 and option.start() - starts[nearest] < _COMMAND:
            listed = _ROWS[programs[nearest][2] - 1][1]
            if "\n" in text[programs[nearest][1] : option.start()]:
                listed = []
        if separate in listed or (glued and f"{glued}+" in listed):
            yield option.end(), _is_no_port
        elif separate in ("-p", "-P", "-pw"):
            yield option.end(), _is_mixed_option
        elif separate and f"{separate}:" in listed:
            yield option.end(), values.is_mixed_user
        elif (user and f"{user}{sign}" in listed) or user is separate is glued or (user in (
         "-u", "-U") and sign in ":%"):
            yield option.end(), _is_no_port


def _is_no_port(value: str) -> bool:
    return _PORTS.match(value) is None


def is_no_word(value: str) -> bool:
    return not value.replace("_", "a").replace("-", "a").replace(" ", "a").isalpha()


def _is_mixed_option(value: str) -> bool:
    return _PORTS.match(value) is None and values.is_mixed(value) and _STRONG.search(value) is not None


def _is_link_token(value: str) -> bool:
    value = value.partition("?")[0].partition("&")[0].partition("#")[0]
    return values.is_random(value) and _DATED.search(value) is None


_DATED: Final = lazy(r"(?:19|20)\d\d-\d\d")

# ---------------------------------------------------------------- places

# What a secret must be behind a form, by the name in `forms.tsv`.
FITS: Final[dict[str, Fit | None]] = {
    "": None,
    "odd": values.is_odd,
    "mixed": values.is_mixed,
    "mixed or number": values.is_mixed_or_number,
    "no port": _is_no_port,
    "link": _is_link_token,
    "no word": is_no_word,
}
# What a text must have one of, in small letters, for the form to be in it; what stands before the secret; its fit.
_FORMS: Final = [
    (needs.split("|") if len(needs) > 1 else [needs], BoundedPattern(pattern), FITS[fit])
    for pattern, needs, fit in tables.rows("forms", "form")
]
# What of these no name of a secret is in, so that a text must be looked at for their sake.
HINTS: Final = tables.rows("forms", "hint")[0][0].split("|")


def places(text: str) -> Iterator[tuple[int, Fit | None]]:
    """Where secrets begin that have no name, and what they must be like."""
    yield from _options(text)
    small = text.lower()
    for needs, pattern, is_fit in _FORMS:
        for need in needs:
            if need in small:
                yield from ((found.end(), is_fit) for found in pattern.find_all(text))
                break


# ---------------------------------------------------------------- tables

INSERT: Final = tables.pattern("insert")
_TUPLE: Final = tables.pattern("tuple")
_ITEM: Final = BoundedPattern(r"\s{0,20}('(?:[^'\\]|''|\\.){0,2000}'|\"[^\"]{0,2000}\"|[^,]{1,2000})\s{0,4}(?:,|$)")
_MANIFEST: Final = BoundedPattern(r"(?m)^([ ]{0,20})(?:data|stringData):[ ]*\n((?:\1[ ]+[^\n]*(?:\n|$)){1,400})")
_ENTRY: Final = tables.pattern("entry")
_DELIMITERS: Final = (lazy(r"[ \t]{0,60}+\|[ \t]{0,60}+"), lazy(
 r"\t"), lazy(r"[ ]{2,60}"), lazy(r"[ ]{0,60}+;[ ]{0,60}+"), lazy(r",[ ]{0,60}+"))
_GAP: Final = r"[ ]{2,60}"
_RULE: Final = lazy(r"[\s\-+|=:─┼│┤├]{1,4096}+")
_CELLS: Final = lazy(r"[^\s|,;][ ]{0,60}+[|\t,;][ ]{0,60}+[^\s|,;]|\S[ ]{2,60}+\S")
_COOKIES: Final = tables.pattern("cookies")
_MAX_CELLS: Final = 64
_MAX_LINE: Final = 4_096


def cells(text: str, is_secret: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """The values in columns of secrets: of `INSERT`, of tables with a line of names, of Kubernetes' secrets, and all
    cookies of a request."""
    small = text.lower()
    if "cookie" in small:
        yield from (found.span(1) for found in _COOKIES.find_all(text))
    for insert in INSERT.find_all(text) if "insert" in small else ():
        columns = [is_secret(name.strip(" \t\r\n\"`[]")) for name in insert[1].split(",")]
        at = insert.end()
        while any(columns) and (row := _TUPLE.match(text, at)):
            at = row.end()
            for is_column, item in zip(columns, _ITEM.find_all(text, row.start(1), row.end(1)), strict=False):
                if is_column and not values.is_no_value(item[1].strip("'\"")):
                    yield item.span(1)
    if "kind: Secret" in text:
        for block in _MANIFEST.find_all(text):
            for entry in _ENTRY.find_all(text, block.start(2), block.end(2)):
                span = entry.span(entry.lastindex or 1)
                if not values.is_no_value(text[slice(*span)].strip("\"'")):
                    yield span
    if "\n" in text:
        yield from _columns(text, is_secret)


def _columns(text: str, is_secret: Callable[[str], bool]) -> Iterator[tuple[int, int]]:
    """The cells under the names of secrets. An empty line ends a table; a line that does not fit its names does not:
    what is right of the first secret's column is masked there."""
    at = 0
    delimiter: re.Pattern[str] | None = None
    wanted: list[bool] = []
    was_row = False
    lines = text.splitlines(keepends=True)
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        start, at = at, at + len(line)
        if not line.strip():
            delimiter, was_row = None, False
        elif delimiter is None:
            is_first = not was_row and (not line.startswith("|") or _RULE.fullmatch(following))
            if is_first and len(line) <= _MAX_LINE and _CELLS.search(line):
                delimiter, wanted = _header(line, is_secret)
            was_row = "|" in line
        elif _RULE.fullmatch(line) is None:
            first = wanted.index(True)
            row = _split(line, delimiter) if len(line) <= _MAX_LINE else []
            if len(row) == len(wanted):
                for is_column, (left, right) in zip(wanted, row, strict=True):
                    value = line[left:right]
                    if is_column and value.strip("-: =") and values.is_column_value(value.strip("`\"'*")):
                        yield start + left, start + right
            elif not row or (first < len(row) > 1 and delimiter.pattern != _GAP and ", " not in line):
                yield start + (row[first][0] if row else 0), start + len(line.rstrip())


def _header(line: str, is_secret: Callable[[str], bool]) -> tuple[re.Pattern[str] | None, list[bool]]:
    for delimiter in _DELIMITERS:
        names = [line[left:right].strip("`\"'* ") for left, right in _split(line, delimiter)]
        if 2 <= len(names) <= _MAX_CELLS and all(
            len(name) <= 40 and name[:1] != "-" and name.count(
             " ") <= 2 and not set(name) & set("=:(){}<>$/,") and not _DATED.search(name) for name in names
        ):
            found = [is_secret(name) for name in names]
            has_numbers = any(name.isdecimal() for name in names)
            if any(found) and not all(found) and not has_numbers and sum(map(bool, names)) >= 2:
                return delimiter, found
    return None, []


def _split(line: str, delimiter: re.Pattern[str]) -> list[tuple[int, int]]:
    """The places of a line's cells; none of a line with too many. A delimiter in quotes is part of a cell."""
    end = len(line.rstrip())
    found: list[tuple[int, int]] = []
    at = len(line) - len(line.lstrip())
    for cut in re.compile(f'"[^"]*"|{delimiter.pattern}').finditer(line, at, end):
        if line[cut.start()] == '"':
            continue
        if len(found) > _MAX_CELLS:
            return []
        found.append((at, cut.start()))
        at = cut.end()
    return [*found, (at, end)]
