"""What stands where a secret would, and is none: references, masks, placeholders, labels, types. Pure."""

from collections.abc import Callable
from typing import Any, Final

from sluicegate.audit import tables
from sluicegate.audit.bounded import BoundedPattern, lazy
from sluicegate.audit.names import is_secret_name, is_word_for_secret, last_word

_MOST: Final = 512  # characters of a text that is no value
# Words about secrets, and settings of requests.
NO_VALUES: Final = frozenset(tables.words("no value"))
# References of shells, templates, build systems and stores of secrets; masks and examples.
_REFERENCES: Final = "|".join(row[0] for row in tables.rows("words", "reference"))
_REFERENCE: Final = lazy(rf"(?:{_REFERENCES})(?=[\s\"'`,;)\}}\]&|<@:!?/.\\\[(]|->|$)")
# A template: `Bearer ${token}`, `<user>:<password>`, `{}_suffix`.
_MIX: Final = lazy(tables.expression("mix"))
_SCHEME: Final = lazy(r"(?i:(?:bearer|basic|token|digest|apikey)[ \t]{1,4}|pass:)(?=\S)")
_PROSE: Final = lazy(tables.expression("prose"))
_SAYS: Final = lazy(r"(?i)(?:is|was|must|has|may|can|cannot|should|not|no) [^\d\W_][^\d_]{0,100}")
_LONG: Final = lazy(r"[^\W\d_]{3,512}+")
_WEAK: Final = lazy(tables.expression("weak"))
_WORDS: Final = lazy(r"[^\W\d_]{1,40}+(?:[ '][^\W\d_]{1,40}+){0,12}+[ ]?[?!.:…*]{0,3}")
_LABEL: Final = lazy(r"[^\W\d_]{2,40}+(?:[ '’\-][^\W\d_]{1,40}+){0,30}+[ ]?[?!.:…*]{0,3}")
_LANGUAGE: Final = lazy(r"[a-z]{2}(?:[-_][A-Za-z]{2,4})?")
_ABOUT_SECRET: Final = lazy(r"(?i)pass|pwd|pin|token|secret|key|code")
_MAX_LABELS: Final = 256
METAVAR: Final = lazy(r"[A-Z]{2,20}+(?:[_-][A-Z]{1,20}+){0,5}+\.{0,3}")
SLUG: Final = lazy(r"(?:(?>v?\d{1,2}(?![0-9])|[A-Za-z]{1,40}+)(?:[-_./ ]|$)){1,12}+")
_MIXED: Final = lazy(r"(?=[^\s]{0,64}[A-Za-z])(?=[^\s]{0,64}[0-9!#%^&*+])[^\s/:]{5,4096}+$")
_NUMBER: Final = lazy(r"\d{3,12}$")
_MEASURE: Final = lazy(tables.expression("measure"))


def is_no_value(text: str) -> bool:
    """Whether what stands in a text where a secret would is none."""
    return is_reference(text) or (len(text) <= _MOST and is_label(text.strip()))


def is_reference(text: str) -> bool:
    """Whether a text is empty, masked, a placeholder, or says where a secret is."""
    text = text.strip()
    if len(text) > _MOST:
        return False
    if scheme := _SCHEME.match(text):
        text = text[scheme.end() :]
        if METAVAR.fullmatch(text):
            return True
    if not text or text.lower() in NO_VALUES:
        return True
    return _REFERENCE.fullmatch(text) is not None or _MIX.fullmatch(text) is not None


def is_label(text: str) -> bool:
    """Whether a text is prose about secrets: several words, one of which only prose has, or the name of a secret."""
    is_telling = _PROSE.search(text) is not None or len(_WEAK.findall(text)) >= 2
    is_prose = is_telling and len(_LONG.findall(text)) >= 2
    if (is_prose or _SAYS.fullmatch(text)) and not any(is_odd(word.strip("().,;:!?")) for word in text.split()):
        return True
    if METAVAR.fullmatch(text):
        return is_secret_name(text)
    if not _WORDS.fullmatch(text):
        return False
    words = text.rstrip("?!.:…* ").split()
    return any(map(is_secret_name, words)) if len(words) > 1 else is_word_for_secret(words[0])


def reference_at(text: str, at: int) -> int | None:
    """Where the reference ends that begins there."""
    found = _REFERENCE.match(text, at)
    return found.end() if found else None


def is_mixed(value: str) -> bool:
    """Whether one word has letters as well as digits or signs."""
    return _MIXED.match(value) is not None


def is_mixed_or_number(value: str) -> bool:
    return is_mixed(value) or _NUMBER.match(value) is not None


def is_odd(value: str) -> bool:
    """Whether a word of a sentence is none of a language: mixed, and no measure, version, date or name of a
    standard."""
    return is_mixed(value) and _MEASURE.match(value) is None


