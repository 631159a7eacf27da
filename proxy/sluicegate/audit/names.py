"""Which names are those of secrets: of members, variables, options, columns, form fields. Pure."""

import unicodedata
from typing import Final

from sluicegate.audit import tables
from sluicegate.audit.bounded import lazy

MAX_NAME: Final = 256
_CAMEL: Final = lazy(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]{1,256}+")
_OPERATOR_FORM: Final = lazy(r"[_\-\s.]")
_MAX_END: Final = 64  # more than the longest word for a secret has, with separators
_LETTER_SIGNS: Final = frozenset("$@!")  # that stand for letters
_SEPARATORS: Final = lazy(r"[\W_]")
_OTHER_SEPARATORS: Final = lazy(r"[^\w$@!]|_")
_NO_LETTERS: Final = bytes(code for code in range(128) if not (chr(code).isalnum() or chr(code) in _LETTER_SIGNS))
_HAS_SPELLING: Final = lazy(r"[^A-Za-z_\-. ]")
# Letters that look like others, and digits and signs that stand for letters.
# `normalize` makes up to 18 characters of one of these, none of them a letter of a word that is sought.
_LIGATURES: Final = dict.fromkeys(range(0xFDF0, 0xFDFD))
_MARKS_OF_NO_CLASS: Final = frozenset("\u0344\u0f73\u0f75\u0f81\uff9e\uff9f")  # until they are decomposed
_LOOKS_LIKE: Final = str.maketrans("аеорсухіѕԁкмтнАЕОРСУХІЅКМТНВαοεινρτυκ", "aeopcyxisdkmthaeopcyxiskmthbaoeivptuk")
_STANDS_FOR: Final = str.maketrans("01345$@!", "oleassai")
# Names that end like this, without separators: `db_password`, `X-Api-Key`, `clientSecret`.
_ENDS: Final = lazy(f"(?:{tables.alternatives('name')})$")
# Names of passwords in other languages, without accents where a letter has one.
FOREIGN: Final = tuple(tables.words("foreign"))
_FOREIGN_ENDS: Final = lazy(f"(?:{'|'.join(FOREIGN)})$")
# Short words count alone or as the last of several: `spin` is no `pin`.
_LAST_WORDS: Final = frozenset(tables.words("last"))
# What may follow the name of a secret and still be its value: `password_old`, `apiKeyProd`, `SECRET_KEY_BASE`.
_QUALIFIERS: Final = frozenset(tables.words("qualifier"))
# What is no secret although it ends like one: places in lists, what a tokenizer knows, keys of requests.
_NO_SECRETS: Final = lazy(tables.alternatives("no name"))
_NUMBERS_FOR: Final = lazy(r"(?i)(?:code|codes|otp|cvv|cvc|cvv2|cvc2|pin|pins|tan|pincode|passcode|暗証番号)$")
# What stands behind the name in the label of a form's field.
_FIELD: Final = lazy(tables.expression("field"))
_LABEL_ENDS: Final = lazy(r"[(:]|\s(?:for|of|on|to|für|de|del|du|от|für|di)\s")


def plain(name: str) -> str:
    """A name without case and separators."""
    return _OPERATOR_FORM.sub("", name).lower()


def hint(name: str) -> str:
    """What every text that has this name, without case and separators, has in its `spelling`."""
    return spelling(name)[:2]


def squeezed(text: str) -> str:
    """A text without separators: what `is_secret_name` joins is side by side. Some signs are separators or letters."""
    if text.isascii():
        bare = text.encode().translate(None, _NO_LETTERS).decode()
    else:
        bare = _OTHER_SEPARATORS.sub("", text)
    return bare if _LETTER_SIGNS.isdisjoint(bare) else f"{bare}\n{_SEPARATORS.sub('', bare)}"


def end_of_name(name: str) -> str:
    """The part of a name that decides whether it is a secret's."""
    end = name[-_MAX_END:]
    if len(name) == len(end):
        return name
    word = last_word(end).rstrip("0123456789")
    return name if not word or word in _QUALIFIERS else end


def spelling(text: str) -> str:
    """A text in which names are sought: in small letters, without accents, look-alikes as what they look like."""
    if not text.isascii():
        text = _without_accents(text.lower()).translate(_LOOKS_LIKE)
    return text.lower().translate(_STANDS_FOR)


def _without_accents(text: str) -> str:
    if text.isascii():
        return text
    # Marks go first: `normalize` puts a run of them in order in time that grows with the square of its length.
    bare = "".join(char for char in text if not unicodedata.combining(char) and char not in _MARKS_OF_NO_CLASS)
    bare = bare.translate(_LIGATURES)
    return "".join(char for char in unicodedata.normalize("NFKD", bare) if not unicodedata.combining(char))


def is_secret_name(name: str) -> bool:
    """Whether values under this name are secrets. Case, separators, look-alike letters and digits do not count."""
    name = name[:MAX_NAME]
    if _is_named(name):
        return True
    if _HAS_SPELLING.search(name) is None:
        return False
    seen = "".join(char for char in _without_accents(name) if char.isprintable() and char < "\U000e0000")
    if _is_named(seen):
        return True
    seen = seen.translate(_LOOKS_LIKE)
    return _is_named(seen) or _is_named(seen.translate(_STANDS_FOR))


def _is_named(name: str) -> bool:
    words = [word.lower() for word in _CAMEL.split(name) if word]
    while words:
        last = words[-1].rstrip("0123456789")
        whole = "".join((*words[:-1], last))
        if last in _LAST_WORDS or _ENDS.search(whole) or _FOREIGN_ENDS.search(whole):
            return _NO_SECRETS.search(whole) is None
        if last and words[-1] not in _QUALIFIERS:
            return False
        words.pop()
    return False


def is_secret_label(text: str) -> bool:
    """Whether what describes a field of a form means a secret's: `Password textbox`, `input#pin`, `PIN (4 digits)`."""
    head = _LABEL_ENDS.split(text[:MAX_NAME], maxsplit=1)[0]
    return is_secret_name(_FIELD.sub("", head)) or is_secret_name(_FIELD.sub("", text[:MAX_NAME]))


def is_word_for_secret(word: str) -> bool:
    """Whether a word is one of a language for a secret: `Passwort`, `PIN`."""
    seen = _without_accents(word[:MAX_NAME].lower())
    return seen in FOREIGN or seen in ("pin", "passphrase", "passcode", "otp", "credentials")


def has_numbers(name: str) -> bool:
    """Whether the secrets of this name are numbers: `pin`, `recoveryCode`."""
    return _NUMBERS_FOR.search(name[:MAX_NAME].rstrip("0123456789")) is not None


def last_word(name: str) -> str:
    """`ParameterValue`, `parameter_value`: `value`."""
    words = [word for word in _CAMEL.split(name[:MAX_NAME]) if word]
    return words[-1].lower() if words else ""
