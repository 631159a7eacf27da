"""`init --from`: what every desktop client writes, and what becomes of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from sluicegate import config
from sluicegate.cli import template
from sluicegate.desktop import read as desktop
from sluicegate.desktop import variables

# client -> (its file, our servers, what is said)
CLIENTS: dict[str, tuple[str, dict[str, Any], list[str]]] = {
    "Claude Desktop": (
        """{"mcpServers": {
          "GitHub": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-github"],
                     "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdef0123"}},
          "files": {"command": "/usr/bin/mcp-files", "args": ["/srv", 8080]}}}""",
        {
            "github": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-github"],
                "env": {"GITHUB_PERSONAL_ACCESS_TOKEN": "ghp_0123456789abcdef0123"},
            },
            "files": {"command": "/usr/bin/mcp-files", "args": ["/srv", "8080"]},
        },
        [
            "GitHub: env.GITHUB_PERSONAL_ACCESS_TOKEN holds a secret in plain text; "
            "put it into a variable and write ${env:NAME}",
            "GitHub: is called github here",
        ],
    ),
    "Claude Code": (
        """{"numStartups": 3, "projects": {
          "/p": {"mcpServers": {"x": {"command": "x"}, "slow": {"command": "slow", "timeout": 120000}}},
          "/q": {"mcpServers": {"linear": {"type": "http", "url": "https://linear.acme.com/mcp"},
                                "off": {"command": "off", "cwd": "./own"}, "x": {"command": "x"}},
                 "disabledMcpServers": ["off"]}, "/r": {"mcpServers": {}}, "/s": 1}, "mcpServers": {
          "linear": {"type": "http", "url": "https://mcp.linear.app/mcp", "oauth": {"clientId": "x"},
                     "headers": {"Authorization": "Bearer ${LINEAR_TOKEN}", "X-Team": "${TEAM:-core}"}},
          "asana": {"type": "sse", "url": "https://mcp.asana.com/events"},
          "slow": {"type": "stdio", "command": "slow", "args": [], "env": {}, "timeout": 120000}}}""",
        {
            "linear": {
                "url": "https://mcp.linear.app/mcp",
                "headers": {"Authorization": "Bearer ${env:LINEAR_TOKEN}", "X-Team": "${env:TEAM:-core}"},
            },
            "asana": {"url": "https://mcp.asana.com/events", "transport": "sse"},
            "slow": {"command": "slow", "timeout": "120000ms"},
            "x": {"command": "x", "cwd": "/p"},
            "linear-2": {"url": "https://linear.acme.com/mcp"},
            "off": {"command": "off", "cwd": "./own", "enabled": False},
        },
        [
            "linear: oauth is not carried over: log in with `sluice login`, or set a header",
            "x (of /p): comes from a single project and is offered everywhere now",
            "slow (of /p): left out, it is there already",
            "linear (of /q): comes from a single project and is offered everywhere now",
            "linear (of /q): is called linear-2 here",
            "off (of /q): comes from a single project and is offered everywhere now",
            "x (of /q): left out, it is there already",
        ],
    ),
    "Cursor": (
        """{"mcpServers": {
          "notes": {"command": "${userHome}/bin/notes", "args": ["--root", "${workspaceFolder}"], "envFile": ".env",
                    "env": {"KEY": "${env:NOTES_KEY}"}},
          "web": {"url": "http://localhost:3000/mcp", "auth": {"CLIENT_ID": "x"}}}}""",
        {
            "notes": {
                "command": "${env:HOME}/bin/notes",
                "args": ["--root", "${env:WORKSPACEFOLDER}"],
                "env": {"KEY": "${env:NOTES_KEY}"},
            },
            "web": {"url": "http://localhost:3000/mcp"},
        },
        [
            "notes: ${workspaceFolder} is asked or known by the client alone; set the variable WORKSPACEFOLDER instead",
            "notes: envFile is not carried over: put its variables into env",
            "web: auth is not carried over: log in with `sluice login`, or set a header",
        ],
    ),
    "VS Code": (
        """{
          // asked once
          "inputs": [{"type": "promptString", "id": "perplexity-key", "description": "Key", "password": true}],
          "servers": {
            "perplexity": {"type": "stdio", "command": "npx", "args": ["-y", "server-perplexity-ask", ],
                           "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"}, /* mine */ "dev": {"watch": "x"}},
            "socket": {"type": "http", "url": "unix:///tmp/x.sock"},
            "docs": {"type": "http", "url": "https://docs.acme.com/mcp // not a comment", "gallery": true},
          },
        }""",
        {
            "perplexity": {
                "command": "npx",
                "args": ["-y", "server-perplexity-ask"],
                "env": {"PERPLEXITY_API_KEY": "${env:PERPLEXITY_KEY}"},
            },
            "docs": {"url": "https://docs.acme.com/mcp // not a comment"},
        },
        [
            "perplexity: ${input:perplexity-key} is asked or known by the client alone; "
            "set the variable PERPLEXITY_KEY instead",
            "perplexity: not carried over: dev",
            "socket: left out, its URL is neither http nor https",
        ],
    ),
    "Windsurf": (
        """{"mcpServers": {
          "sentry": {"serverUrl": "https://mcp.sentry.dev/mcp", "headers": {"Authorization": "Bearer ${file:/run/t}"}},
          "old": {"serverUrl": "https://old.acme.com/sse"},
          "off": {"command": "x", "disabled": true, "disabledTools": ["drop"]}}}""",
        {
            "sentry": {"url": "https://mcp.sentry.dev/mcp", "headers": {"Authorization": "Bearer ${file:/run/t}"}},
            "old": {"url": "https://old.acme.com/sse"},
            "off": {"command": "x", "enabled": False, "tools": {"deny": ["drop"]}},
        },
        ["sentry: a ${file:...} in it is a file of this machine: its server gets what is in there"],
    ),
    "Zed": (
        """{"theme": "One", "context_servers": {
          "new": {"source": "custom", "enabled": false, "command": "a", "args": ["b"], "env": {}},
          "nested": {"command": {"path": "c", "args": ["d"], "env": {"E": "f"}}, "settings": {}},
          "extension": {"source": "extension", "settings": {"x": 1}}}}""",
        {
            "new": {"command": "a", "args": ["b"], "enabled": False},
            "nested": {"command": "c", "args": ["d"], "env": {"E": "f"}},
        },
        ["extension: left out, it has neither a command nor a url"],
    ),
    "Gemini": (
        """{"mcpServers": {
          "py": {"command": "python", "args": ["-m", "s"], "cwd": "./d", "env": {"K": "$MY_KEY"}, "timeout": 15,
                 "trust": true, "includeTools": ["a"], "excludeTools": ["b", "c"]},
          "web": {"httpUrl": "https://x.acme.com/mcp", "timeout": 5000}}}""",
        {
            "py": {
                "command": "python",
                "args": ["-m", "s"],
                "env": {"K": "${env:MY_KEY}"},
                "cwd": "./d",
                "timeout": "15s",
                "tools": {"allow": ["a"], "deny": ["b", "c"]},
            },
            "web": {"url": "https://x.acme.com/mcp", "timeout": "5000ms"},
        },
        ["py: trust is not carried over: which calls need no question is a matter of policy"],
    ),
    "Cline": (
        """{"mcpServers": {
          "a": {"type": "streamableHttp", "url": "https://a.acme.com/x", "autoApprove": ["read"], "disabled": false},
          "b": {"transportType": "streamable-http", "url": "https://b.acme.com/x", "autoApprove": []},
          "c": {"type": "ws", "url": "wss://c.acme.com"}}}""",
        {"a": {"url": "https://a.acme.com/x"}, "b": {"url": "https://b.acme.com/x"}},
        [
            "a: autoApprove is not carried over: which calls need no question is a matter of policy",
            "c: left out, its transport is not supported",
        ],
    ),
    "Claude Code, of projects only": (
        """{"projects": {"/p": {"mcpServers": {"a": {"command": "x", "args": ["."]}}}}}""",
        {"a": {"command": "x", "args": ["."], "cwd": "/p"}},
        ["a (of /p): comes from a single project and is offered everywhere now"],
    ),
    "Gemini, with extensions of its own": (
        """{"extensions": {"disabled": ["y"]}, "mcpServers": {"a": {"command": "x"}}}""",
        {"a": {"command": "x"}},
        [],
    ),
    "Codex.toml": (
        """model = "gpt-5"
