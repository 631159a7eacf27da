"""Where secrets stand in a text: by the look of known credentials, and behind names like `password`. Pure.

Two things are found. `by_look` finds what is a credential whatever stands around it (a JWT, a private key, a vendor's
prefix). `by_name` finds values that are written after the name of a secret, in the syntaxes in which people and
programs write names and values: JSON, YAML, `NAME=value`, options of a command line, XML, code, sentences.

The work is linear in the length of a text: a pattern that fails has looked at a bounded number of characters, and one
that matches is never looked at again.
"""

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterator
from typing import Final

Span = tuple[int, int]

MAX_NAME: Final = 256
_WINDOW: Final = 4_096  # characters that one secret may have
_INDENT: Final = 64
_MOST: Final = 256  # names of secrets in one text; what follows the last of them is taken for one secret

# ---------------------------------------------------------------- names

_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]+")
_OPERATOR_FORM: Final = re.compile(r"[_\-\s.]")
_HAS_SPELLING: Final = re.compile(r"[^A-Za-z_\-. ]")
# Letters that look like others, and digits and signs that stand for letters.
_LOOKS_LIKE: Final = str.maketrans("аеорсухіѕԁкмтнАЕОРСУХІЅКМТНВαοεινρτυκ", "aeopcyxisdkmthaeopcyxiskmthbaoeivptuk")
_STANDS_FOR: Final = str.maketrans("01345$@!", "oleassai")
# Names that end like this, without separators: `db_password`, `X-Api-Key`, `clientSecret`.
_ENDS: Final = re.compile(
    r"(?:passwords?|passwds?|passphrases?|passcodes?|pwds?|psk|secrets?|token|(?:access|refresh|auth|api|bearer)tokens|"
    r"(?:api|access|secret|private|encryption|decryption|signing|master|account|storage|service|subscription|license|app|"
    r"client|deploy|shared|auth|session|hmac|aes|ssh|webhook|consumer|admin|root|write|server|ingest|sas)keys?|"
    r"accesskeyid|authorization|credentials?|cookies?|bearer|jwt|[th]?otp|pincode|cvv|cvc|connectionstring|dsn|"
    r"sessionid|sessid|sessiontoken|(?:seed|recovery|mnemonic)phrase|securityanswer|"
    r"(?:recovery|backup|mfa|verification|security|access|auth|onetime|twofactor)codes?|identifiedby|"
    r"(?:db|root|user|admin|smtp|ldap|become|http|sudo)pass)$"
)
# Short words count alone or as the last of several: `spin` is no `pin`.
_LAST_WORDS: Final = frozenset("pin pass sid pat passin passout".split())
# What may follow the name of a secret and still be its value: `password_old`, `apiKeyProd`, `SECRET_KEY_BASE`.
_QUALIFIERS: Final = frozenset(
    "old new current previous next confirm confirmation again repeat value raw plain text clear data string base base64"
    " b64 env prod production staging dev test live main primary secondary default backup encrypted enc header".split()
)


def plain(name: str) -> str:
    """A name without case and separators."""
    return _OPERATOR_FORM.sub("", name).lower()


def is_secret_name(name: str) -> bool:
    """Whether values under this name are secrets. Case, separators, look-alike letters and digits do not count."""
    name = name[:MAX_NAME]
    if _is_named(name):
        return True
    if _HAS_SPELLING.search(name) is None:
        return False
    seen = "".join(char for char in unicodedata.normalize("NFKD", name) if char.isprintable() and char < "\U000e0000")
    seen = "".join(char for char in seen.translate(_LOOKS_LIKE) if not unicodedata.combining(char))
    return _is_named(seen) or _is_named(seen.translate(_STANDS_FOR))


def _is_named(name: str) -> bool:
    words = [word.lower() for word in _CAMEL.split(name) if word]
    while words:
        last = words[-1].rstrip("0123456789")
        whole = "".join((*words[:-1], last))
        if last in _LAST_WORDS or _ENDS.search(whole):
            return True
        if last and words[-1] not in _QUALIFIERS:
            return False
        words.pop()
    return False


# ---------------------------------------------------------------- by look

