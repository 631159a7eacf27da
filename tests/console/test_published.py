"""What is vendored is what the registry has, and the console costs nothing where it is off."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from e2e.sluice_process import ROOT, settings_for, write_config
from peers import install
from peers.fleet import peers

from sluicegate.console.static_files import FOLDER

VENDORED = json.loads((FOLDER / "manifest.json").read_text())
PACKAGES = sorted({(row["package"], row["version"]) for row in VENDORED})
MOST = 250 * 1024
__all__ = ["peers"]


@pytest.fixture(scope="module", params=PACKAGES, ids=lambda one: one[0])
def package(request: pytest.FixtureRequest, peers: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """Its name, and its tarball as npm gets it from the registry."""
    name, version = request.param
    folder = tmp_path_factory.mktemp("package")
    try:
        install.run([*install.npm(), "pack", f"{name}@{version}", "--pack-destination", str(folder)], cwd=folder)
    except SystemExit as problem:
        print(f"\nVENDORED FILES ARE NOT COMPARED WITH THE REGISTRY: {name} {version}: {problem}", file=sys.__stderr__)
        pytest.skip(f"NO REGISTRY: {name} {version} was not compared; {problem}")
    (tarball,) = folder.glob("*.tgz")
    return name, tarball


def test_a_vendored_file_is_that_of_its_package_in_the_registry(package: tuple[str, Path]) -> None:
    name, tarball = package
    with tarfile.open(tarball) as archive:
        about = json.load(archive.extractfile("package/package.json"))  # type: ignore[arg-type]
        rows = [row for row in VENDORED if row["package"] == name]
        for row in rows:
            member = archive.extractfile(row["source"])
            assert member is not None and hashlib.sha256(member.read()).hexdigest() == row["sha256"], row["path"]
            assert (about["name"], about["version"], about["license"]) == (name, row["version"], row["license"])
    assert rows


def test_the_wheel_grows_by_little_for_the_console(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [uv, "build", "--wheel", "--quiet", "--no-build-isolation", "--out-dir", tmp_path, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        sizes = {one.filename: one.compress_size for one in archive.infolist() if "/console/" in one.filename}
    assert "sluicegate/console/static/manifest.json" in sizes and sum(sizes.values()) <= MOST


@pytest.mark.parametrize("is_enabled", [True, False])
def test_where_the_console_is_off_nothing_of_it_is_imported(tmp_path: Path, is_enabled: bool) -> None:
    file = write_config(settings_for({"servers": {}, "console": {"enabled": is_enabled}}, tmp_path), tmp_path)
    command = [sys.executable, "-X", "importtime", "-m", "sluicegate", "serve", "-c", str(file)]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    assert process.stderr is not None
    imported = set()
    with process:
        for line in process.stderr:
            imported.add(line.rpartition("|")[2].strip())
            if line.split()[:1] == ["admin"]:  # it says where it answers
                process.terminate()
    assert "sluicegate.app.admin_app" in imported
    assert any(name.startswith("sluicegate.console") for name in imported) == is_enabled
