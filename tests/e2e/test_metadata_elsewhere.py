"""Metadata of a server that name addresses inside the operator's network: no byte goes there.

The addresses are real ones, in a network namespace of the test: what is blocked would be reached otherwise.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.metadata_elsewhere import CHANGES, METADATA, PARTS, PRIVATE, PUBLIC, STEADY
from peers.debian import provide

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system has network namespaces")
TESTS = Path(__file__).parents[1]


def test_metadata_lead_to_no_private_address(tmp_path: Path) -> None:
    provide("ip", "iproute2")
    inside = [str(TESTS / "e2e" / "metadata_elsewhere.py"), str(tmp_path)]
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [provide("unshare", "util-linux"), "--map-root-user", "--net", "--mount", sys.executable, *inside],
        env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["reached"] == sorted([PUBLIC, PRIVATE, METADATA, "127.0.0.1"])
    assert len(found["cases"]) == 5 * len(PARTS)
    for case in found["cases"]:
        assert not [text for text in case["said"] if "Logged in" in text], case
        if case["place"] == STEADY:  # what may be asked is asked
            assert case["met"] == [PUBLIC] and case["blocked"] == [], case
        elif case["place"] == CHANGES:  # the address that was judged, and no other
            assert case["met"] == [PUBLIC] and case["blocked"] == [PRIVATE], case
        else:
            assert case["met"] == [] and case["blocked"] == [case["place"].strip("[]")], case
            assert all("may not be reached" in text for text in case["said"]), case