[mcp_servers.github]
command = "npx"
args = ["-y", "@modelcontextprotocol/server-github"]
env = { MODE = "ro" }
env_vars = ["GITHUB_TOKEN"]
startup_timeout_sec = 20
tool_timeout_sec = 60
disabled_tools = ["drop"]
[mcp_servers.web]
url = "https://x.acme.com/mcp"
bearer_token_env_var = "WEB_TOKEN"
http_headers = { "X-Team" = "core" }
env_http_headers = { "X-Key" = "WEB_KEY" }
enabled = false
""",
        {
            "github": {
                "command": "npx",
                "args": ["-y", "@modelcontextprotocol/server-github"],
                "env": {"MODE": "ro", "GITHUB_TOKEN": "${env:GITHUB_TOKEN}"},
                "timeout": "60s",
                "tools": {"deny": ["drop"]},
            },
            "web": {
                "url": "https://x.acme.com/mcp",
                "headers": {
                    "X-Team": "core",
                    "X-Key": "${env:WEB_KEY}",
                    "Authorization": "Bearer ${env:WEB_TOKEN}",
                },
                "enabled": False,
            },
        },
        ["github: not carried over: startup_timeout_sec"],
    ),
    "Goose.yaml": (
        """GOOSE_MODE: auto
extensions:
  developer: {type: builtin, name: developer, enabled: true, bundled: true}
  slack:
    type: stdio
    name: slack
    cmd: npx
    args: [-y, server-slack]
    envs: {TEAM: core}
    env_keys: [SLACK_TOKEN]
    timeout: 300
    enabled: true
  web: {type: streamable_http, name: web, uri: "https://x.acme.com/mcp", headers: {X-Team: core}, enabled: false}