def is_mixed_user(value: str) -> bool:
    """Whether this is a user and a password: `name:S3cret`."""
    return is_mixed(value.partition(":")[2])


def is_column_value(value: str) -> bool:
    """Whether a cell under the name of a secret is one; a plain word is the name of something."""
    return not is_no_value(value) and not (SLUG.fullmatch(value) and "-" in value and not any(map(str.isdigit, value)))


def is_random(value: str) -> bool:
    """Whether one word is long and mixed enough to be made by a machine."""
    return len(value) >= 16 and is_mixed(value) and SLUG.fullmatch(value) is None


# ---------------------------------------------------------------- of members

# Names inside an object that tells about a secret: a schema, a reference, a policy.
_TELLING: Final = frozenset(tables.words("description"))
# A connection without a password: a URL, or names and values.
_CONNECTION_NAME: Final = lazy(r"(?i)(?:dsn|connection[_\- ]?string)$")
_SETTING: Final = r"[\w \-]{1,40}=[^;=]{0,100}"
_CONNECTION: Final = BoundedPattern(rf"[\w+\-]{{2,30}}://\S{{1,500}}|(?:{_SETTING};){{1,20}}(?:{_SETTING})?")
_CONNECTION_SECRET: Final = tables.pattern("connection secret")
_INSIDE: Final = 6
# Pins of chips, and tests that passed: a person's PIN has four digits.
_COUNTED: Final = frozenset({"pin", "pins", "pass"})


def is_secret_value(value: Any, name: str = "") -> bool:
    """Whether a value under the name of a secret is one: no flag, no reference, no schema, no count."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    if isinstance(value, str):
        if _CONNECTION_NAME.search(name) and _CONNECTION.fullmatch(value) and not _CONNECTION_SECRET.search(value):
            return False
        if name and value.isdecimal() and len(value) < 4 and last_word(name) in _COUNTED:
            return False
        if value[:1] in ("/", "~") and last_word(name) == "pwd":
            return False
        # A passphrase is prose, too; the word for a secret in some language is a label.
        return not is_reference(value) and not is_word_for_secret(value.replace(" ", ""))
    if isinstance(value, dict | list):
        is_labels = isinstance(value, dict) and are_labels(value, is_secret_name)
        return not is_labels and not _is_telling(value, last_word(name), _INSIDE)
    is_count = last_word(name) in _COUNTED or last_word(name).endswith("s")
    return value != 0 and (not is_count or abs(value) >= 1000)


def are_labels(members: dict[str, Any], is_secret: Callable[[str], bool]) -> bool:
    """Whether an object holds what a form shows beside its fields: `{"password": "Passwort", "pin": "Ihre PIN"}`.

    Each secret's name must have a label for a value, and two labels must differ: one alone may be a password.
    """
    if not 2 <= len(members) <= _MAX_LABELS:
        return False
    if all(_LANGUAGE.fullmatch(name) for name in members):  # the name of a secret in each of several languages
        texts = [text for text in members.values() if isinstance(text, str)]
        return len(texts) == len(members) and any(map(_is_label_text, texts)) and all(map(_is_words, texts))
    labels = set()
    for name, text in members.items():
        is_named = is_secret(name)
        if is_named and not (isinstance(text, str) and _is_words(text) and _is_label_text(text)):
            return False
        if is_named or (_ABOUT_SECRET.search(name) and isinstance(text, str) and _is_words(text)):
            labels.add(text)
    return len(labels) >= 2


def _is_words(text: str) -> bool:
    return len(text) <= _MOST and _LABEL.fullmatch(text.strip()) is not None


def _is_label_text(text: str) -> bool:
    return is_label(text.strip()) or is_secret_name(text) or any(map(is_secret_name, text.split()))


def _is_telling(value: Any, name: str, depth: int) -> bool:
    if depth <= 0 or len(value) > 64:
        return False
    if isinstance(value, list):
        if all(isinstance(item, str) for item in value):
            return all(is_no_value(item) or (name == "secrets" and SLUG.fullmatch(item[:_MOST])) for item in value)
        return all(isinstance(item, dict) and _is_telling(item, "", depth - 1) for item in value)
    return all(_is_told(name.lower(), item, depth) for name, item in value.items())


def _is_told(name: str, value: Any, depth: int) -> bool:
    if isinstance(value, str):
        return is_no_value(value) or (name in _TELLING and not is_random(value) and len(value) <= _MOST)
    if isinstance(value, dict | list) and value:
        is_list_of_words = isinstance(value, list) and all(isinstance(item, str) for item in value)
        return name in _TELLING if is_list_of_words else _is_telling(value, name, depth - 1)
    return not isinstance(value, int | float) or abs(value) < 1000 or name in _TELLING or isinstance(value, bool)

