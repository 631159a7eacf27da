"""What a config file becomes: defaults, units, variables, paths, and where the file is looked for."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from sluicegate import config
from sluicegate.config import SECTIONS, section_at
from sluicegate.config.models import Section

FULL = """\
version: 1
listen: {mcp: "[::1]:0", admin: "localhost:7411", allowed_hosts: [localhost], allowed_origins: ["https://app.acme.com"]}
servers:
  github: {command: ./bin/gh, args: [-y, "a b"], env: {T: "${env:TOKEN}", D: "${env:NOPE:-fall back}"}, cwd: sub,
           enabled: true, prefix: gh, uris: plain, sharing: shared, era: legacy, lazy: true, required: true,
           timeout: 500ms, max_time: 1.5h, concurrency: "${env:N}", unlisted: refuse, results: block,
           tools: {allow: ["a*"], deny: ["fork_*"]}}
  linear: {url: "https://mcp.linear.app/mcp", transport: http, ca: ca.pem,
           headers: {Authorization: "Bearer ${file:token.txt}"}}
  off: {command: npx, enabled: "${env:FLAG}"}
clients:
  local: {roles: [role:owner]}
  anonymous: {roles: []}
  keys: {ci-bot: {hash: "sha256:%s", roles: [role:ci], owner: team-ci, expires: 2027-01-31}}
policy: {use: open, on_deny: explain}
limits: {max_request: 1MiB, max_result: 2KiB, max_depth: 10, max_batch: 5, headers: 512B, streams: 3, page: 7,
         per_client: 10/s, per_tool: 2000/d}