""",
        {
            "slack": {
                "command": "npx",
                "args": ["-y", "server-slack"],
                "env": {"TEAM": "core", "SLACK_TOKEN": "${env:SLACK_TOKEN}"},
                "timeout": "300s",
            },
            "web": {"url": "https://x.acme.com/mcp", "headers": {"X-Team": "core"}, "enabled": False},
        },
        ["developer: left out, it has neither a command nor a url"],
    ),
    "VS Code's settings.json": ("""{"mcp": {"servers": {"a": {"command": "x"}}}}""", {"a": {"command": "x"}}, []),
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_clients_file_becomes_servers_and_sentences(client: str) -> None:
    text, servers, notes = CLIENTS[client]
    imported = desktop.read(text.encode(), Path(client).suffix)
    assert imported.servers == servers
    assert imported.notes == notes


@pytest.mark.parametrize("client", CLIENTS)
def test_what_was_imported_loads_as_it_was_read(client: str) -> None:
    servers = CLIENTS[client][1]
    environ = {
        name: "v"
        for name in (
            "LINEAR_TOKEN", "HOME", "WORKSPACEFOLDER", "NOTES_KEY", "PERPLEXITY_KEY", "MY_KEY", "WEB_TOKEN", "WEB_KEY",
            "GITHUB_TOKEN", "SLACK_TOKEN",
        )
    }
    servers = json.loads(json.dumps(servers).replace("${file:/run/t}", "t").replace(" // not a comment", ""))
    checked = config.check_text(template.new_file(servers), "f", Path("/base"), environ)
    assert not checked.errors
    assert checked.config is not None
    assert list(checked.config.servers) == list(servers)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_any_unicode_encoding_is_read(encoding: str) -> None:
    assert desktop.read('{"mcpServers": {"a": {"command": "ü"}}}'.encode(encoding)).servers == {"a": {"command": "ü"}}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "1:1 a value is missing here"),
        ('{"mcpServers": {"a": }}', "1:22 a value is missing here"),
        ('{\n// one\n"mcpServers": x}', "3:15 a value is missing here"),
        ('{"mcpServers": {"a": {"command": "x"}\n"b": 1}}', "2:1 a comma or a closing bracket is missing before this"),
        ('{"mcpServers": {\n  a: {}}}', "2:3 a name in double quotes belongs here"),
        ('{"mcpServers" {}}', "1:15 a colon is missing here"),
        ('{"mcpServers": "x}', "1:16 this text has no closing quotation mark"),
        ('{"mcpServers": "C:\\Users"}', "1:19 a backslash in a text is written"),
        ('{"mcpServers": {}}}', "1:19 something follows the end of the document"),
        ("[]", "1:1 this is not a JSON object"),
        ('{"mcp": 1, "servers": []}', "1:1 there is none of mcpServers, servers, context_servers in it"),
    ],
)
def test_a_file_that_is_no_clients_config_is_refused_at_its_line(text: str, said: str) -> None:
    with pytest.raises(desktop.NotAClientConfig) as refused:
        desktop.read(text.encode())
    assert str(refused.value).startswith(said)


def test_a_yaml_list_is_called_by_its_own_format() -> None:
    with pytest.raises(desktop.NotAClientConfig, match="1:1 this is not a YAML mapping"):
        desktop.read(b"- a", ".yaml")


@pytest.mark.parametrize(
    ("suffix", "text", "said"),
    [
        (".toml", "[mcp_servers.a\n", "1:15 this is not TOML"),
        (".yaml", "extensions:\n  - [\n", "3:1 this is not YAML"),
        (".toml", "model = 1", "1:1 there is none of mcp_servers in it"),
    ],
)
def test_other_formats_are_refused_at_their_line_too(suffix: str, text: str, said: str) -> None:
    with pytest.raises(desktop.NotAClientConfig) as refused:
        desktop.read(text.encode(), suffix)
    assert str(refused.value) == said


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "sluice", "args": ["stdio"]},
        {"command": "/home/x/.local/bin/sluice", "args": ["stdio", "-c", "x"]},
        {"command": "C:\\Tools\\sluice.exe", "args": ["stdio"]},
        {"command": "uvx", "args": ["sluicegate", "stdio"]},
        {"command": "uvx", "args": ["--from", "sluicegate", "sluice", "stdio"]},
    ],
)
def test_our_own_entry_is_never_imported(entry: dict[str, Any]) -> None:
    imported = desktop.read(json.dumps({"mcpServers": {"sluice": entry}}).encode())
    assert (imported.servers, imported.notes) == ({}, ["sluice: left out, this is Sluice itself"])


def test_names_are_made_to_fit_and_never_meet() -> None:
    names = ["My Server", "my_server", "my-server", "sluice", "42", "ÄÖ", "9lives", "a" * 30, "a" * 31, "a-" * 15]
    entries = {name: {"command": "x"} for name in names}
    imported = desktop.read(json.dumps({"mcpServers": entries}).encode())
    assert list(imported.servers) == [
        "my-server", "my-server-2", "my-server-3", "sluice-2", "server", "server-2", "lives", "a" * 20,
        "a" * 18 + "-2", "a-a-a-a-a-a-a-a-a-a",
    ]  # fmt: skip
    assert all(config.is_server_key(key) for key in imported.servers)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("plain $5 text", "plain $5 text"),
        ("$HOME", "${env:HOME}"),
        ("$HOME/x", "$HOME/x"),
        ("${userHome}/x", "${env:HOME}/x"),
        ("${X}", "${env:X}"),
        ("${env:X}-${Y:-z}", "${env:X}-${env:Y:-z}"),
        ("${file:/p}", "${file:/p}"),
        ("${input:9 lives}", "${env:INPUT_9_LIVES}"),
        ("${a b}", "$${a b}"),
        ("${}", "$${}"),
    ],
)
def test_every_form_of_variable_becomes_ours(theirs: str, ours: str) -> None:
    assert variables.ours(theirs, lambda text: None) == ours


@pytest.mark.parametrize(
    ("name", "text", "secret"),
    [
        ("API_KEY", "abcdefgh", True),
        ("Authorization", "Bearer abcdef", True),
        ("Authorization", "Bearer ${T}", False),
        ("API_KEY", "$KEY", False),
        ("REGION", "eu-central-1", False),
        ("REGION", "ghp_0123456789abcdef", True),
        ("", "--api-key=0123456789", True),
        ("", "--verbose", False),
        ("TOKEN_TTL", "60", False),
        ("AUTH", "Bearer zebra-lantern-quartz-9", True),
        ("COOKIE", "sid=8f1c9e0b2a7d4c63", True),
        ("DATABASE_URL", "postgres://u:Kartoffel77@h/db", True),
        ("DATABASE_URL", "postgres://localhost/db", False),
        ("PGPASS", "Kartoffel77", True),
        ("PWD2", "Kartoffel77", True),
        ("PASSPHRASE", "Kartoffel77", True),
        ("WEBHOOK", "https://hooks.slack.com/services/T0000AB/B0000CD/AbCdEfGhIjKlMnOpQrStUvWx", True),
        ("", "https://example.invalid/mcp?key=AbCdEf0123456789AbCdEf", True),
        ("", "https://example.com/mcp", False),
        ("X-Auth", "AbCdEf0123456789AbCdEf", True),
        ("AUTH", "none", False),
        ("AUTH_TYPE", "client-certificate", False),
        ("LINEAR", "lin_api_AbCdEf0123456789AbCdEf", True),
        ("--api-key", "Kartoffel77", True),
        ("", "@modelcontextprotocol/server-filesystem", False),
        ("", "ghcr.io/github/github-mcp-server", False),
        ("", "/opt/homebrew/Cellar/node/22.1.0/bin/x", False),
        ("PROJECT_ID", "my-project-123456", False),
    ],
)
def test_what_looks_like_a_secret_is_noticed(name: str, text: str, secret: bool) -> None:
    assert variables.is_secret(text, name) is secret


def test_an_argument_has_the_name_of_the_option_before_it() -> None:
    args = ["serve", "--api-key", "Kartoffel77", "--token", "--verbose", "x"]
    assert variables.options(args) == ["", "", "--api-key", "", "", "--verbose"]
    assert [*map(variables.is_secret, args, variables.options(args))] == [False, False, True, False, False, False]


def test_no_sentence_holds_a_value() -> None:
    secret = "hunter2hunter2hunter2"
    entry = {
        "command": "x", "args": [f"--token={secret}"], "env": {"API_KEY": secret, "N": [secret]},
        "oauth": {"s": secret}, "extra": secret, "autoApprove": [secret], "envFile": secret,
    }  # fmt: skip
    remote = {"url": f"ftp://{secret}", "headers": {"Authorization": secret}}
    imported = desktop.read(json.dumps({"mcpServers": {"a": entry, "b": remote, "c": secret}}).encode())
    assert len(imported.notes) >= 6
    assert secret not in " ".join(imported.notes)


@pytest.mark.parametrize(
    "text",
    [
        "a: b",
        "#x",
        "yes",
        "null",
        "True",
        "1.0",
        "",
        " x ",
        "é\u2028\x7f\x85\ufeff",
        '"',
        "\\n",
        "\t\n",
        "*a",
        "&b",
        "!c",
        "%d",
        "@e",
        "`f",
        "- g",
        "? h",
        "😀",
    ],
)
def test_any_text_survives_the_way_into_yaml_and_back(text: str) -> None:
    servers = {"a": {"command": "x", "args": [text, text], "env": {"A": text}}}
    checked = config.check_text(template.new_file(servers), "f", Path("/base"), {})
    assert checked.config is not None, checked.findings
    server = checked.config.servers["a"]
    assert isinstance(server, config.StdioServer)
    assert server.args == (text, text)
    assert server.env["A"].get_secret_value() == text


def test_a_new_file_loads_and_names_every_key() -> None:
    text = template.new_file()
    checked = config.check_text(text, "f", Path("/base"), {})
    assert [finding.code for finding in checked.findings] == ["no-servers"]
    schema = config.schema()
    for section in [schema, *schema["$defs"].values()]:
        for key, about in section.get("properties", {}).items():
            assert f"{key}:" in text or about["description"].startswith("Deprecated"), key


def test_the_defaults_that_a_new_file_shows_are_the_defaults() -> None:
    """Everything that is commented out below the line is put in force: it changes nothing."""
    text = template.new_file({"a": {"command": "x"}})
    head, rest = text.split("# What follows are the defaults.\n")
    not_defaults = ("laptop", "anonymous", "security:", "board:", "careful:", "no limit unless set")
    lines = [line for line in rest.splitlines() if not any(words in line for words in not_defaults)]
    shown = "\n".join(line.removeprefix("# ") for line in lines)
    shown = shown.replace("  keys:", "  keys: {}").replace("  profiles:", "  profiles: {}")
    with_defaults = config.check_text(head + shown, "f", Path("/base"), {})
    assert not with_defaults.errors, with_defaults.findings
    assert with_defaults.config == config.check_text(head, "f", Path("/base"), {}).config
    # a server's defaults likewise
    example = [line.removeprefix("  # ") for line in template.EXAMPLE.splitlines() if line.startswith("  #   ")]
    unlike = ("#", "command", "args", "env", "tools", "idle")  # `idle` unset depends on how the server is reached
    keys = [line for line in example if not line.lstrip().startswith(unlike)]
    full = head.replace("  a:\n", "  files:\n") + "\n".join(f"  {line}" for line in keys)
    assert not config.check_text(full, "f", Path("/base"), {}).errors
    plain = config.check_text(head.replace("  a:\n", "  files:\n"), "f", Path("/base"), {})
    assert config.check_text(full, "f", Path("/base"), {}).config == plain.config