# One look decides for most texts: each pattern below needs a run like this, a URL or a parameter.
_RUN: Final = re.compile(r"[A-Za-z0-9_+/=.\-]{16}")
_AT_A_WORD: Final = "|".join(
    (
        r"(?i:bearer|basic|token)[ \t]{1,4}(?=[a-z\-]{0,64}[A-Z0-9._~+/])[A-Za-z0-9._~+/\-]{16,4000}={0,2}",
        r"eyJ[A-Za-z0-9_\-]{8,1000}+(?:\.[A-Za-z0-9_\-]{0,2000}+){0,2}",
        r"gh[pousr]_[A-Za-z0-9]{36,255}",
        r"github_pat_[A-Za-z0-9_]{22,255}",
        r"gl(?:pat|ptt|rt|dt|cbt|soat)-[A-Za-z0-9_\-.]{20,255}",
        r"(?:sk|pk|rk)[_\-](?:live|test|proj|ant|or|svcacct|admin)[_\-A-Za-z0-9]{16,255}",
        r"sk-[A-Za-z0-9]{20,255}",
        r"xox[abeoprs]-[A-Za-z0-9\-]{10,255}",
        r"xapp-[A-Za-z0-9\-]{10,255}",
        r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        r"AIza[A-Za-z0-9_\-]{35}",
        r"ya29\.[A-Za-z0-9_\-]{20,1000}",
        r"(?:hf|npm|lin_api|ntn|dop_v1|shpat|shpss|sq0csp|dckr_pat|pul|slc)_[A-Za-z0-9_\-]{20,255}",
        r"pypi-[A-Za-z0-9_\-]{50,255}",
        r"SG\.[A-Za-z0-9_\-]{16,64}\.[A-Za-z0-9_\-]{16,128}",
        r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
        r"https://hooks\.slack\.com/services/[A-Za-z0-9/]{20,120}",
    )
)
_LOOKS: Final = re.compile(
    r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----(?:[^-]|-(?!----END)){0,4000}+(?:-----END [A-Z ]{0,30}PRIVATE KEY-----)?|"
    r"(?<=://)[^\s/:]{0,256}+:[^\s/]{1,256}(?=@)|"
    r"(?<=[?&;])(?i:access_token|refresh_token|id_token|token|api_?key|key|secret|client_secret|password|"
    r"passwd|pwd|auth|sig|signature|x-amz-signature|x-amz-credential|code)=[^\s&;#\"']{1,2048}|"
    rf"(?<![A-Za-z0-9])(?=[A-Zabdeghlnpr-yBT])(?:{_AT_A_WORD})"
)


def may_look_secret(text: str) -> bool:
    """Whether `by_look` may find something; a no is sure."""
    return _RUN.search(text) is not None or "://" in text or "=" in text or "-----BEGIN" in text


def by_look(text: str) -> Iterator[Span]:
    if may_look_secret(text):
        yield from (match.span() for match in _LOOKS.finditer(text))


# ---------------------------------------------------------------- by name