names: {max: 64}
state: {dir: state}
telemetry: {metrics: false}
log: {level: debug, format: json}
drain: 0s
""" % ("0" * 64)  # fmt: skip
ENV = {"TOKEN": "s3cret", "N": "3", "FLAG": "false", "HOME": "/home/x"}


@pytest.fixture
def full(tmp_path: Path) -> config.Config:
    (tmp_path / "token.txt").write_text("from a file\n")
    (tmp_path / "ca.pem").write_text("")
    checked = config.check_text(FULL, "sluice.yaml", tmp_path, ENV)
    assert checked.findings == []
    assert checked.config is not None
    return checked.config


def test_every_key_of_the_format_can_be_set(full: config.Config, tmp_path: Path) -> None:
    github, linear, off = full.servers.values()
    assert isinstance(github, config.StdioServer) and isinstance(linear, config.HttpServer)
    assert (github.command, github.args, github.cwd) == (str(tmp_path / "bin/gh"), ("-y", "a b"), tmp_path / "sub")
    assert {name: value.get_secret_value() for name, value in github.env.items()} == {"T": "s3cret", "D": "fall back"}
    assert (github.prefix, github.uris, github.sharing, github.era) == ("gh", "plain", "shared", "legacy")
    assert (github.timeout, github.max_time, github.concurrency) == (0.5, 5400.0, 3)
    assert (github.lazy, github.required, github.tools.allow, github.tools.deny) == (True, True, ("a*",), ("fork_*",))
    assert (github.results, linear.results) == ("block", "warn")
    assert linear.headers["Authorization"].get_secret_value() == "Bearer from a file"
    assert (linear.url, linear.prefix, linear.ca) == ("https://mcp.linear.app/mcp", "linear", tmp_path / "ca.pem")
    assert off.enabled is False
    assert full.listen.mcp == config.Address("::1", 0) and str(full.listen.mcp) == "[::1]:0"
    key = full.clients.keys["ci-bot"]
    assert key.expires == datetime(2027, 1, 31, tzinfo=UTC)
    assert (full.limits.max_request, full.limits.max_result, full.limits.headers) == (2**20, 2048, 512)
    assert (full.limits.per_client, full.limits.per_tool) == (config.Rate(10, 1.0), config.Rate(2000, 86400.0))
    assert (str(full.limits.per_client), str(full.limits.per_tool)) == ("10/s", "2000/d")
    assert (full.state.dir, full.drain, full.telemetry.metrics) == (tmp_path / "state", 0.0, False)


def test_a_config_is_as_the_contract_says_unless_it_says_otherwise(tmp_path: Path) -> None:
    made = config.make({"policy": {"use": "open"}, "servers": {"a": {"command": "npx"}}}, tmp_path)
    server = made.servers["a"]
    assert isinstance(server, config.StdioServer)
    assert (str(made.listen.mcp), str(made.listen.admin)) == ("127.0.0.1:7410", "127.0.0.1:7411")
    assert (server.command, server.cwd, server.prefix, server.sharing) == ("npx", tmp_path, "a", "session")
    assert (server.timeout, server.max_time, server.concurrency, server.unlisted) == (60.0, 3600.0, 8, "refuse")
    assert (server.era, server.lazy, server.required, server.tools.allow) == ("auto", False, False, ("*",))
    limits = made.limits
    assert (limits.max_request, limits.max_result, limits.headers) == (4 * 2**20, 8 * 2**20, 16384)
    assert (limits.max_depth, limits.max_batch, limits.streams, limits.page) == (64, 50, 100, 1000)
    assert limits.per_client is None and limits.per_tool is None
    assert (made.names.max, made.drain, made.policy.on_deny) == (50, 30.0, "hide")
    assert made.clients.anonymous is None and made.clients.local.roles == ("role:owner",)
    assert made.state.dir == Path("~/.local/state/sluice").expanduser()


def test_every_section_of_the_models_explains_its_unknown_keys() -> None:
    assert set(SECTIONS.values()) == {cls for cls in _subclasses(Section) if cls is not config.Server}
    assert section_at(("servers", "x", "http", "tools")) is config.Tools
    assert section_at(("servers", "x")) is None


def _subclasses(cls: type[Section]) -> set[type[Section]]:
    return {sub for direct in cls.__subclasses__() for sub in {direct, *_subclasses(direct)}}


def test_later_keys_are_not_keys_of_this_version() -> None:
    for section in SECTIONS.values():
        assert not section.later & set(section.model_fields)


@pytest.mark.parametrize(
    ("text", "seconds"), [("500ms", 0.5), ("5s", 5.0), ("10m", 600.0), ("1h", 3600.0), ("2d", 172800.0), ("1.5s", 1.5)]
)
def test_durations_are_seconds(text: str, seconds: float, tmp_path: Path) -> None:
    assert config.make({"policy": {"use": "open"}, "drain": text}, tmp_path).drain == seconds


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("127.8.8.8", True), ("::1", True), ("localhost", True), ("LOCALHOST", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("localhost.acme.com", False)],
)  # fmt: skip
def test_loopback_is_told_from_the_rest(host: str, loopback: bool) -> None:
    assert config.Address(host, 1).is_loopback is loopback


@pytest.mark.parametrize(
    ("value", "meant"),
    [
        ("${env:A}", "a"),
        ("x-${env:A}-${env:B}", "x-a-"),
        ("${env:B:-default}", "default"),
        ("${env:NOPE:-}", ""),
        ("${env:NOPE:-a:-b}", "a:-b"),
        ("$${env:A}", "${env:A}"),
        ("$A ${env:A}", "$A a"),
        ("${file:f.txt}", "one\ntwo"),
    ],
)
def test_variables_are_replaced_in_values(value: str, meant: str, tmp_path: Path) -> None:
    (tmp_path / "f.txt").write_text("one\ntwo\n")
    text = f"policy: {{use: open}}\nservers: {{a: {{command: x, args: ['{value}']}}}}"
    checked = config.check_text(text, "f", tmp_path, {"A": "a", "B": ""})
    assert checked.config is not None
    server = checked.config.servers["a"]
    assert isinstance(server, config.StdioServer) and server.args == (meant,)


def test_what_a_variable_holds_is_not_read_again(tmp_path: Path) -> None:
    text = "policy: {use: open}\nservers: {a: {command: x, args: ['${env:A}']}}"
    checked = config.check_text(text, "f", tmp_path, {"A": "${env:B} [x]", "B": "secret"})
    assert checked.config is not None
    server = checked.config.servers["a"]
    assert isinstance(server, config.StdioServer) and server.args == ("${env:B} [x]",)


def test_one_enabled_server_may_be_transparent(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "prefix": "", "unlisted": "forward"}, "b": {"command": "x", "enabled": False}}
    made = config.make({"policy": {"use": "open"}, "servers": servers}, tmp_path)
    assert made.servers["a"].prefix == ""


def test_names_that_are_not_listed_are_not_pinned_unless_that_is_asked_for(tmp_path: Path) -> None:
    servers = "servers: {a: {command: x, prefix: '', unlisted: forward%s}}\npolicy: {use: open}"
    for said, mode, codes in (("", "off", ["not-pinned"]), (", pin: off", "off", []), (", pin: warn", "warn", [])):
        checked = config.check_text(servers % said, "f", tmp_path, {})
        assert checked.config is not None and checked.config.servers["a"].pinning == mode
        assert [finding.code for finding in checked.findings if "pin" in finding.code] == codes
    listed = config.make({"policy": {"use": "open"}, "servers": {"a": {"command": "x"}}}, tmp_path)
    assert listed.servers["a"].pinning == "review"


def test_a_file_is_loaded_with_paths_relative_to_it(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_bytes("\ufeffpolicy: {use: open}\nstate: {dir: s}\n".encode())
    assert config.load(file).state.dir == tmp_path / "s"


def test_a_bad_file_raises_every_finding(tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    file.write_text("drain: 1\nlog: {level: x}\n")
    with pytest.raises(config.ConfigError) as caught:
        config.load(file)
    assert {finding.code for finding in caught.value.findings if finding.severity == "error"} == {
        "bad-duration", "wrong-value", "missing-key",
    }  # fmt: skip
    assert f"{file}:1:8 bad-duration" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "code"), [(None, "unreadable-file"), (b"\xff\xfe\x00", "not-utf-8"), (b"a\x00", "bad-yaml")]
)
def test_a_file_that_cannot_be_read_says_so(content: bytes | None, code: str, tmp_path: Path) -> None:
    file = tmp_path / "sluice.yaml"
    if content is not None:
        file.write_bytes(content)
    assert [finding.code for finding in config.check(file).findings] == [code]


def test_the_file_is_looked_for_in_four_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "user")}
    with pytest.raises(config.ConfigError, match="sluice init"):
        config.find_config(None, environ)
    users = tmp_path / "user" / "sluice" / "sluice.yaml"
    users.parent.mkdir(parents=True)
    users.touch()
    assert config.find_config(None, environ) == users
    Path("sluice.yaml").touch()
    assert config.find_config(None, environ) == Path("sluice.yaml")
    assert config.find_config(None, {**environ, "SLUICE_CONFIG": "other.yaml"}) == Path("other.yaml")
    assert config.find_config(Path("named.yaml"), {"SLUICE_CONFIG": "other.yaml"}) == Path("named.yaml")


def test_the_schema_accepts_what_is_accepted_and_describes_every_key() -> None:
    schema = config.schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    value: Any = {
        "policy": {"use": "open"},
        "servers": {"a": {"command": "x", "timeout": "5s"}, "b": {"url": "https://x/"}},
        "limits": {"max_request": "4MiB", "page": 5, "per_client": "600/min"},
    }
    jsonschema.validate(value, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**value, "drain": "soon"}, schema)
    for name, section in [("Config", schema), *schema["$defs"].items()]:
        for key, described in section.get("properties", {}).items():  # JsonValue is any value
            assert described.get("description"), f"{name}.{key}"
    json.dumps(schema)


def test_the_process_environment_is_the_default() -> None:
    assert config.places(os.environ)
