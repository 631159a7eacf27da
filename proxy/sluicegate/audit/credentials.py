"""Where secrets stand in a text: by the look of known credentials, and behind names like `password`. Pure.

`by_look` (in `vendors`) finds what is a credential whatever stands around it. `by_name` finds values that are written
after the name of a secret, in the syntaxes in which people and programs write names and values: JSON, YAML,
`NAME=value`, options of a command line, XML, code, sentences. `by_form` (in `forms`) knows commands, files and calls
whose secrets have a place instead of a name.

The work is linear in the length of a text: a pattern that fails has looked at a bounded number of characters, and one
that matches is never looked at again.
"""

import base64
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import groupby
from operator import itemgetter
from typing import Final
from urllib.parse import unquote

from sluicegate.audit import bounded, forms, tables, values
from sluicegate.audit.bounded import lazy
from sluicegate.audit.names import FOREIGN, has_numbers, is_secret_name, plain, spelling
from sluicegate.audit.randomness import by_randomness, is_harmless_name, is_random
from sluicegate.audit.vendors import Span, by_look

_WINDOW: Final = 4_096  # characters that one secret may have
_INDENT: Final = 64
_MOST: Final = 256  # names of secrets in one text; what follows the last of them is taken for one secret

_HINTS: Final = (
    *tables.words("name hint"),
    *sorted({spelling(word)[:4] for word in FOREIGN if word.isascii() and "pass" not in word}),
)  # fmt: skip
_FOREIGN_HINTS: Final = tuple(sorted({spelling(word)[:3] for word in FOREIGN if not word.isascii()}))
_OPTION_HINTS: Final = ("-p", "-a", "-w", "-u", "/user", "-s ", "-c ", "-k ", "-t ", *map(spelling, forms.HINTS))
# Grouped by their first letters, because `re` would try each of them at each position.
_ANY_HINT: Final = lazy(
    "|".join(
        f"{re.escape(first)}(?:{'|'.join(re.escape(hint[1:]) for hint in hints)})"
        for first, hints in groupby(sorted((*_HINTS, *_OPTION_HINTS)), itemgetter(0))
    )
)
_PORT: Final = lazy(r":(?:[olea2s6789]{2,5}|\*):")  # of a line of .pgpass, as `spelling` has it
_SHORT: Final = 4_096  # characters up to which one search for all hints is quicker than one search for each
_NAME: Final = lazy(tables.expression("name"))
# What stands between a name and its value.
_SIGN: Final = lazy(tables.expression("sign"))
# What of code may come between a name and a text in quotes: a type, a call, an index.
_VERB: Final = lazy(tables.expression("verb"))
# A name, some words, and then a verb or a colon: `the password for the printer is ...`.
_FAR: Final = lazy(tables.expression("far"))
_COLON: Final = lazy(tables.expression("colon"))
_CJK_FAR: Final = tables.pattern("cjk far")
_NEXT: Final = lazy(r"(?P<end>[\"'*_`]{0,3}:?)[ \t]{0,8}\r?\n|[^\n]{0,100}?[:：][*_ \t]{0,8}\r?\n")
_LINE: Final = tables.pattern("line")
_MNEMONIC: Final = lazy(r"(?:[a-z]{3,8}[ ,]{1,3}){11,23}[a-z]{3,8}\b")  # BIP-39
_ENCODED_TEXT: Final = lazy(r"(?<![\w+/=.\-])(?=[A-Za-z0-9+/]{0,64}[A-Z0-9])[A-Za-z0-9+/]{24,8192}+={0,2}")
# A name in JSON with escapes, a parameter of a query, the password of a URL that is in another one.
_ESCAPE: Final = lazy(r"\\{1,8}u00([2-7][0-9A-Fa-f])")
_ESCAPED_NAME: Final = lazy(
    r"\"(?=[\w.\- ]{0,64}\\)((?:[\w.\- ]|\\{1,8}u00[2-7][0-9A-Fa-f]){1,128}+)\\{0,8}\"\s{0,8}:\s{0,8}"
)
_ENCODED_NAME: Final = lazy(r"(?<=[?&;])([\w.\-%]{1,128}+)=([^\s&;#\"'<>`\\]{1,2048}+)")
_ENCODED_URL: Final = lazy(r"(?i)(?<=%3A%2F%2F)[^\s/%\"'<>]{0,64}+%3A([^\s/&\"'<>]{1,256}?)(?=%40)")
_CODES: Final = 24
_BLANK: Final = lazy(r"[ \t]{1,16}")
_CLOSED: Final = {mark: lazy(rf"[ \t:=?>*]{{1,4}}{mark}") for mark in "\"'`"}  # a text that ends with the name
# Who came in with a token: its issuer, and its subject, in which a secret may stand behind a name all the same.
_PRINCIPAL: Final = lazy(
    r"jwt:https?://(?:[\w.\-]{1,256}+|\[::1\])(?::\d{1,5})?(?:/[\w.\-~%/]{0,512}+)?#"
    r"(?=([^\s\"'<>]{0,512}+)(?![^\s\"'<>]))"
)
_NUMBER: Final = lazy(r"[#*]?\d[\d\-]{2,11}\d?[#*]?$")
_PROSE_NEXT: Final = lazy(r"(?:[ ][\w']{1,20}){0,5}[ ](?:the|of|a|an|is|are|be|to|for|and|or)\b")
# What a program says that lacks one: `Missing API key: set API_KEY`.
_ASKED: Final = lazy(r"(?i:set|export|define|provide|specify) [A-Z][A-Z0-9]{0,40}+_[A-Z0-9_]{1,60}+(?![\w=])")
_EVERYDAY: Final = frozenset("secret key token pass pin code".split())
# The values themselves.
_BLOCK: Final = bounded.BoundedPattern(r"[|>][+\-]?[ \t]*\n((?:[ \t]+[^\n]*(?:\n|$)){1,200})")
_LIST: Final = lazy(r"[\[{(]{1,2}+[ \t]{0,64}+(?=\\{0,7}[\"'])[^\]})\n]{1,1024}")
_QUOTE: Final = lazy(r"""[fFrRbBN@]{0,2}(?:""(?=")|''(?='))?(\\{0,7})(["'`“„«])""")
_CLOSING: Final = {"“": "”", "„": "“", "«": "»"}
_QUOTED: Final = {
    mark: lazy(rf"(?:[^{_CLOSING.get(mark, mark)}\\]|\\[\s\S]){{0,{_WINDOW}}}+") for mark in "\"'`“„«"
}
_SCHEME: Final = lazy(tables.expression("scheme"))
_STOP: Final = r"(?![&;,|][ \t]{0,16}[\w.\- ]{1,64}[=:]|[ \t]{1,16}(?:#|--?\w|[\w.\-]{1,64}[=:]))"
_ONE: Final = bounded.BoundedPattern(rf"""[^\s"'`<>](?:[^\s"'`<>&;,|]++|{_STOP}[&;,|])*+""")
_REST: Final = bounded.BoundedPattern(rf"""[^\n"'`<>](?:[^\n"'`<>&;,| \t]++|{_STOP}[&;,| \t])*+""")
_LINE_START: Final = lazy(
    r"[ \t]{0,64}+(?:- |\* |\+|-)?[ \t]{0,64}+(?:export |set |ENV |setx |declare -x )?[\"'*]{0,3}"
)
# An expression of a program, in which a name is no value.
_EXPRESSION: Final = lazy(tables.expression("expression"))
_LISTED: Final = bounded.BoundedPattern(r"""(["'`]),\s{0,20}(?:\1[\w\- ]{1,40}\1,\s{0,20}){2}$""")  # a list of words
# What a program says of a resource that has this name: `secret "pull-secret" not found`.
_RESOURCE: Final = lazy(r"[\"'`] (?:not|already|created|deleted|unchanged|configured|does|in namespace)\b")
_ATTRIBUTES: Final = lazy(r"[A-Za-z_]{1,40}(?:\.[A-Za-z_]{1,40}){1,4}\s")  # `password = parsed.auth`
_VARIABLE: Final = lazy(r"[A-Za-z_]{1,40}(?:\.[A-Za-z_]{1,40}){0,4}[,)\]}]")
_CODE_WORD: Final = lazy(r"[A-Za-z]{2,20}(?=[})\];,])")
_IDENTIFIER: Final = lazy(r"[A-Za-z_$][A-Za-z_.$!?]{0,4096}+$")


