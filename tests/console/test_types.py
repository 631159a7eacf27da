"""The console's modules are checked by TypeScript: their JSDoc types, and what they use of the vendored libraries."""

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from peers import install
from peers.fleet import peers

from sluicegate.console.static_files import FOLDER

TYPES = Path(__file__).parent / "types"
HOME = install.ROOT / "console-types"
VENDORED = json.loads((FOLDER / "manifest.json").read_text())
__all__ = ["peers"]


@pytest.fixture(scope="module")
def typescript(peers: None) -> Path:
    """What `types/package-lock.json` pins, installed once for each version of the lock."""
    wanted = hashlib.sha256((TYPES / "package-lock.json").read_bytes()).hexdigest()
    stamp = HOME / "complete"
    if not stamp.is_file() or stamp.read_text() != wanted:
        HOME.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        for name in ("package.json", "package-lock.json"):
            shutil.copyfile(TYPES / name, HOME / name)
        try:
            install.run([*install.npm(), "ci"], cwd=HOME)
        except SystemExit as problem:
            pytest.skip(f"NO TYPESCRIPT: the types of the console's modules were not checked; {problem}")
        stamp.write_text(wanted)
    return HOME / "node_modules"


@pytest.fixture
def modules(typescript: Path, tmp_path: Path) -> Path:
    """Our modules, beside declarations that name the packages which the vendored files are of."""
    for path in FOLDER.glob("*.mjs"):
        shutil.copyfile(path, tmp_path / path.name)
    (tmp_path / "vendor").mkdir()
    for row in VENDORED:
        exports = f'export * from "{row["imported_as"]}";\n'
        if row["package"] == "htm":
            exports += 'export { default } from "htm";\n'
        (tmp_path / row["path"]).with_suffix(".d.mts").write_text(exports)
    shutil.copyfile(TYPES / "tsconfig.json", tmp_path / "tsconfig.json")
    (tmp_path / "node_modules").symlink_to(typescript)
    return tmp_path


def problems(modules: Path) -> list[str]:
    compiler = modules / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run([install.NODE, compiler, "-p", modules], capture_output=True, text=True, cwd=modules)
    return done.stdout.splitlines() + done.stderr.splitlines()


def test_the_modules_have_the_types_that_they_say(modules: Path) -> None:
    assert problems(modules) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('export const wrong = /** @type {number} */ ("text");', "TS2352"),
        ('import { nothing } from "./net.mjs"; export const wrong = nothing;', "TS2305"),
        ('import { useNothing } from "./vendor/hooks.mjs"; export const wrong = useNothing;', "TS2305"),
    ],
)
def test_a_wrong_type_is_found(modules: Path, line: str, why: str) -> None:
    (modules / "health.mjs").write_text((modules / "health.mjs").read_text() + line)
    (found,) = problems(modules)
    assert found.startswith("health.mjs") and why in found


def test_the_types_are_those_of_the_vendored_versions() -> None:
    given = json.loads((TYPES / "package.json").read_text())["devDependencies"]
    assert {row["package"]: row["version"] for row in VENDORED}.items() <= given.items()
    assert '"resolved"' not in (TYPES / "package-lock.json").read_text(), "no registry is named"
