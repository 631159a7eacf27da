"""`${secret:NAME}` with a real keyring: GNOME's, on a message bus of its own."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess, Popen

import pytest
from command_line import run
from e2e.sluice_process import COMMAND, clean_environment
from peers.debian import provide

SECRET = "ghp_0123456789abcdefghij"


@dataclass
class Desktop:
    """A home with a keyring that is unlocked."""

    home: Path
    env: dict[str, str]

    @property
    def config(self) -> Path:
        return self.home / ".config" / "sluice" / "sluice.yaml"

    def sluice(self, *words: str, stdin: str = "", code: int = 0) -> "CompletedProcess[str]":
        done = subprocess.run([*COMMAND, *words], env=self.env, cwd=self.home, input=stdin, capture_output=True,
                              text=True, timeout=60, check=False)  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        assert SECRET not in done.stdout + done.stderr
        return done

    def secrets(self) -> dict[str, bool]:
        rows = json.loads(self.sluice("secret", "list", "--json").stdout)["secrets"]
        return {row["name"]: row["there"] for row in rows}


@pytest.fixture
def desktop(tmp_path: Path) -> Iterator[Desktop]:
    bus, keyring = provide("dbus-daemon", "dbus-daemon"), provide("gnome-keyring-daemon", "gnome-keyring")
    env = clean_environment() | {"HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    with Popen([bus, "--session", "--nofork", "--print-address"], env=env, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        env["DBUS_SESSION_BUS_ADDRESS"] = first.stdout.readline().strip()
        words = [keyring, "--foreground", "--unlock", "--components=secrets"]
        with Popen(words, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as second:
            assert second.stdin is not None and second.stdout is not None
            second.stdin.write(b"password\n")
            second.stdin.close()
            second.stdout.readline()  # it says where its socket is once it is there
            yield Desktop(tmp_path, env)
            second.terminate()
        first.terminate()


def test_a_secret_goes_into_the_keyring_and_the_config_names_it(desktop: Desktop) -> None:
    words = ("add", "git", "--env", "A=1", "--secret", "GIT_TOKEN", "--", "/bin/sh", "-c", "exit")
    desktop.sluice(*words, stdin=f"{SECRET}\n")
    text = desktop.config.read_text()
    assert "GIT_TOKEN: \"${secret:git.GIT_TOKEN}\"" in text and SECRET not in text
    assert not (desktop.home / ".local" / "state" / "sluice" / "secrets").exists()
    assert desktop.secrets() == {"git.GIT_TOKEN": True}
    desktop.sluice("check")
    desktop.sluice("remove", "git")
    assert SECRET not in desktop.config.read_text()
    assert "the keyring has no secret" in desktop.sluice("secret", "remove", "git.GIT_TOKEN", code=1).stderr


def test_secrets_are_set_listed_and_removed_and_never_shown(desktop: Desktop) -> None:
    desktop.config.parent.mkdir(parents=True)
    servers = {"a": {"command": "sh", "env": {"T": "Bearer ${secret:a.T}"}}, "b": {"url": "http://localhost:1/mcp"}}
    desktop.config.write_text(json.dumps({"policy": {"use": "open"}, "servers": servers}))
    found = json.loads(desktop.sluice("check", "--json", code=3).stdout)["findings"]
    assert [(one["code"], one["hint"]) for one in found if one["severity"] == "error"] == [
        ("unset-secret", "`sluice secret set a.T` asks for it")
    ]
    assert desktop.secrets() == {"a.T": False}
    desktop.sluice("secret", "set", "a.T", stdin=f"{SECRET}\n")
    assert desktop.secrets() == {"a.T": True}
    desktop.sluice("check")
    assert desktop.sluice("secret", "set", "a.T", stdin="another\n").stdout.startswith("replaced a.T")
    desktop.sluice("secret", "remove", "a.T")
    assert desktop.secrets() == {"a.T": False}
    assert "no name of a secret" in desktop.sluice("secret", "set", "../x", stdin="x\n", code=2).stderr


def test_install_moves_the_secrets_of_a_client_and_uninstall_brings_them_back(desktop: Desktop) -> None:
    file = desktop.home / ".cursor" / "mcp.json"
    file.parent.mkdir()
    entry = {"command": "/bin/sh", "args": ["-c", "exit"], "env": {"GIT_TOKEN": SECRET}}
    file.write_text(json.dumps({"mcpServers": {"git": entry}}))
    before = file.read_bytes()
    desktop.sluice("install", "cursor", "--yes")
    assert SECRET not in desktop.config.read_text() + file.read_text()
    assert desktop.secrets() == {"git.GIT_TOKEN": True}
    second = desktop.home / ".gemini" / "settings.json"
    second.parent.mkdir()
    second.write_text(json.dumps({"mcpServers": {"my-git": entry}}))
    desktop.sluice("install", "gemini", "--yes")
    assert desktop.secrets() == {"git.GIT_TOKEN": True}, "it is the same server"
    desktop.sluice("uninstall", "cursor", "--yes")
    assert file.read_bytes() == before


def test_without_a_keyring_it_is_said_why(tmp_path: Path) -> None:
    config = tmp_path / "sluice.yaml"
    server = {"command": "sh", "env": {"T": "${secret:a.T}"}}
    config.write_text(json.dumps({"policy": {"use": "open"}, "servers": {"a": server}}))
    env = {"PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring", "HOME": str(tmp_path)}
    done = subprocess.run([*COMMAND, "check"], env=clean_environment() | env, cwd=tmp_path, capture_output=True,
                          text=True, timeout=60, check=False)  # fmt: skip
    assert done.returncode == 3
    assert "the server a is disabled: there is no secret a.T: this system has no keyring" in done.stdout
    assert run(tmp_path, "secret", "set", "a b").returncode == 2
