"""Programs are found as the user's shell finds them, also by a client that has a window and no shell: a short PATH.

The programs are stand-ins that fail as the real ones do: `npx` is a script that wants a `node` on PATH.
"""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from e2e.desktop_clients import Desktop
from e2e.sluice_process import COMMAND, ROOT

SERVER = Path(__file__).parent / "asking_server.py"


def script(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def install(home: Path, manager: str) -> list[Path]:
    """Puts `npx` where that version manager does: the folders that the user's shell has on its PATH."""
    real = home / ".nvm" / "versions" / "node" / "v22.1.0" / "bin"
    script(real / "node", f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    script(real / "npx", f"#!/usr/bin/env node\nimport runpy\nrunpy.run_path({str(SERVER)!r}, run_name='__main__')\n")
    shims, opt = home / f".{manager}" / "shims", home / "opt" / "bin"
    if manager == "nvm":
        return [real]
    if manager == "fnm":
        shell = home / "run" / "fnm_multishells" / "1_2"
        shell.mkdir(parents=True)
        (shell / "bin").symlink_to(real)
        return [shell / "bin"]
    if manager == "volta":  # the name by which it is started says what it is
        script(home / ".volta" / "bin" / "volta-shim", f'#!/bin/sh\nPATH="{real}:$PATH" exec "$(basename "$0")" "$@"\n')
        (home / ".volta" / "bin" / "npx").symlink_to("volta-shim")
        (home / ".volta" / "bin" / "node").symlink_to(real / "node")
        return [home / ".volta" / "bin"]
    script(opt / manager, f'#!/bin/sh\nshift\nPATH="{real}:$PATH" exec "$@"\n')
    script(shims / "npx", f'#!/usr/bin/env bash\nexec {manager} exec npx "$@"\n')
    return [shims, opt]


@pytest.mark.parametrize("manager", ["nvm", "fnm", "volta", "asdf", "pyenv"])
def test_what_init_wrote_starts_under_a_short_path(
    tmp_path: Path, manager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if manager == "volta" and shutil.which("basename", path="/usr/bin:/bin") is None:
        pytest.skip("no basename in /usr/bin")
    folders = [str(folder) for folder in install(tmp_path, manager)]
    short = "/usr/bin:/bin"
    (tmp_path / "client.json").write_text(json.dumps({"mcpServers": {"asks": {"command": "npx", "args": ["-y", "x"]}}}))
    alone = {"HOME": str(tmp_path), "PYTHONPATH": str(ROOT / "proxy"), "NO_COLOR": "1"}
    shell = alone | {"PATH": os.pathsep.join([*folders, short])}
    config = tmp_path / "sluice.yaml"
    command = [*COMMAND, "init", "--from", str(tmp_path / "client.json"), "-c", str(config)]
    made = subprocess.run(command, env=shell, capture_output=True, text=True, timeout=60, check=True)
    assert "because clients do not see your shell's PATH" in made.stderr
    assert stat.S_IMODE(config.stat().st_mode) == 0o600
    if manager == "fnm":
        shutil.rmtree(tmp_path / "run")  # the shell has ended
    with config.open("a") as file:
        file.write("\nstate: {dir: state}\n")
    monkeypatch.setattr("e2e.desktop_clients.clean_environment", lambda: alone | {"PATH": short})
    desktop = Desktop([*COMMAND, "stdio", "-c", str(config)], "d")
    try:
        desktop.hello()
        tools = [tool["name"] for tool in desktop.ask("tools/list")["result"]["tools"]]
        assert "asks__name" in tools
    finally:
        desktop.leave()
        desktop.close()
