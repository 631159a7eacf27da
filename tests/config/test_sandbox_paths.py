"""Which paths no sandbox may have: what Sluice keeps, what leads elsewhere, what another server could redirect."""

import sys
from pathlib import Path

import pytest

from sluicegate import config
from sluicegate.app import settings


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the config file, beside a home folder and data."""
    for name in ("base/policies", "base/out", "home", "state/inner", "audit", "data/inner", "col:on"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("base/f", "base/beside", "base/policies/p.csv", "token/file", "token/beside"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("info")
    (tmp_path / "link").symlink_to("data")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "base"


def checked(base: Path, *servers: str) -> config.Checked:
    section = "\n".join(f"  {'abc'[at]}: {{{server}}}" for at, server in enumerate(servers))
    text = (
        "policy: {files: [policies/p.csv]}\nstate: {dir: ../state}\naudit: {path: ../audit/sluice.jsonl}\n"
        f"clients: {{local: {{roles: []}}}}\nservers:\n{section}\n"
        "log: {level: '${file:../token/file}'}\n"
    )
    return config.check_text(text, "f", base, {})


def codes(base: Path, *servers: str) -> list[tuple[int, str]]:
    return [(one.line, one.code) for one in checked(base, *servers).findings]


@pytest.mark.parametrize("name", ["read", "write"])
@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("../data", ""), ("../data/inner/", ""), ("out", ""), ("../base/out/../out", ""),
        ("/", "sandbox-path"), ("/proc", "sandbox-path"), ("/proc/1", "sandbox-path"), ("/dev", "sandbox-path"),
        (".", "sandbox-path"), ("..", "sandbox-path"), ("policies", "sandbox-path"), ("~", "sandbox-path"),
        ("f", "sandbox-path"), ("beside", ""), ("policies/p.csv", "sandbox-path"),
        ("../token/file", "sandbox-path"), ("../token", "sandbox-path"), ("../token/beside", ""),
        ("../state", "sandbox-path"), ("../state/inner", "sandbox-path"), ("../audit", "sandbox-path"),
        ("../link", "sandbox-link"), ("../link/inner", "sandbox-link"), ("../nowhere", "unreadable-file"),
    ],
)  # fmt: skip
def test_a_path_is_real_and_holds_nothing_of_sluice(base: Path, name: str, path: str, code: str) -> None:
    found = codes(base, f"command: x, sandbox: {{{name}: ['{path}']}}")
    assert found == ([(6, code)] if code else [])


def test_the_state_is_known_behind_a_link_too(base: Path) -> None:
    (base.parent / "state").rename(base.parent / "elsewhere")
    (base.parent / "state").symlink_to("elsewhere")
    assert codes(base, "command: x, sandbox: {read: [../elsewhere]}") == [(6, "sandbox-path")]


def test_no_link_on_the_way_to_a_file_of_sluice_may_be_written(base: Path) -> None:
    """As a secret of Kubernetes: token -> ..data/token, ..data -> ..2026."""
    (base.parent / "token/file").unlink()
    (base.parent / "steps/..2026").mkdir(parents=True)
    (base.parent / "steps/..2026/inner").write_text("info")
    (base.parent / "steps/..data").symlink_to("..2026")
    (base.parent / "token/file").symlink_to("../steps/..data/inner")
    for path in ("../steps", "../steps/..2026", "../token"):
        assert codes(base, f"command: x, sandbox: {{write: ['{path}']}}") == [(6, "sandbox-path")], path
    assert codes(base, "command: x, sandbox: {write: [../data]}") == []


def test_a_circle_of_links_ends(base: Path) -> None:
    (base.parent / "token/file").unlink()
    (base.parent / "token/file").symlink_to("other")
    (base.parent / "token/other").symlink_to("file")
    assert (6, "sandbox-path") in codes(base, "command: x, sandbox: {write: [../token]}")


def test_what_every_sandbox_has_holds_nothing_of_sluice(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.config.sandbox.SYSTEM", (str(base.parent / "state"),))
    found = checked(base, "command: x, sandbox: {}", "image: x", "command: x").findings
    assert [(one.line, one.code) for one in found] == [(6, "sandbox-path")]
    assert found[0].message == f"a sandbox has the folders of the system, and so {base}/../state"


def test_sluice_itself_may_be_read_and_not_written(base: Path) -> None:
    own = Path(config.__file__).parents[1]
    assert codes(base, f"command: x, sandbox: {{read: ['{own}']}}") == []
    for path in (own, own / "config"):
        assert codes(base, f"command: x, sandbox: {{write: ['{path}']}}") == [(6, "sandbox-path")]


def test_what_a_server_may_replace_by_a_link_is_in_no_sandbox(base: Path) -> None:
    writes = "command: x, sandbox: {write: [../data]}"
    assert codes(base, writes, "command: x, sandbox: {read: [../data/inner]}") == [(7, "sandbox-nested")]
    assert codes(base, "command: x, sandbox: {write: [../data/inner, ../data]}") == [(6, "sandbox-nested")]
    assert codes(base, writes, "command: x, sandbox: {read: [../data]}") == []
    assert codes(base, "command: x, sandbox: {read: [../data], write: [../data/inner]}") == []


@pytest.mark.skipif(sys.platform == "win32", reason="a colon is in no name there")
def test_containers_take_no_path_with_a_colon(base: Path) -> None:
    assert codes(base, "command: x, sandbox: {read: ['../col:on']}") == []
    assert codes(base, "image: x, sandbox: {read: ['../col:on']}") == [(6, "wrong-value")]


@pytest.mark.parametrize(("command", "is_said"), [("npx", True), ("/usr/bin/uvx", True), ("npm-server", False)])
@pytest.mark.parametrize("network", ["none", "all"])
def test_a_package_is_installed_before_it_is_in_a_sandbox(
    base: Path, command: str, is_said: bool, network: str
) -> None:
    found = checked(base, f"command: {command}, args: [a], sandbox: {{network: {network}}}").findings
    assert [(one.code, one.severity) for one in found] == [("sandbox-runner", "warning")] * is_said
    assert all("install the package first" in one.hint for one in found)


def test_an_image_has_a_sandbox_without_network_unless_it_says_otherwise(base: Path) -> None:
    loaded = checked(base, "image: example/server, args: [a]", "command: x", "command: x, sandbox: {}").config
    assert loaded is not None
    made = [settings.server(key, one, loaded, lambda n: n, str) for key, one in loaded.servers.items()]
    image, free, boxed = made
    assert image.command == ("a",)
    assert str(image.sandbox) == "container of example/server: no network, 0 to read, 0 to write"
    assert free.sandbox is None and boxed.sandbox is not None and not boxed.sandbox.has_network
    assert len({one.identity for one in made}) == 2  # a sandbox changes what a server may do, not which one it is