_HINTS: Final = (
    "pass", "pwd", "psk", "secret", "token", "key", "auth", "cred", "cookie", "bearer", "jwt", "otp", "pin", "sid",
    "sess", "dsn", "conn", "phrase", "code", "answer", "cvv", "cvc", "pat", "identified",
)  # fmt: skip
_OPTION_HINTS: Final = ("-p", "-a", "-w", "-u", "/user")
_ANY_HINT: Final = re.compile("|".join(map(re.escape, (*_HINTS, *_OPTION_HINTS))))
_SHORT: Final = 256  # one search is quicker up to here, one for each hint beyond
_NAME: Final = re.compile(
    r"(?<![\w@.\-])((?:--?)?)([^\W\d][\w.\-@$]{0,127}+(?:[ ](?i:key|code|id|phrase|string|token|by)s?\b)?)"
)
# What stands between a name and its value.
_CLOSE: Final = r"""(?:\\{0,7}["'`\])*]){0,3}"""
_SIGN: Final = re.compile(_CLOSE + r"[ \t]{0,16}(?::=|=>|->|[:=]{1,2})[ \t*]{0,16}")
_TAG: Final = re.compile(r"(?:[ ][^<>]{0,80})?>|</\w{1,20}>\s{0,40}<\w{1,20}>")
_PAIR: Final = re.compile(
    _CLOSE + r"(?:[,:]?\s{1,40}|[,:])(?:\\{0,7}[\"'])?(?i:value|val|content|text|string|data)" + _CLOSE
    + r"\s{0,4}[:=][ \t]{0,8}"
)  # fmt: skip
_VERB: Final = re.compile(r"[ ](?:is|was|are|will be|\|)(?: now)?:?[ ]")
_BLANK: Final = re.compile(r"[ \t]{1,16}")
# The values themselves.
_BLOCK: Final = re.compile(r"[|>][+\-]?[ \t]*\n((?:[ \t]+[^\n]*(?:\n|$)){1,200})")
_LIST: Final = re.compile(r"[\[{(]{1,2}[ \t]*(?=\\{0,7}[\"'])[^\]})\n]{1,1024}")
_QUOTE: Final = re.compile(r"""(\\{0,7})(["'`])""")
_QUOTED: Final = {mark: re.compile(rf"(?:[^{mark}\\]|\\[\s\S]){{0,{_WINDOW}}}+") for mark in "\"'`"}
_SCHEME: Final = re.compile(r"(?i:(?:bearer|basic|token|digest)[ \t]{1,4}|pass:)(?=\S)")
_STOP: Final = r"(?![&;,|][ \t]{0,16}[\w.\- ]{1,64}[=:]|[ \t]{1,16}(?:#|--?\w|[\w.\-]{1,64}[=:]))"
_ONE: Final = re.compile(rf"""[^\s"'`<>](?:[^\s"'`<>&;,|]++|{_STOP}[&;,|])*+""")
_REST: Final = re.compile(rf"""[^\n"'`<>](?:[^\n"'`<>&;,| \t]++|{_STOP}[&;,| \t])*+""")
_LINE_START: Final = re.compile(r"[ \t]*(?:- |\* |\+|-)?[ \t]*(?:export |set |ENV )?[\"'*]{0,3}")
# What is no value: words about secrets, and references to where one is.
_NO_VALUES: Final = frozenset(
    "must is are was were be been be the a an to in for of on if it and or see not no none null nil undefined true "
    "false yes required optional invalid expired missing empty wrong incorrect malformed disabled enabled revoked "
    "rejected strict unset str string int integer number bool boolean bytes text any object array type varchar char "
    "field oauth oauth2 basic bearer digest token password secret strong weak again with from by at has have should "
    "can cannot will may changed default new function await return raise self this".split()
)
_REFERENCE: Final = re.compile(
    r"[$%<{*\[(]|\\n|x{4,}|\.{3}|[A-Za-z_][\w.]*[(\[{]|\)|"
    r"(?:self|this|process|os|env|config|settings|options|args|request|req|params|data|user|secrets|vault|var|local)[.]\w"
)
_IDENTIFIER: Final = re.compile(r"[A-Za-z_][\w.]*$")
_MIXED: Final = re.compile(r"(?=[^\s]{0,64}[A-Za-z])(?=[^\s]{0,64}[0-9!#%^&*+])[^\s/:]{5,}$")
_NUMBER: Final = re.compile(r"\d{3,12}$")
_PORTS: Final = re.compile(r"[\d:.,]+$|[/.~\-]")
_OPTION: Final = re.compile(
    r"(?<![\w\-])-([pPaw])(?:[ \t]{1,4}|=|(?=\w))|(?<![\w\-])(?:-u|--user|/user)[ :=]{0,4}[^\s:\"'/]{1,64}:(?!/)"
)
_COMMAND: Final = 256  # characters of a command before its option
_PROGRAMS: Final = re.compile(
    r"\b(?:mysql\w{0,8}|mariadb|sshpass|docker|podman|redis-cli|ldap\w{3,8}|zip|unzip|7z|sqlcmd|bcp|mongo\w{0,8}|twine|cqlsh|"
    r"smbclient|az|oc|cf|influx)\b"
)


def hint(name: str) -> str:
    """What every text that has this name, without case and separators, has in its `_spelling`."""
    return _spelling(name)[:2]


def _spelling(text: str) -> str:
    seen = text if text.isascii() else text.translate(_LOOKS_LIKE)
    return seen.lower().translate(_STANDS_FOR)


def may_name_secret(text: str, hints: tuple[str, ...] = ()) -> bool:
    """Whether `by_name` or `by_option` may find something; a no is sure. `hints` are those of an operator's names."""
    seen = _spelling(text)
    if len(seen) <= _SHORT:
        return _ANY_HINT.search(seen) is not None or any(hint in seen for hint in hints)
    return any(hint in seen for hint in (*_HINTS, *_OPTION_HINTS, *hints))


def by_name(text: str, is_secret: Callable[[str], bool]) -> Iterator[Span]:
    """Where values stand that the text names as secrets; in order, none overlaps another."""
    at = count = 0
    for name in _NAME.finditer(text):
        if name.start() >= at and is_secret(name[2]):
            count += 1
            if count > _MOST:
                yield name.end(), len(text)
                return
            span = _value(text, name, is_secret)
            if span is not None:
                yield span
                at = span[1]


