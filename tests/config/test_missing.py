"""A `${...}` that names nothing: it disables the one server that needs it, and blocks everywhere else."""

import pickle
from pathlib import Path

import pytest

from sluicegate import config

HEAD = "policy: {use: open}\nclients: {anonymous: {}}\nservers:\n  good: {command: x}\n"


def check(text: str, folder: Path = Path("/base")) -> config.Checked:
    return config.check_text(HEAD + text, "f", folder, {})


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ("command: '${env:X}'", "variable X is not set"),
        ("command: x, args: [a, '--key=${env:X}']", "variable X is not set"),
        ("command: x, env: {A: '${env:X}', B: '${env:Y}'}", "variable X is not set, variable Y is not set"),
        ("command: x, env: {A: '${env:X}${env:Y}'}", "variable X is not set, variable Y is not set"),
        ("command: x, env: {A: '${file:nope}'}", "cannot read the file nope"),
        ("command: x, concurrency: '${env:X}'", "variable X is not set"),
        ("command: x, timeout: '${env:X}'", "variable X is not set"),
        ("command: x, enabled: '${env:X}'", "variable X is not set"),
        ("command: x, prefix: '${env:X}'", "variable X is not set"),
        ("command: x, tools: {deny: ['${env:X}']}", "variable X is not set"),
        ("url: '${env:X}'", "variable X is not set"),
        ("url: 'https://x/', headers: {Authorization: 'Bearer ${env:X}'}", "variable X is not set"),
        ("url: 'https://x/', ca: '${env:X}'", "variable X is not set"),
    ],
)
def test_a_value_that_is_missing_disables_its_server_and_no_other(section: str, why: str, tmp_path: Path) -> None:
    checked = check(f"  bad: {{{section}}}", tmp_path)
    assert checked.errors and all("the server bad is disabled: " in error.message for error in checked.errors)
    assert all(error.line == 5 for error in checked.errors)
    assert checked.config is not None
    assert checked.config.disabled == {"bad": why}
    assert {key: server.enabled for key, server in checked.config.servers.items()} == {"good": True, "bad": False}


@pytest.mark.parametrize("off", ["enabled: false", "enabled: '${env:OFF:-false}'"])
@pytest.mark.parametrize("section", ["url: '${env:X}'", "command: x, args: ['${file:nope}']"])
def test_in_a_server_that_is_disabled_a_missing_value_is_a_warning(off: str, section: str, tmp_path: Path) -> None:
    checked = check(f"  bad: {{{section}, {off}}}", tmp_path)
    assert [(finding.line, finding.severity) for finding in checked.findings] == [(5, "warning")]
    assert checked.config is not None
    assert (checked.config.disabled, checked.config.servers["bad"].enabled) == ({}, False)


@pytest.mark.parametrize(
    "text",
    [
        "  bad: '${env:X}'",
        "log: {level: '${env:X}'}",
        "state: {dir: '${env:X}'}",
        "telemetry: {otlp: '${env:X}'}",
        "  bad: {command: x, env: {A: '${env:X}'}, timeout: 5}",
        "  bad: {command: x, env: {A: '${env:X} ${X}'}}",
        "  bad: {command: x, env: {A: '${env:X}', B: 5}}",
        "  bad: {command: '${env:X}', prefix: good}",
        "  bad: {command: '${env:X}'}\nlog: {level: loud}",
    ],
)
def test_whatever_else_is_wrong_blocks_as_before(text: str) -> None:
    checked = check(text)
    assert checked.errors and checked.config is None


def test_what_is_known_of_a_disabled_server_stays_known() -> None:
    section = "command: '${env:X}', required: true, prefix: b, tools: {classes: {get: read}}"
    checked = check(f"  bad: {{{section}}}")
    assert checked.config is not None
    bad = checked.config.servers["bad"]
    assert (bad.required, bad.prefix, dict(bad.tools.classes)) == (True, "b", {"get": "read"})


def test_no_value_of_a_disabled_server_is_kept() -> None:
    text = HEAD + "  bad: {command: x, args: ['${env:SECRET}'], env: {A: '${env:X}'}}"
    checked = config.check_text(text, "f", Path("/"), {"SECRET": "hunter2"})
    assert checked.config is not None and "hunter2" not in str(checked.config.model_dump())


def test_a_worker_that_is_given_the_config_knows_what_is_disabled() -> None:
    checked = check("  bad: {command: '${env:X}'}")
    assert checked.config is not None
    assert pickle.loads(pickle.dumps(checked.config)).disabled == {"bad": "variable X is not set"}


@pytest.mark.parametrize(
    "servers", ['{a: ["${env:X}"]}', '[{url: "${env:X}"}]', '{a: "${env:X}"}', '"${env:X}"', '[["${env:X}"]]']
)
def test_a_missing_variable_in_a_section_of_another_shape_is_an_error_like_any_other(servers: str) -> None:
    checked = config.check_text(f"policy: {{use: open}}\nservers: {servers}\n", "f", Path(), {})
    assert checked.errors and checked.config is None
