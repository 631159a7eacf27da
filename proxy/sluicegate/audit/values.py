"""What stands where a secret would, and is none: references, masks, placeholders, labels, types. Pure."""

import re
from collections.abc import Callable
from typing import Any, Final

from sluicegate.audit.names import is_secret_name, is_word_for_secret, last_word

_MOST: Final = 512  # characters of a text that is no value
# Words about secrets, and settings of requests.
NO_VALUES: Final = frozenset(
    "must is are was were be been be the a an to in for of on off if it and or see not no yes none null nil "
    "undefined true "
    "false required optional invalid expired missing empty wrong incorrect malformed disabled enabled revoked "
    "rejected strict unset str string int integer number bool boolean bytes text any object array type varchar char "
    "field oauth oauth2 basic bearer digest token tokens password passwords secret secrets strong weak again with "
    "from by "
    "at has have should can cannot will may changed default new function await return raise self this include omit "
    "accepted granted denied allowed essential rbac "
    "same-origin inherit visible hidden unknown jwt totp otp webauthn passkey hs256 rs256 es256 sha256 sha512 bcrypt "
    "argon2id argon2 scrypt md5 utf8 utf-8 base64 hex plain plaintext api_key apikey x-api-key authorization header "
    "cookie query env file vault manual auto always never n/a na tbd todo ok error failed success active inactive "
    "read write minimum maximum mindestens höchstens minimal maximal mínimo máximo "
    "current latest awscurrent masked redacted removed secure insecure lax and but username user admin_password email "
    "ist der die das ein eine wird und nicht darf muss est le la les doit una el es debe è il не и を は が".split()
)
_NAME: Final = r"[A-Za-z_][\w.\-]{0,100}"
_REFERENCES: Final = (
    # of shells, templates and build systems; a default behind the name is a value
    rf"\$\{{(?:(?:env|input|inputs|vault|secrets?|ssm|file|config|sops|op|var|aws\w*|azure\w*|gcp\w*):)?{_NAME}(?::?\?[^{{}}\n]{{0,200}}|:?-?)?\}}",
    r"`[^`\n]{0,200}`",
    r"\$\{\{[^{}\n]{0,200}\}\}", r"\{\{(?![^{}\n]{0,200}default)[^{}\n]{0,200}\}\}", r"\{%[^{}\n]{0,200}%\}",
    r"\$\([^\n]{0,200}?\)", r"\$\((?:[^()\n]"
                            r"|\([^()\n"
                            r"]{0,100}\)){0,200}\)", r"\$\$?(?:env:|Env:|ENV:)?(?:[A-Z][A-Z0-9_]{0,100}"
                             r"|[A-Za-z_]{1,100})(?![\w.!#%+*^]|-(?!>))",
    r"%%?[A-Z][A-Z0-9_]{0,100}%%?", r"%\(\w{1,100}\)s", r"%[sdvqr]", r"%\{[^{}\n]{0,200}\}", r"[#@]\{[^{}\n]{0,200}\}",
    rf"\{{(?:{_NAME})?\}}", r"\$\d{1,3}", r"\?", r"[:@][A-Za-z_]{1,100}", r"__\w{1,100}__", r"@@\w{1,100}@@",
    r"<%=?(?![^\n]{0,200}(?:fetch|\|\|))[^\n]{0,200}?%>", r"<(?![?%])"
     r"/?[^<>\n]{0,100}>", r"\[[A-Za-z_ \-]{0,60}\]", r"\[redacted:[0-9a-f]{1,64}\]",
    r"id=[\w.\-]{1,40}", r"(?i:max-age|path|domain|expires|samesite)=[^\s;]{1,60}",
    # of stores of secrets
    r"(?:(?:op|vault|keyring|secretref|secretsmanager|ssm|sm|awssm|gcpsm|akv|doppler|infisical|bws|env|file)://|"
    r"(?:vault|keyring|secretref|ssm|file):(?=[/A-Z_a-z\-]{2})|env:(?=[A-Z_]{2}))[\w./#:?=\-]{1,200}",
    r"arn:aws[\w\-]{0,10}:(?:secretsmanager|ssm"
    r"|kms)[\w:/.\-]{1,200}", r"!(?:Ref|Sub|GetAtt|vault|env|secret|reference)\b[^\n]{0,200}",
    r"@Microsoft\.KeyVault\([^\n]{0,200}\)", r"projects/"
     r"[\w\-]{1,60}/secrets/[\w/\-]{1,200}", r"(?:\./|/run/|/var/run/|/etc/|~/)[\w./\-]{1,200}",
    # masks and examples
    r"[\w\-.]{0,16}?(?:\*{3,200}|[xX]{4,200}"
    r"|[•●·∙█]{2,200})[\w\-]{0,6}", r"(?:\w{0,4}|[\w\-]{1,12}[-_])(?:\.{3,20}"
     r"|…)[\w\-]{0,6}", r"\*{1,2}", r"[-=]{2,40}", r"_{2,40}",
    r"(?i:(?:sk|pk|ghp|xoxb|key|token)?[-_]?(?:your|insert|enter|replace|put|add|paste|example|sample"
    r"|dummy|fake|placeholder)"
    r"[-_ ][a-z_\- ]{1,80})", r"(?i:[a-z_\-]{1,60}[-_](?:here|placeholder"
     r"|goes[-_]here))", r"(?i:redacted|masked|hidden|placeholder|filtered|omitted|removed|"
    r"sanitized|withheld|secret-value|example|sample|sensitive|encrypted|protected)",
    r"[\w+/]{4,60}EXAMPLE(?:KEY)?",
    r"\d{1,6} (?:bytes?|characters?|chars?|bits?|digits?)",
)  # fmt: skip
_REFERENCE: Final = re.compile(rf"(?:{'|'.join(_REFERENCES)})(?=[\s\"'`,;)\}}\]&|<@:!?/.\\\[(]|->|$)")
_MIX: Final = re.compile(r"(?:[A-Za-z:_/. \-]{0,20}\$\{\{?[\w. \-:]{1,100}\}\}?){1,4}")
_SCHEME: Final = re.compile(r"(?i:(?:bearer|basic|token|digest|apikey)[ \t]{1,4}|pass:)(?=\S)")
_PROSE: Final = re.compile(
    r"(?i)\b(?:the|of|an?|is|are|be|your|you|to|for|and|or|not|by|from|in|on|der|die|das|des|ist|muss|von|zum|für"
    r"|ein|eine|ihr|"
    r"le|la|les|du|de|votre|est|pour|el|los|su|tu|para|es|il|della|è|het|uw|voor)\b"
)
_SAYS: Final = re.compile(r"(?i)(?:is|was|must|has|may|can|cannot|should|not|no) [^\d\W_][^\d_]{0,100}")
_LONG: Final = re.compile(r"[^\W\d_]{3,}")
_WEAK: Final = re.compile(
    r"(?i)\b(?:must|have|has|at|least|too|this|that|will|can|cannot|should|than|with|when|only|required|characters"
    r"|invalid|"
    r"incorrect|minimum|maximum|was|were|already|again|does|match|mindestens|zeichen|darf|kann)\b"
)
_WORDS: Final = re.compile(r"[^\W\d_]{1,40}(?:[ '][^\W\d_]{1,40}){0,12}[ ]?[?!.:…*]{0,3}")
_LABEL: Final = re.compile(r"[^\W\d_]{2,40}(?:[ '’\-][^\W\d_]{1,40}){0,30}[ ]?[?!.:…*]{0,3}")
_LANGUAGE: Final = re.compile(r"[a-z]{2}(?:[-_][A-Za-z]{2,4})?")
_ABOUT_SECRET: Final = re.compile(r"(?i)pass|pwd|pin|token|secret|key|code")
_MAX_LABELS: Final = 256
METAVAR: Final = re.compile(r"[A-Z]{2,20}(?:[_-][A-Z]{1,20}){0,5}\.{0,3}")
SLUG: Final = re.compile(r"(?:(?:[A-Za-z]{1,40}+|v?\d{1,2}(?![0-9]))(?:[-_./ ]|$)){1,12}")
_MIXED: Final = re.compile(r"(?=[^\s]{0,64}[A-Za-z])(?=[^\s]{0,64}[0-9!#%^&*+])[^\s/:]{5,}$")
_NUMBER: Final = re.compile(r"\d{3,12}$")
_MEASURE: Final = re.compile(
    r"(?i)v?\d+(?:\.\w+)+$|\d+-?[a-z]{1,2}$|\d+-[a-z]+s?$|\d{4}-\d\d\S*$|\d+(?:st|nd|rd|th)$|"
    r"(?:rs|hs|es|ps|sha|md|aes|oauth|ipv|utf|http|step|node|line|level|rfc|base|tls|v|part|page|room|day|week"
    r"|phase|x|ed|p|pkcs|cve|iso)-?\d[\d.\-]*[a-z]?$|"
    r"(?-i:[a-z]{1,5}[-_]?\d{1,2}|[A-Z]{1,5}-\d{1,5})$|[a-z\-]+[!*]+$"
)


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
    """Whether a word of a sentence is none of a language: mixed, and no measure, version, date or name of a "
    "standard."""
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
_TELLING: Final = frozenset(
    "type format description title minlength maxlength pattern items properties required nullable writeonly readonly "
    "deprecated $ref anyof oneof allof additionalproperties name kind namespace key keys ref refs version optional "
    "file external "
    "path source valuefrom secretkeyref secretref configmapkeyref remoteref vault env label placeholder hint "
    "message scope "
    "scopes scheme flow flows in algorithm alg issuer audience samesite domain expires expiresin expirydate maxage "
    "length "
    "strength rotation policy provider engine mode method field property autocomplete minlen maxlen help example_hint "
    "roles permissions groups display_name displayname tooltip error errors secretname claimname defaultmode "
    "tokenurl authorizationurl "
    "bearerformat created createdat updated updatedat".split()
)
# A connection without a password: a URL, or names and values.
_CONNECTION_NAME: Final = re.compile(r"(?i)(?:dsn|connection[_\- ]?string)$")
_SETTING: Final = r"[\w \-]{1,40}=[^;=]{0,100}"
_CONNECTION: Final = re.compile(rf"[\w+\-]{{2,30}}://\S{{1,500}}|(?:{_SETTING};){{1,20}}(?:{_SETTING})?")
_CONNECTION_SECRET: Final = re.compile(
    r"(?i)://[^/@\s]*:[^/@\s]*@|(?:pass|pwd|secret|token|key|sig|auth|cred)\w*\s*=(?!\w*/)|://[\w\-]{16,}@"
)
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
        return not is_reference(value)  # a passphrase is prose, too
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

