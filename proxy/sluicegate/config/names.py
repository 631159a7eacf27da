"""The texts of the config file that have a grammar: keys, prefixes, roles, hosts, URLs, headers, hashes.

Like in `units.py`, an error says what is expected and never repeats the value.
"""

import base64
import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, WithJsonSchema, WrapValidator

from sluicegate.config.units import Expanded, problem, sound
from sluicegate.deferred import deferred_pattern

_SERVER_KEY = deferred_pattern(r"[a-z][a-z0-9-]{0,19}")
_KEY_NAME = deferred_pattern(r"[a-z0-9][a-z0-9._-]{0,63}")
_HASH = deferred_pattern(r"sha256:[0-9a-f]{64}")
_RING_KEY = deferred_pattern(r"[A-Za-z0-9_-]{42}[AEIMQUYcgkosw048]=?")
_ROLE = deferred_pattern(r"role:[^\s,\"]{1,128}")
_OWN_NAME = deferred_pattern(r"[A-Za-z0-9_-]{0,64}")
_TOOLSET = deferred_pattern(r"[a-z][a-z0-9-]{0,31}")
_SERVER_GLOB = deferred_pattern(r"(?s:!?[a-z0-9*?\[\]!-]+/.+)")
_PROFILE = deferred_pattern(r"(?!none$)[a-z][a-z0-9-]{0,31}")
_REPLICA = deferred_pattern(r"[A-Za-z0-9_-]{1,63}")
_HOST = deferred_pattern(r"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?")
_ORIGIN = deferred_pattern(r"[a-z][a-z0-9+.-]*://[^\s/?#@*]+")
_USER = deferred_pattern(r"https?://[^\s/?#@]*@")
_URL = deferred_pattern(r"https?://(?:[^\s/?#@]*@)?[^\s/?#@]+(?:/[^\s#]*)?(?:\?[^\s#]*)?")
_IMAGE = deferred_pattern(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}")
_VARIABLE = deferred_pattern(r"[^=\0]+")
# RFC 9110 5.5: a field value holds no CR, LF or NUL; other control characters are of no use either.
_FIELD = deferred_pattern(r"[^\0-\x08\n-\x1f\x7f]*")
_HEADER = deferred_pattern(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_PUBLIC_URL = deferred_pattern(
    r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"
)
_CONSOLE_URL = deferred_pattern(r"https?://(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::\d{1,5})?/console")
LOCAL_URL: Final = re.compile(r"http://(?:localhost|127\.0\.0\.1|\[::1\])(?:[:/]|$)", re.I)
RESERVED: Final = "sluice"
# What the transport and the protocol write themselves; a configured one would contradict them.
_OWN_HEADERS: Final = frozenset(
    {"accept", "connection", "content-encoding", "content-length", "content-type", "host", "last-event-id",
     "te", "trailer", "transfer-encoding", "upgrade"}
)  # fmt: skip


def is_server_key(text: str) -> bool:
    return _SERVER_KEY.fullmatch(text) is not None and text != RESERVED


def is_key_name(text: str) -> bool:
    return _KEY_NAME.fullmatch(text) is not None


def matching(pattern: re.Pattern[str], code: str, message: str) -> AfterValidator:
    return sound(lambda text: pattern.fullmatch(text), code, message)


def _hash(value: Any) -> Any:
    if not isinstance(value, str) or not _HASH.fullmatch(value):
        raise problem("bad-hash", "not a key hash; `sluice keys new NAME` prints one (sha256: and 64 hex digits)")
    return value


def _header_name(value: str) -> str:
    if not _HEADER.fullmatch(value):
        raise problem("bad-header", "not a header name")
    if value.lower() in _OWN_HEADERS or value.lower().startswith("mcp-"):
        raise problem("bad-header", f"{value} is written by Sluice itself")
    return value


def webhook_secret(value: SecretStr) -> SecretStr:
    check_webhook_secret(value.get_secret_value())
    return value


def check_webhook_secret(text: str) -> None:
    """Of the specification of Standard Webhooks. Raises `ValueError`, which does not repeat it."""
    try:
        key = base64.b64decode(text.removeprefix("whsec_"), validate=True)
    except ValueError:  # also for what is not ASCII
        key = b""
    if not 24 <= len(key) <= 64:
        raise problem("bad-secret", "not a webhook secret; write whsec_ and 24 to 64 bytes in base64")


def _is_ring(text: str) -> bool:
    lines = text.replace("+", "-").replace("/", "_").split()
    return bool(lines) and all(_RING_KEY.fullmatch(line) for line in lines)


def _argument(value: Any, check: Callable[[Any], str]) -> str:
    """Keeps what says which of its parts came from outside the file."""
    text = check(value)
    if "\0" in text:
        raise problem("wrong-value", "a NUL character cannot be passed on")
    return value if isinstance(value, Expanded) else text


Argument = Annotated[str, WrapValidator(_argument)]
VariableName = Annotated[str, matching(_VARIABLE, "bad-variable", "not the name of an environment variable")]
VariableValue = Annotated[
    SecretStr, sound(lambda text: "\0" not in text, "bad-variable", "a NUL character cannot be passed on")
]
HeaderName = Annotated[str, AfterValidator(_header_name)]
HeaderValue = Annotated[
    SecretStr, matching(_FIELD, "bad-header", "a header's value holds no control characters and no line breaks")
]
_IS_URL: Final = matching(_URL, "bad-url", "not a URL; write https://host/path")
_HAS_NO_USER: Final = sound(
    lambda url: not _USER.match(url), "bad-url", "no user name or password in a URL; put credentials into headers"
)
Url = Annotated[str, _IS_URL, _HAS_NO_USER]
SecretUrl = Annotated[SecretStr, _IS_URL, _HAS_NO_USER]
ConsoleUrl = Annotated[str, matching(_CONSOLE_URL, "bad-url", "not the console's URL; write https://host/console")]
PublicUrl = Annotated[
    str, matching(_PUBLIC_URL, "bad-url", "not a URL without query and user; write https://host/path/mcp")
]
Ring = Annotated[
    SecretStr,
    sound(_is_ring, "bad-keys", "not base64 keys of 32 bytes, a line each; `openssl rand -base64 32` makes one"),
]
KeyHash = Annotated[SecretStr, BeforeValidator(_hash)]
_NOT_RESERVED: Final = sound(lambda text: text != RESERVED, "reserved-name", f'"{RESERVED}" is reserved')
ServerKey = Annotated[
    str, _NOT_RESERVED,
    sound(is_server_key, "bad-server-key", "a server's key is 1 to 20 of a-z, 0-9 and -, and begins with a letter"),
]  # fmt: skip
Prefix = Annotated[
    str, _NOT_RESERVED,
    sound(lambda text: not text or is_server_key(text), "bad-prefix",
          "a prefix is 1 to 20 of a-z, 0-9 and -, and begins with a letter"),
    WithJsonSchema({"type": "string", "maxLength": 20}),
]  # fmt: skip
KeyName = Annotated[
    str, matching(_KEY_NAME, "bad-key-name", "a key's name is 1 to 64 of a-z, 0-9, . _ and -, not . _ - first")
]
ReplicaName = Annotated[
    str,
    matching(_REPLICA, "bad-name", "use up to 63 letters, digits, - and _"),
    WithJsonSchema({"type": "string", "maxLength": 63}),
]
ProfileName = Annotated[
    str,
    matching(_PROFILE, "bad-profile-name", "a profile's name is 1 to 32 of a-z, 0-9 and -, a letter first, not none"),
]
OwnName = Annotated[
    str, matching(_OWN_NAME, "bad-name", "a name is up to 64 of A-Z, a-z, 0-9, _ and -"),
    WithJsonSchema({"type": "string", "maxLength": 64}),
]  # fmt: skip
ToolsetName = Annotated[
    str, matching(_TOOLSET, "bad-toolset-name", "a toolset's name is 1 to 32 of a-z, 0-9 and -, a letter first")
]
HookName = Annotated[
    str, matching(_TOOLSET, "bad-hook-name", "a hook's name is 1 to 32 of a-z, 0-9 and -, a letter first")
]
ServerGlob = Annotated[
    str, matching(_SERVER_GLOB, "bad-glob", "write SERVER/GLOB, or !SERVER/GLOB for what is left out")
]
Role = Annotated[str, matching(_ROLE, "bad-role", "a role is written role:NAME")]
Image = Annotated[str, matching(_IMAGE, "bad-image", "not an image; write NAME, NAME:TAG or NAME@sha256:DIGEST")]
Host = Annotated[str, matching(_HOST, "bad-host", "not a host; write name or name:port, without scheme and path")]
Origin = Annotated[
    str, matching(_ORIGIN, "bad-origin", "not an origin; write scheme://host or scheme://host:port, no wildcard")
]
Glob = Annotated[str, Field(min_length=1)]
Roles = tuple[Role, ...]