def _value(text: str, name: re.Match[str], is_secret: Callable[[str], bool]) -> Span | None:
    at, before = name.end(), text[max(0, name.start() - 1) : name.start()]
    if pair := _PAIR.match(text, at):
        return _after(text, pair.end(), is_secret)
    if sign := _SIGN.match(text, at):
        return _after(text, sign.end(), is_secret, is_line=_starts_a_line(text, name.start()))
    if before in ("<", ">") and (tag := _TAG.match(text, at)):
        return _after(text, tag.end(), is_secret)
    if verb := _VERB.match(text, at):
        return _after(text, verb.end(), is_secret, _is_mixed_or_number)
    if blank := _BLANK.match(text, at):
        is_option = bool(name[1]) and text[blank.end() : blank.end() + 1] != "-"
        return _after(text, blank.end(), is_secret, None if is_option else _is_mixed)
    return None


def _starts_a_line(text: str, at: int) -> bool:
    start = text.rfind("\n", max(0, at - _INDENT), at) + 1
    return (start > 0 or at < _INDENT) and _LINE_START.fullmatch(text, start, at) is not None


def _after(
    text: str, at: int, is_secret: Callable[[str], bool], is_fit: Callable[[str], bool] | None = None,
    *, is_line: bool = False,
) -> Span | None:  # fmt: skip
    """The value that begins there; None where what stands there is none."""
    if is_line and (block := _BLOCK.match(text, at)):
        return block.span(1)
    if listed := _LIST.match(text, at):
        return listed.span()
    if quote := _QUOTE.match(text, at):
        return _quoted(text, quote)
    scheme = _SCHEME.match(text, at)
    start = scheme.end() if scheme else at
    found = (_REST if is_line else _ONE).match(text, start)
    if found is None:
        return None
    value = found[0].rstrip(" \t\r\\,;)}]" if is_fit is None else " \t\r\\,;)}].!?:")
    first = value.split(None, 1)[0].strip(".,;:!?)}]*-") if value.strip() else ""
    if not first or first.lower() in _NO_VALUES or _REFERENCE.match(value) or (is_fit and not is_fit(value)):
        return None
    if _IDENTIFIER.match(value) and is_secret(value):  # `token = auth_token`
        return None
    return at, start + len(value)


def _quoted(text: str, quote: re.Match[str]) -> Span | None:
    start = quote.end()
    if quote[1]:
        end = text.find(quote[0], start, start + _WINDOW)
        end = end if end >= 0 else min(len(text), start + _WINDOW)
    else:
        found = _QUOTED[quote[2]].match(text, start)
        end = found.end() if found else start
    value = text[start:end]
    return None if not value.strip() or _REFERENCE.match(value) else (start, end)


def by_option(text: str) -> Iterator[Span]:
    """Values of short options that are passwords: of programs that have them, or that look like one."""
    programs: list[int] | None = None
    for count, option in enumerate(_OPTION.finditer(text)):
        if count > _MOST:
            yield option.end(), len(text)
            return
        span = _after(text, option.end(), lambda name: False)
        if span is None:
            continue
        if option[1] is None:
            yield span
            continue
        if programs is None:
            programs = [program.start() for program in _PROGRAMS.finditer(text)]
        nearest = bisect_left(programs, option.start()) - 1
        line = text[programs[nearest] : option.start()][:_COMMAND] if nearest >= 0 else ""
        if is_password_option(option[1], text[slice(*span)], line, is_glued=option.end() == option.end(1)):
            yield span


def is_password_option(letter: str, value: str, line: str, *, is_glued: bool = False) -> bool:
    """Whether `-p VALUE` gives a password. `line` is the command up to there."""
    program = _PROGRAMS.search(line) if "\n" not in line else None
    if _PORTS.match(value):
        return False
    if is_glued:
        return letter == "p" and program is not None and program[0].startswith(("mysql", "mariadb", "7z"))
    return program is not None or (letter in "pP" and _is_mixed(value))


def _is_mixed(value: str) -> bool:
    return _MIXED.match(value) is not None


def _is_mixed_or_number(value: str) -> bool:
    return _is_mixed(value) or _NUMBER.match(value) is not None


# ---------------------------------------------------------------- together


def find(text: str, is_secret: Callable[[str], bool] | None = None, hints: tuple[str, ...] = ()) -> list[Span]:
    """Where secrets stand in the text, in order, none overlapping. Without `is_secret` names do not count."""
    spans = list(by_look(text))
    if is_secret is not None and may_name_secret(text, hints):
        spans = sorted([*spans, *by_name(text, is_secret), *by_option(text)])
    found: list[Span] = []
    for start, end in spans:
        if found and start < found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
