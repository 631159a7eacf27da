"""The console's files: what is vendored is what its manifest says, nothing turns text into markup, and all of it is
small."""

import gzip
import hashlib
import json
import re
from pathlib import Path

import pytest

from sluicegate.console import POLICY
from sluicegate.console.static_files import BUNDLE, FOLDER, StaticFiles, bundle

VENDORED = json.loads((FOLDER / "manifest.json").read_text())
OWN = sorted(FOLDER.glob("*.mjs"))
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|createContextualFragment"
    r"|DOMParser|srcdoc|\beval\(|new Function|setTimeout\(\s*[\"'`]|javascript:|setHTML|\bstyle="
)


@pytest.mark.parametrize("row", VENDORED, ids=lambda row: row["path"])
def test_a_vendored_file_is_the_one_its_manifest_names(row: dict[str, str]) -> None:
    assert hashlib.sha256((FOLDER / row["path"]).read_bytes()).hexdigest() == row["sha256"]
    assert row["version"] and row["license"] and row["source"] and row["package"]


def test_every_vendored_file_stands_in_the_manifest() -> None:
    there = {f"vendor/{path.name}" for path in (FOLDER / "vendor").iterdir()}
    assert there == {row["path"] for row in VENDORED}


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_no_module_of_ours_has_a_way_from_text_to_markup(path: object) -> None:
    text = (FOLDER / str(path)).read_text()
    assert not SINKS.findall(text)
    assert re.findall(r'from "(?!\./)', text) == [], "imports by path alone"


def test_all_modules_are_served_as_one_that_imports_nothing() -> None:
    files = StaticFiles()
    file = files.get(files.digest, BUNDLE)
    assert file is not None and gzip.decompress(file.packed) == file.body
    text = file.body.decode()
    assert re.findall(r"^\s*(?:import|export)\b", text, re.M) == []
    assert text.count("// vendor/") == len(VENDORED)
    assert [text.count(f"// {path.name}\n") for path in OWN] == [1] * len(OWN)
    assert "://" not in re.sub(r"http://www\.w3\.org/\S+", "", text), "no other host"


def test_a_module_that_cannot_be_bundled_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    cases = {
        "export * from './other.mjs'": "cannot be bundled",
        'import "./main.mjs"': "cannot be bundled",
        'import { a } from "./main.mjs";': "import one another",
    }
    for text, why in cases.items():
        (tmp_path / "main.mjs").write_text(text)
        with pytest.raises(ValueError, match=why):
            bundle(tmp_path)


@pytest.mark.parametrize("name", ["../sessions.py", "vendor/../manifest.json", "manifest.json", "/etc/passwd", ""])
def test_no_name_leads_out_of_the_folder(name: str) -> None:
    files = StaticFiles()
    assert files.get(files.digest, name) is None and files.get("another", BUNDLE) is None


def test_the_files_are_small_and_the_policy_is_strict() -> None:
    assert len((FOLDER / "console.css").read_bytes()) <= 20 * 1024
    assert sum(len(path.read_text().splitlines()) for path in OWN) <= 2_000
    assert sum(path.stat().st_size for path in FOLDER.rglob("*") if path.is_file()) <= 250 * 1024
    assert "unsafe" not in POLICY and "trusted-types 'none'" in POLICY and "default-src 'none'" in POLICY
