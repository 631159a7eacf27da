"""What the front says of itself: many servers' discover values as one, or one server's as it is.

Pure. Capabilities are declared only where calls, lists and notifications are really relayed: what is unknown
(`experimental`, most `extensions`) is dropped, because a capability that the proxy cannot carry is a broken promise.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from sluicegate.deferred import deferred_pattern
from sluicegate.protocol.jsonrpc import Json, inside

MAX_INSTRUCTIONS: Final = 4096
_LINE_END: Final = deferred_pattern(r"\r\n|[\n\v\f\r\x1c-\x1e\x85\u2028\u2029]")  # whatever a reader takes for one
# Fixed: a legacy client learns capabilities once, at initialize, and servers come and go after that.
MERGED: Final[Json] = {
    "tools": {"listChanged": True},
    "prompts": {"listChanged": True},
    "resources": {"listChanged": True},
    "completions": {},
    "logging": {},
}
# MCP Apps (SEP-1865) are tools and resources, which are relayed, and say themselves what belongs together.
CARRIED: Final = frozenset({"io.modelcontextprotocol/ui"})
_SUBSCRIBING: Final[Json] = {**MERGED, "resources": {"subscribe": True, "listChanged": True}}
NAMING: Final = (
    "Several MCP servers stand behind this one. The tool or prompt `x` of the server with prefix `s` is named `s__x` "
    "here, and its resource `uri` is `s+uri`; the texts below use each server's own names."
)
_MISSING: Final = {
    "starting": "Still starting: {}.", "failed": "Not available: {}.", "hung": "Started and not answering: {}.",
}  # fmt: skip


def merged(
    abouts: Iterable[tuple[str, Json]], supported: Sequence[str], ttl_ms: int, subscribes: bool = False,
    missing: Mapping[str, str] = MappingProxyType({}),
) -> Json:  # fmt: skip
    """The discover value of a front with many servers. `abouts` are (server key, discover value) in order;
    `subscribes` is whether one can subscribe to resources of any of them; `missing` has servers that are in no list,
    and why: `starting`, `failed` or `hung`."""
    abouts = list(abouts)
    extensions: Json = {name: {} for _, about in abouts for name in _carried(about.get("capabilities"))}
    capabilities = _SUBSCRIBING if subscribes else MERGED
    texts = (_section(key, about["instructions"]) for key, about in abouts if _has_text(about))
    sections = [NAMING, *_missing(missing), *texts]
    return _value({**capabilities, **_extensions(extensions)}, "\n\n".join(sections), supported, ttl_ms)


def mirrored(about: Json | None, supported: Sequence[str], ttl_ms: int) -> Json:
    """The discover value of a front with one server and no prefix. Of a server that was never reached nothing
    is known: then everything is declared, because a legacy client asks only once."""
    instructions = about["instructions"] if about and _has_text(about) else None
    return _value(relayed(about["capabilities"]) if about else _SUBSCRIBING, instructions, supported, ttl_ms)


def relayed(capabilities: Json) -> Json:
    """The part of a server's capabilities that the proxy carries, flag by flag."""
    flags = {key: _flags(key, capabilities[key]) for key in MERGED if isinstance(capabilities.get(key), dict)}
    return flags | _extensions(_carried(capabilities))


def _carried(capabilities: Any) -> Json:
    declared = inside(capabilities, "extensions")
    if not isinstance(declared, dict):
        return {}
    return {name: value for name, value in declared.items() if name in CARRIED and isinstance(value, dict)}


def _extensions(extensions: Json) -> Json:
    return {"extensions": extensions} if extensions else {}


def _flags(key: str, declared: Json) -> Json:
    return {flag: True for flag in _SUBSCRIBING[key] if declared.get(flag) is True}


def _value(capabilities: Json, instructions: str | None, supported: Sequence[str], ttl_ms: int) -> Json:
    text: Json = {} if instructions is None else {"instructions": instructions}
    return {
        "supportedVersions": list(supported),
        "capabilities": capabilities,
        **text,
        "ttlMs": ttl_ms,
        "cacheScope": "private",
    }


def _missing(missing: Mapping[str, str]) -> Iterator[str]:
    """One sentence for each reason."""
    text = " ".join(
        words.format(", ".join(keys))
        for why, words in _MISSING.items()
        if (keys := [key for key in missing if missing[key] == why])
    )
    if text:
        yield _cut(f"Not every server has listed its tools. {text} A server's tools are listed once it has started.")


def _has_text(about: Json) -> bool:
    text: Any = about.get("instructions")
    return isinstance(text, str) and bool(text.strip())


def _section(key: str, text: str) -> str:
    """What one server says, as a quotation: no heading, fence or comment in it begins or swallows what is another's."""
    return f"## {key}\n\n" + "\n".join(f"> {line}".rstrip() for line in _LINE_END.split(_cut(text)))


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_INSTRUCTIONS].decode("utf-8", "ignore")
