"""The wheel, the sdist and what is beside them: the same sources give the same bytes, and all carry what they need."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
import tomllib
import zipfile
from email.parser import BytesParser
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from trove_classifiers import classifiers as CLASSIFIERS

from sluicegate import __version__

ROOT = Path(__file__).parents[2]
VENDORED = json.loads((ROOT / "proxy/sluicegate/console/static/manifest.json").read_text())
EPOCH = "1763900000"  # an even second, as the times in a zip are


def sources() -> list[Path]:
    """All files that a checkout has. An unpacked sdist has no git, and no files but these."""
    if (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]
    left_out = {"__pycache__", ".venv", ".peers", ".mypy_cache", ".ruff_cache", ".pytest_cache", "build", "dist"}
    return [path for path in ROOT.rglob("*") if path.is_file() and not left_out & set(path.relative_to(ROOT).parts)]


def build_in(folder: Path, files: list[Path], *words: str, umask: int, age: float, zone: str) -> Path:
    """Copies the files in their order, with other times and modes, and builds them there."""
    moment = time.time() - age
    for file in files:
        target = folder / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
        target.chmod((0o666 | file.stat().st_mode & 0o111) & ~umask)
        os.utime(target, (moment, moment))
    (link := folder / "docs/explanation/architecture.md").unlink()
    link.symlink_to("../../ARCHITECTURE.md")
    made = folder.with_name(f"{folder.name}-made")
    environ = os.environ | {"SOURCE_DATE_EPOCH": EPOCH, "TZ": zone, "PYTHONHASHSEED": zone[-1]}
    command = [sys.executable, "deploy/release.py", made, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, env=environ, umask=umask)
    return made


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_in(tmp_path_factory.mktemp("first") / "src", sources(), umask=0o022, age=0, zone="UTC+0")


@pytest.fixture(scope="module")
def wheel(made: Path) -> Path:
    return next(made.glob("*.whl"))


@pytest.fixture(scope="module")
def sdist(made: Path) -> Path:
    return next(made.glob("*.tar.gz"))


def test_two_builds_in_other_folders_at_other_times_are_the_same_bytes(made: Path, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "down"
    again = build_in(folder, sources()[::-1], "--packages", umask=0o077, age=86400 * 400, zone="XYZ-9")
    first, second = ((one / "SHA256SUMS").read_text().splitlines() for one in (made, again))
    assert len(second) == 3 and set(second) < set(first)


def test_the_bundle_has_the_wheel_and_pins_what_it_needs(made: Path, wheel: Path) -> None:
    with zipfile.ZipFile(next(made.glob("*.mcpb"))) as archive:
        assert {(one.date_time, one.external_attr >> 16) for one in archive.infolist()} == {
            (time.gmtime(int(EPOCH))[:6], 0o644)
        }
        manifest = json.loads(archive.read("manifest.json"))
        project = tomllib.loads(archive.read("pyproject.toml").decode())
        assert archive.read(wheel.name) == wheel.read_bytes()
        assert manifest["server"]["entry_point"] in archive.namelist()
    assert manifest["version"] == project["project"]["version"] == __version__
    assert project["tool"]["uv"]["sources"] == {"sluicegate": {"path": wheel.name}}
    pinned = {Requirement(line).name for line in project["tool"]["uv"]["constraint-dependencies"]}
    needed = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {canonicalize_name(Requirement(line).name) for line in needed} <= pinned and "keyring" in pinned


def test_the_checksums_are_those_of_every_file(made: Path) -> None:
    done = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=made, capture_output=True, text=True, check=True)
    checked = {line.partition(":")[0] for line in done.stdout.splitlines()}
    assert checked == {path.name for path in made.iterdir()} - {"SHA256SUMS"}


def test_no_file_of_a_package_has_a_time_or_a_mode_of_this_machine(wheel: Path, sdist: Path) -> None:
    moment = time.gmtime(int(EPOCH))[:6]
    with zipfile.ZipFile(wheel) as archive:
        assert {one.date_time for one in archive.infolist()} == {moment}
        assert {one.external_attr >> 16 & 0o777 for one in archive.infolist()} <= {0o644, 0o755}
    with tarfile.open(sdist) as packed:
        members = packed.getmembers()
        assert {(one.mtime, one.uid, one.uname) for one in members} == {(int(EPOCH), 0, "")}
        assert {one.mode for one in members if one.isfile()} <= {0o644, 0o755}


def test_the_sdist_has_every_file_of_a_checkout_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as packed:
        names = {one.name.partition("/")[2] for one in packed.getmembers() if not one.isdir()}
    assert names == {str(file.relative_to(ROOT)) for file in sources()} | {"PKG-INFO"}


def test_the_wheel_has_the_program_and_what_it_reads(wheel: Path) -> None:
    package = ROOT / "proxy"
    code = {str(file.relative_to(package)) for file in sources() if file.is_relative_to(package)}
    grafana = {"README.md", "dashboards/sluice.json", "prometheus/rules.yaml", "prometheus/tests.yaml"}
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert code | {f"sluicegate/grafana/{name}" for name in grafana} <= names
    extra = {name.split("/")[1] for name in names - code}
    assert extra == {"grafana", "policies"}, "no tests, no scratch files"


def test_the_wheel_has_the_notices_of_all_that_it_carries(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name.partition("/licenses/")[2]: name for name in archive.namelist() if "/licenses/" in name}
        notices = archive.read(held["proxy/sluicegate/console/THIRD-PARTY-NOTICES.txt"]).decode()
        metadata = BytesParser().parsebytes(archive.read(f"{wheel.name.partition('-py3')[0]}.dist-info/METADATA"))
    assert "LICENSE" in held
    for row in VENDORED:
        assert f"{row['package']} {row['version']}" in notices and Path(row["path"]).name in notices
        assert row["license"] in metadata["License-Expression"].split(" AND ")
    assert "gitleaks" in notices


def test_the_classifiers_exist_and_name_only_systems_that_tests_run_on() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(project["classifiers"]) <= CLASSIFIERS
    systems = [one for one in project["classifiers"] if one.startswith("Operating System ::")]
    assert systems == ["Operating System :: POSIX :: Linux"]
    assert "macOS and Windows" in (ROOT / "docs/explanation/limits.md").read_text()


def test_the_bill_of_materials_names_each_requirement_and_each_module_of_others(made: Path) -> None:
    bill = json.loads(next(made.glob("*.cdx.json")).read_text())
    assert not JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(bill))
    assert str(made.parent) not in json.dumps(bill) and "file:" not in json.dumps(bill)
    packages = {one["purl"].rpartition("@")[0]: one for one in bill["components"]}
    for requirement in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]:
        assert f"pkg:pypi/{Requirement(requirement).name.replace('_', '-').lower()}" in packages, requirement
    files = [
        (part["name"], part["hashes"][0]["content"])
        for one in packages.values() if one["purl"].startswith("pkg:npm/") for part in one["components"]
    ]  # fmt: skip
    assert sorted(files) == sorted((f"console/static/{row['path']}", row["sha256"]) for row in VENDORED)
    assert bill["metadata"]["component"]["version"] == __version__
    assert not {"pytest", "hatchling", "pip"} & {one["name"] for one in bill["components"]}


def test_the_changelog_has_the_version_that_is_built() -> None:
    assert re.search(rf"^## {re.escape(__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.M)


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which the wheel is what `sluicegate` is. Its dependencies are those of this test."""
    folder = tmp_path_factory.mktemp("site")
    command = [Path(sys.executable).with_name("uv"), "pip", "install", "--offline", "--no-deps", "--target", folder]
    subprocess.run([*command, "--python", sys.executable, wheel], check=True, capture_output=True)
    environ = os.environ | {"PYTHONPATH": str(folder)}
    shown = [sys.executable, "-P", "-c", "import sluicegate; print(sluicegate.__file__)"]
    found = subprocess.run(shown, env=environ, capture_output=True, text=True, check=True, cwd="/").stdout
    assert Path(found.strip()).is_relative_to(folder)
    return environ


