"""The specification's schemas, one for each revision, from the official conformance suite. Knows no message.

The suite has those of 2025-03-26 and later. The one of 2024-11-05 is what 2025-03-26 has without what its changelog
calls new; a test holds both against a checkout of the specification, where there is one.
"""

import json
import subprocess
from pathlib import Path
from typing import Any

from peers.install import CONFORMANCE, NODE

Json = dict[str, Any]

FIRST = "2024-11-05"
REVISIONS = (FIRST, "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
_AUDIO: Json = {"$ref": "#/definitions/AudioContent"}


def schemas() -> dict[str, Json]:
    """Made anew each time: they are the caller's."""
    command = [NODE, Path(__file__).with_name("published.mjs"), CONFORMANCE]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    later: dict[str, Json] = json.loads(text)
    return {FIRST: _before_2025_03_26(later["2025-03-26"])} | {name: _corrected(later[name]) for name in later}


def definitions_of(schema: Json) -> Json:
    found: Json = schema.get("$defs") or schema["definitions"]
    return found


def _before_2025_03_26(schema: Json) -> Json:
    """Without audio, annotations of tools, the capability for completions, words on progress, and batches."""
    definitions = definitions_of(_without_audio(schema))
    for name in ("AudioContent", "ToolAnnotations", "JSONRPCBatchRequest", "JSONRPCBatchResponse"):
        del definitions[name]
    del definitions["Tool"]["properties"]["annotations"]
    del definitions["ServerCapabilities"]["properties"]["completions"]
    del definitions["ProgressNotification"]["properties"]["params"]["properties"]["message"]
    messages = definitions["JSONRPCMessage"]
    messages["anyOf"] = [one for one in messages["anyOf"] if one.get("type") != "array"]
    return {**schema, "definitions": definitions}


def _without_audio(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_audio(part) for key, part in value.items()}
    return [_without_audio(part) for part in value if part != _AUDIO] if isinstance(value, list) else value


def _corrected(schema: Json) -> Json:
    """`minimum`, `maximum` and `default` of a number were once generated as integers; schema.ts says number."""
    for key in ("minimum", "maximum", "default"):
        part = definitions_of(schema).get("NumberSchema", {}).get("properties", {}).get(key)
        if part is not None and part.get("type") == "integer":
            part["type"] = "number"
    return schema