# Names under which a value is a secret if it is random.
_MAYBE: Final = lazy(r"(?i)(?:key|auth|session|api|sig)$")
_KEY: Final = lazy(_SIGN.pattern + r"[\"'`]?([A-Za-z0-9+/_\-]{16,512}+={0,2})(?![\w.:/])")
_REPEATED: Final = 16  # secrets of one text that are masked wherever they stand
_REPEATED_LENGTH: Final = 256


def may_name_secret(text: str, hints: tuple[str, ...] = ()) -> bool:
    """Whether `by_name` or `by_form` may find something; a no is sure. `hints` are those of an operator's names."""
    seen = spelling(text)
    if len(seen) <= _SHORT:
        found = _ANY_HINT.search(seen) is not None or any(hint in seen for hint in hints)
    else:
        found = any(hint in seen for hint in (*_HINTS, *_OPTION_HINTS, *hints))
    if found or _PORT.search(seen) is not None:
        return True
    return not text.isascii() and any(hint in seen for hint in _FOREIGN_HINTS)


def by_name(text: str, is_secret: Callable[[str], bool]) -> Iterator[Span]:
    """Where values stand that the text names as secrets; in order, none overlaps another."""
    at = count = 0
    for name in _NAME.finditer(text):
        if name.start() < at:
            continue
        shown = name[2]
        if not is_secret(shown):
            cjk = None if shown.isascii() else forms.CJK.search(shown)
            if cjk is None:
                is_key = _MAYBE.search(shown) is not None and not is_harmless_name(shown)
                if is_key and (word := _KEY.match(text, name.end())) and is_random(word[1]):
                    yield word.span(1)
                continue
            at = name.start() + cjk.end() + len(name[1] or "")
            far = _CJK_FAR.match(text, at)
            spans = None if far is None else _after(text, far.end(), is_secret, values.is_mixed_or_number)
        elif (principal := _PRINCIPAL.match(text, name.start(2))) and not any(
            map(is_secret, principal[1].split(":")[:-1])
        ):
            at = principal.end()
            continue
        else:
            spans = _value(text, name, is_secret)
        count += 1
        if count > _MOST:
            yield name.end(), len(text)
            return
        if spans is not None:
            if spans[0] < spans[1] and not _is_own_label(shown, text[slice(*spans)], is_secret):
                yield spans
            at = spans[1]