def sluice(installed: dict[str, str], *words: str | Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-m", "sluicegate", *words]
    return subprocess.run(command, env=installed, capture_output=True, text=True, check=False, cwd="/")


def test_the_wheel_alone_writes_the_dashboard_and_the_alerts(installed: dict[str, str], tmp_path: Path) -> None:
    target = tmp_path / "monitoring"
    done = sluice(installed, "grafana", "export", target, "--json")
    assert done.returncode == 0, done.stderr
    written = [Path(name).relative_to(target) for name in json.loads(done.stdout)["files"]]
    for name in written:
        assert (target / name).read_bytes() == (ROOT / "grafana" / name).read_bytes()
    files = (path for path in (ROOT / "grafana").rglob("*") if path.is_file() and path.parent.name != "__pycache__")
    there = {path.relative_to(ROOT / "grafana") for path in files}
    assert there - set(written) == {Path("build.py"), Path("panels.yaml")}


def test_the_wheel_alone_has_its_policies(installed: dict[str, str], tmp_path: Path) -> None:
    for name in ("open", "personal", "team"):
        (tmp_path / "sluice.yaml").write_text(f"version: 1\npolicy: {{use: {name}}}\nservers: {{}}\n")
        done = sluice(installed, "policy", "test", "-c", tmp_path / "sluice.yaml")
        assert done.returncode == 0, done.stdout + done.stderr
