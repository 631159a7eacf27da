"""The packages as people use them: pipx and uvx take the wheel and the sdist from a file, the official tool finds the
bundle valid and uv starts it, and the sdist passes its own quick tests from the tree it unpacks to. Prints a row for
each; dependencies come from the package indexes."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
UV = Path(sys.executable).with_name("uv")
MCPB = "@anthropic-ai/mcpb@2.1.2"  # the tool of those who made the format


def main(words: list[str]) -> int:
    """The exit code: 0 if every row is ok."""
    with tempfile.TemporaryDirectory(prefix="sluice-packages-") as name:
        folder = Path(name)
        subprocess.run([sys.executable, ROOT / "deploy/release.py", folder / "dist", "--packages"], check=True)
        wheel, sdist, bundle = (next((folder / "dist").glob(form)) for form in ("*.whl", "*.tar.gz", "*.mcpb"))
        results = [
            *(row(f"uvx --from {file.name}", uvx(file, folder)) for file in (wheel, sdist)),
            *(row(f"pipx install {file.name}", pipx(file, folder)) for file in (wheel, sdist)),
            row(f"bundle {bundle.name}", bundled(bundle, folder)),
            row(f"quick tests of {sdist.name}", quick_tests(sdist, folder)),
        ]
    return 0 if all(results) else 1


def row(what: str, failed: str) -> bool:
    print(f"{'FAILED' if failed else 'ok':8s}{what}" + (f"\n{failed}" if failed else ""), flush=True)
    return not failed


def failure(command: list[str | Path], folder: Path, environ: dict[str, str] | None = None) -> str:
    """The last lines of a command that fails, or nothing."""
    outside = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        command, cwd=folder, env=outside | (environ or {}), capture_output=True, text=True, check=False
    )
    return "" if done.returncode == 0 else "\n".join((done.stdout + done.stderr).splitlines()[-20:]) or "no output"


def uvx(file: Path, folder: Path) -> str:
    """No cached build of an earlier file with this name and version counts."""
    command = [UV, "tool", "run", "--python", sys.executable, "--refresh-package", "sluicegate", "--from", file]
    return failure([*command, "sluice", "grafana", "export", folder / f"uvx-{file.suffix}"], folder)


def pipx(file: Path, folder: Path) -> str:
    homes = {"PIPX_HOME": str(folder / "pipx"), "PIPX_BIN_DIR": str(folder / "bin")}
    command: list[str | Path] = [UV, "tool", "run", "--python", sys.executable, "pipx"]
    failed = failure([*command, "install", "--force", "--python", sys.executable, file], folder, homes)
    return failed or failure([folder / "bin/sluice", "grafana", "export", folder / f"pipx-{file.suffix}"], folder)


def bundled(bundle: Path, folder: Path) -> str:
    """As a desktop client starts it, on a machine without a config file."""
    unpacked, home = folder / "bundle", folder / "home"
    home.mkdir()
    with zipfile.ZipFile(bundle) as archive:
        archive.extractall(unpacked)
    if failed := failure(["npx", "--yes", MCPB, "validate", unpacked / "manifest.json"], folder):
        return failed
    about = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "accept", "version": "1"}}
    question = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": about}) + "\n"
    config = json.loads((unpacked / "manifest.json").read_text())["server"]["mcp_config"]
    command = [str(UV), *(word.replace("${__dirname}", str(unpacked)) for word in config["args"])]
    left_out = ("VIRTUAL_ENV", "PYTHONPATH", "XDG_CONFIG_HOME", "SLUICE_CONFIG")
    environ = {name: value for name, value in os.environ.items() if name not in left_out}
    environ |= {"HOME": str(home), "UV_PYTHON": sys.executable}
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True, env=environ) as process:
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        process.stdin.write(question)
        process.stdin.flush()
        answer = process.stdout.readline()
        process.stdin.close()
        said = process.stderr.read()
    is_ok = '"serverInfo"' in answer and (home / ".config/sluice/sluice.yaml").is_file()
    return "" if is_ok else f"{answer}\n{said[-2000:]}"


def quick_tests(sdist: Path, folder: Path) -> str:
    """In an environment of its own, as `make test` makes it: dependencies of the lock file, and the tree itself."""
    with tarfile.open(sdist) as packed:
        packed.extractall(folder / "src", filter="data")
    tree = folder / "src" / sdist.name.removesuffix(".tar.gz")
    failed = failure(["make", "test", "ARGS=--quick", f"PYTHON={sys.executable}"], tree)
    shutil.rmtree(tree)
    return failed