def _value(text: str, name: re.Match[str], is_secret: Callable[[str], bool]) -> Span | None:
    """Where the value of a name stands; an empty span ends behind what is no value and is not looked at again."""
    at, before = name.end(), text[max(0, name.start() - 1) : name.start()]
    if before in _CLOSED and _CLOSED[before].match(text, at):
        return None
    if name[2][-1] == "." and text[at : at + 1] == " ":  # the end of a sentence
        return None
    for pattern, first, is_fit in _SYNTAXES:
        if (not first or before in first) and (found := pattern.match(text, at)):
            return _after(text, found.end(), is_secret, is_fit)
    if sign := _SIGN.match(text, at):
        return _behind_sign(text, name, sign, is_secret)
    return _behind_words(text, name, is_secret) or _below(text, at, name[2])


def _behind_sign(
    text: str, name: re.Match[str], sign: re.Match[str], is_secret: Callable[[str], bool]
) -> Span | None:
    is_test = name[2] == "PASS" and _starts_a_line(text, name.start())
    if ":" in sign[0] and (is_test or text[max(0, name.start() - 1)] == ":"):  # of a test; part of an ARN
        return None
    if ")" in sign[0] and (":" in sign[0] or "->" in sign[0]):  # the type of a function
        return None
    is_quoted = _QUOTE.match(text, sign.end()) is not None
    is_index = sign[0][0] == "]" and "=>" not in sign[0]  # `styles[token] = style`
    if not is_quoted and (is_index or "==" in sign[0]):  # `if token == end`
        return None
    if not is_quoted and " = " in sign[0] and _ATTRIBUTES.match(text, sign.end()):
        return None
    if sign[0][0] in "'\"" and not is_quoted and _VARIABLE.match(text, sign.end()):  # of a dict: `"token": token,`
        return None
    if words := _MNEMONIC.match(text, sign.end()):
        return words.span()
    is_line = name[2].endswith(("phrase", "words", "mnemonic")) or _starts_a_line(text, name.start())
    span = _after(text, sign.end(), is_secret, _fit(name[2]), is_line=is_line)
    if span is None and not text[sign.end() : sign.end() + 2].strip():
        return _below(text, name.end(), name[2])
    if span and _ASKED.match(text, span[0]):
        return None
    if span and name[2].lower() in _EVERYDAY and text[slice(*span)].isalpha() and _PROSE_NEXT.match(text, span[1]):
        return None
    return span


