"""`make dist`: what a release consists of, in one folder. The same sources give the same bytes, wherever and whenever.

    python deploy/release.py FOLDER [--packages]     --packages: the sdist and the wheel alone

The wheel is built from the sdist, with the build backend of requirements.lock. All times in them are SOURCE_DATE_EPOCH:
the variable, or the time of the commit, or that of the sdist that these sources were unpacked from.
"""

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
UV = Path(sys.executable).with_name("uv")


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
    (folder / "SHA256SUMS").write_text(checksums(folder))
    print((folder / "SHA256SUMS").read_text(), end="")


if __name__ == "__main__":
    main()
