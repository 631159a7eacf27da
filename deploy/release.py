"""`make dist`: what a release consists of, in one folder. The same sources give the same bytes, wherever and whenever.

    python deploy/release.py FOLDER [--packages]     --packages: without the bill of materials

The wheel is built from the sdist, with the build backend of requirements.lock. The bundle for desktop clients holds the
wheel, and the versions of requirements.lock. All times in them are SOURCE_DATE_EPOCH: the variable, or the time of the
commit, or that of the sdist that these sources were unpacked from.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

ROOT = Path(__file__).resolve().parent.parent
VENDORED = ROOT / "proxy/sluicegate/console/static/manifest.json"
BUNDLE = ROOT / "deploy/bundle"
UV, CYCLONEDX = (Path(sys.executable).with_name(name) for name in ("uv", "cyclonedx-py"))


def epoch() -> str:
    if given := os.environ.get("SOURCE_DATE_EPOCH"):
        return given
    unpacked = ROOT / "PKG-INFO"  # only an sdist has it, and each of its files has the time it was built with
    if unpacked.is_file():
        return str(int(unpacked.stat().st_mtime))
    command = ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(folder: Path, environ: dict[str, str]) -> None:
    command = [UV, "build", "--no-build-isolation", "--python", sys.executable, "--no-create-gitignore"]
    subprocess.run([*command, "--quiet", "--offline", "--out-dir", folder, ROOT], check=True, env=environ)


def write_bundle(wheel: Path, moment: str) -> None:
    """An MCP bundle; its client installs the wheel with uv (modelcontextprotocol/mcpb, MANIFEST.md, "UV Runtime")."""
    name, version = wheel.name.split("-")[:2]
    manifest = json.loads((BUNDLE / "manifest.json").read_text("utf-8")) | {"version": version}
    parts = {
        "manifest.json": json.dumps(manifest, indent=2).encode() + b"\n",
        "pyproject.toml": bundle_project(wheel, version).encode(),
        "src/main.py": (BUNDLE / "src/main.py").read_bytes(),
        wheel.name: wheel.read_bytes(),
    }
    when = time.gmtime(int(moment))[:6]
    with zipfile.ZipFile(wheel.with_name(f"{name}-{version}.mcpb"), "w") as archive:
        for part, data in parts.items():
            about = zipfile.ZipInfo(part, when)
            about.create_system, about.external_attr = 3, 0o644 << 16
            archive.writestr(about, data)


def bundle_project(wheel: Path, version: str) -> str:
    """Its pyproject.toml: the wheel, and every version that the lock file has."""
    lines = (line.rstrip("\\ ") for line in (ROOT / "requirements.lock").read_text("utf-8").splitlines())
    pins = [line for line in lines if "==" in line and not line.startswith((" ", "#"))]
    return "\n".join([
        "[project]", 'name = "sluice-bundle"', f'version = "{version}"', 'requires-python = ">=3.11,<3.14"',
        'dependencies = ["sluicegate[keyring]"]', "", "[tool.uv]", "package = false", "constraint-dependencies = [",
        *(f"  {json.dumps(pin)}," for pin in pins), "]", "", "[tool.uv.sources]",
        f"sluicegate = {{ path = {json.dumps(wheel.name)} }}", "",
    ])  # fmt: skip


def bill_of_materials(wheel: Path, environ: dict[str, str]) -> str:
    """CycloneDX 1.6 of what an installation of the wheel is on this system, and of the modules that it carries."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([UV, "venv", "--quiet", "--python", sys.executable, folder], check=True, env=environ)
        python = Path(folder) / "bin/python"
        command = [UV, "pip", "install", "--quiet", "--python", python, "--constraint", ROOT / "requirements.lock"]
        subprocess.run([*command, f"{wheel}[otel,postgres]"], check=True, env=environ)
        options = ["--pyproject", ROOT / "pyproject.toml", "--output-reproducible", "--spec-version", "1.6"]
        command = [CYCLONEDX, "environment", *options, folder]
        bill = json.loads(subprocess.run(command, check=True, capture_output=True, env=environ).stdout)
    product, version = bill["metadata"]["component"], wheel.name.split("-")[1]
    product |= {"version": version, "purl": f"pkg:pypi/{product['name']}@{version}"}
    modules = list(vendored(json.loads(VENDORED.read_text("utf-8"))))
    bill["components"] += modules
    root = next(one for one in bill["dependencies"] if one["ref"] == product["bom-ref"])
    root["dependsOn"] = sorted([*root.get("dependsOn", ()), *(one["bom-ref"] for one in modules)])
    text = json.dumps(bill, indent=2, sort_keys=True) + "\n"
    if wrong := JsonStrictValidator(SchemaVersion.V1_6).validate_str(text):
        sys.exit(f"the bill of materials is not valid: {wrong}")
    return text


def vendored(rows: Iterable[dict[str, str]]) -> Iterable[dict[str, Any]]:
    """A package from npm for all of its files that the wheel carries."""
    packages: dict[str, dict[str, Any]] = {}
    for row in rows:
        package = packages.setdefault(row["package"], {
            "type": "library", "bom-ref": f"{row['package']}=={row['version']}", "name": row["package"],
            "version": row["version"], "purl": f"pkg:npm/{row['package'].replace('@', '%40')}@{row['version']}",
            "licenses": [{"license": {"id": row["license"]}}], "components": [],
        })  # fmt: skip
        hashes = [{"alg": "SHA-256", "content": row["sha256"]}]
        package["components"].append({"type": "file", "name": f"console/static/{row['path']}", "hashes": hashes})
    return packages.values()


def checksums(folder: Path) -> str:
    """As `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", action="store_true")
    options = parser.parse_args()
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty")
    environ = os.environ | {"SOURCE_DATE_EPOCH": epoch()}
    build(folder, environ)
    (wheel,) = folder.glob("*.whl")
    write_bundle(wheel, environ["SOURCE_DATE_EPOCH"])
    if not options.packages:
        name = "-".join(wheel.name.split("-")[:2])
        (folder / f"{name}.cdx.json").write_text(bill_of_materials(wheel, environ))
    (folder / "SHA256SUMS").write_text(checksums(folder))
    print((folder / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