def _is_own_label(name: str, value: str, is_secret: Callable[[str], bool]) -> bool:
    """Whether a constant has the text of its own name: `TXT_PSK = "psk"`."""
    return len(value) <= _INDENT and plain(value) in plain(name) and is_secret(value)


def _behind_words(text: str, name: re.Match[str], is_secret: Callable[[str], bool]) -> Span | None:
    at, span = name.end(), None
    if verb := _VERB.match(text, at):
        span = _after(text, verb.end(), is_secret, values.is_mixed_or_number)
    elif blank := _BLANK.match(text, at):
        if name[1] and text[blank.end() : blank.end() + 1] != "-":
            span = _after(text, blank.end(), is_secret)
            return (span[1], span[1]) if span and values.METAVAR.fullmatch(text[slice(*span)]) else span
        is_fit = _is_number if name[2].lower() == "pin" else values.is_odd if name[2].isalpha() else values.is_mixed
        span = _after(text, blank.end(), is_secret, is_fit)
    if span and name[2].lower() in _EVERYDAY and text[slice(*span)].isalpha() and text[slice(*span)].islower():
        return None
    if span is None and not name[1] and (far := _FAR.match(text, at)):
        is_fit = _is_code if has_numbers(name[2]) else values.is_odd
        span = _after(text, far.end(), is_secret, is_fit)
        if span is None and (colon := _COLON.match(text, at)) and colon.end() > far.end():
            span = _after(text, colon.end(), is_secret, is_fit)
    return span


def _fit(name: str) -> Callable[[str], bool] | None:
    """What a value behind a sign must be for a name that is a word of everyday: `pin`, `pass`."""
    if name.lower() == "pwd":
        return _is_no_path
    if name.lower() == "tan":
        return _is_number
    return _is_code if name.lower() in ("pass", "pin") or name.endswith("Pin") else None


def _is_number(value: str) -> bool:
    return _NUMBER.match(value) is not None


def _is_no_path(value: str) -> bool:
    return value[0] not in "/~"


def _is_code(value: str) -> bool:
    return values.is_odd(value) or _NUMBER.match(value) is not None


def _below(text: str, at: int, name: str) -> Span | None:
    """Values on the lines below a label, each alone: `Recovery codes:`."""
    label = _NEXT.match(text, at)
    if label is None:
        return None
    is_sure = ":" in label[0] or "：" in label[0] or text[max(0, at - len(name) - 6) : at].startswith('name="')
    start, end, here = 0, 0, label.end()
    for _ in range(_CODES):
        line = _LINE.match(text, here)
        if line is None or values.is_no_value(line[1]):
            break
        if not (values.is_odd(line[1]) if is_sure else values.is_odd(line[1]) and len(line[1]) >= 8) and not (
            has_numbers(name) and _is_code(line[1])
        ):
            break
        start, end, here = start or line.start(1), line.end(1), line.end() + 1
    return (start, end) if end else None


def _starts_a_line(text: str, at: int) -> bool:
    start = text.rfind("\n", max(0, at - _INDENT), at) + 1
    return (start > 0 or at < _INDENT) and _LINE_START.fullmatch(text, start, at) is not None


def _after(
    text: str, at: int, is_secret: Callable[[str], bool], is_fit: Callable[[str], bool] | None = None,
    *, is_line: bool = False,
) -> Span | None:  # fmt: skip
    """The value that begins there; an empty span for a reference; None where what stands there is no value."""
    if is_line and (block := _BLOCK.match(text, at)):
        return block.span(1)
    if listed := _LIST.match(text, at):
        return listed.span()
    if quote := _QUOTE.match(text, at):
        return _quoted(text, quote, is_fit)
    scheme = _SCHEME.match(text, at)
    start = scheme.end() if scheme else at
    if (end := values.reference_at(text, start)) is not None:
        return end, end
    found = (_REST if is_line else _ONE).match(text, start)
    if found is None:
        return None
    value = found[0].rstrip(" \t\r\\,;)}]" if is_fit is None else " \t\r\\,;)}].!?:。、")
    words = value.split(None, 1)
    first = words[0].strip(".,;:!?)}]*-") if words else ""
    if code := _CODE_WORD.match(value):  # `password=null}return`
        first = code[0]
    if len(first) < 2 or first.lower() in values.NO_VALUES or _EXPRESSION.match(value):
        return None
    if is_fit and not is_fit(value):
        return None
    is_plain = value.isalpha() and value.islower()
    if not is_plain and _IDENTIFIER.match(value) and is_secret(value):  # `token = auth_token`
        return None
    if values.is_no_value(value):
        return start + len(value), start + len(value)
    return at, start + len(value)


def _quoted(text: str, quote: re.Match[str], is_fit: Callable[[str], bool] | None = None) -> Span | None:
    start = quote.end()
    if quote[1]:
        end = text.find(quote[0], start, start + _WINDOW)
        end = end if end >= 0 else min(len(text), start + _WINDOW)
    else:
        found = _QUOTED[quote[2]].match(text, start)
        end = found.end() if found else start
    value = text[start:end]
    if is_fit is forms.is_no_word and _LISTED.search(text[max(0, quote.start() - _INDENT) : quote.start()]):
        return end, end
    is_name = is_fit is not None and _RESOURCE.match(text, end)
    if len(value) < 2 or values.is_no_value(value) or is_name or (is_fit is forms.is_no_word and not is_fit(value)):
        return end, end
    return start, end


# What follows the name, what stands before it, what the value must be.
_SYNTAXES: Final = [
    (lazy(pattern), tuple(before), forms.FITS[fit]) for pattern, before, fit in tables.rows("forms", "syntax")
]


def by_form(text: str) -> Iterator[Span]:
    """Where secrets stand that have a place instead of a name: in commands, files, calls, tables."""
    for count, (at, is_fit) in enumerate(forms.places(text)):
        if count > _MOST:
            yield at, len(text)
            return
        span = _after(text, at, is_secret_name, is_fit)
        if span is not None and span[0] < span[1]:
            yield span


def by_escape(text: str, is_secret: Callable[[str], bool]) -> Iterator[Span]:
    """Where values stand behind names with escapes in them, of JSON or of a URL; passwords of a URL within a URL."""
    if "\\u00" in text:
        for name in _ESCAPED_NAME.finditer(text):
            if is_secret(_ESCAPE.sub(lambda found: chr(int(found[1], 16)), name[1])):
                span = _after(text, name.end(), is_secret)
                if span is not None and span[0] < span[1]:
                    yield span
    if "%" in text:
        for found in _ENCODED_NAME.finditer(text):
            if "%" in found[1] and is_secret(unquote(found[1])) and not values.is_no_value(found[2]):
                yield found.span(2)
        yield from (found.span(1) for found in _ENCODED_URL.finditer(text))


def by_code(text: str, is_secret: Callable[[str], bool]) -> Iterator[Span]:
    """Where texts stand in base64 (RFC 4648) that have secrets in them."""
    for found in _ENCODED_TEXT.finditer(text):
        data = found[0].rstrip("=")
        with suppress(ValueError):  # what is cut off may end within a character
            inner = base64.b64decode(data[: len(data) // 4 * 4]).decode("ascii")
            if may_name_secret(inner) and any(True for _ in by_name(inner, is_secret)):
                yield found.span()


def _again(text: str, named: list[Span]) -> Iterator[Span]:
    """Where the secrets that a text names stand in it once more."""
    secrets = {text[start:end].strip("\"'") for start, end in named if 8 <= end - start <= _REPEATED_LENGTH}
    mixed = sorted(secret for secret in secrets if values.is_mixed(secret))[:_REPEATED]
    for secret in mixed:
        at = text.find(secret)
        while at >= 0:
            end = at + len(secret)
            if not _is_word(text[at - 1 : at]) and not _is_word(text[end : end + 1]):
                yield at, end
            at = text.find(secret, end)


def _is_word(char: str) -> bool:
    return char.isalnum() or char == "_"


def find(
    text: str, is_secret: Callable[[str], bool] | None = None, hints: tuple[str, ...] = (), with_random: bool = True
) -> list[Span]:
    """Where secrets stand in the text, in order, none overlapping. Without `is_secret` only known looks count.

    Raises TimeoutError for a text whose search takes too long.
    """
    bounded.extend(len(text))
    spans = list(by_look(text))
    if is_secret is not None:
        if may_name_secret(text, hints):
            named = [*by_name(text, is_secret), *by_form(text), *forms.cells(text, is_secret)]
            spans += [*named, *_again(text, named)]
        spans += by_escape(text, is_secret)
        spans += by_code(text, is_secret)
        if with_random:
            spans += by_randomness(text)
    found: list[Span] = []
    for start, end in sorted(spans):
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
