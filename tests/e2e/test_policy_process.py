"""The policy as its subjects meet it: the real command, real sockets, servers that write down what reaches them.

The strongest thing to say about a refusal is that the server saw nothing.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import COMMAND, ROOT, clean_environment, settings_for, write_config
from e2e.wire import LEGACY, META, MODERN
from policy_bed import Bed, Json, bearer, bed, client_keys, key_of, reason, recorder

POLICY = """\
p, role:reader, fs, *, read, allow
p, role:writer, fs, *, *, allow
p, *, fs, prompt:secret, *, deny
p, *, fs, res:file:///secret/*, *, deny
p, *, fs, res:file:///secret, *, deny
p2, *, fs, tool:drop, destroy, two-person
"""
CLASSES = {"read": "read", "stat": "read", "drop": "destroy"}
RULE: Json = {"type": "object", "properties": {"path": {"type": "string", "pattern": "^/home/"}}, "required": ["path"]}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("guarded")
    catalog = {
        "tools": ["read", "stat", "write", "drop"],
        "prompts": ["plain", "secret"],
        "resources": ["file:///plain", "file:///secret"],
        "templates": ["file:///home/{name}", "file:///secret/{name}"],
    }
    servers = {
        "fs": recorder(folder, "fs", **catalog) | {"tools": {"classes": CLASSES}},
        "new": recorder(folder, "new", **catalog),
    }
    (folder / "arguments" / "fs").mkdir(parents=True)
    (folder / "arguments" / "fs" / "write.json").write_text(json.dumps(RULE))
    clients = {"keys": client_keys(reader=["role:reader"], writer=["role:writer"], nobody=[])}
    policy = {"files": ["policy.csv"], "arguments": "arguments"}
    with bed(folder, POLICY, servers, clients=clients, policy=policy, approvals={"hold_for": "200ms"}) as made:
        yield made


def shape(answer: httpx.Response, name: str) -> tuple[int, str]:
    return answer.status_code, answer.text.replace(name, "NAME")


# ---------------------------------------------------------------- who may see and call what


def test_a_tool_without_a_right_is_not_listed_and_looks_unknown(guarded: Bed) -> None:
    assert guarded.names("reader") == ["fs__read", "fs__stat"]
    before = len(guarded.seen("fs"))
    refused = guarded.call("reader", "fs__write")
    assert shape(refused, "fs__write") == shape(guarded.call("reader", "fs__wrote"), "fs__wrote")
    assert refused.json()["error"]["code"] == -32602
    assert len(guarded.seen("fs")) == before

    def records() -> list[Json]:
        return [record for record in guarded.audit() if record.get("own") == "write"]

    guarded.until(lambda: records() != [])  # outcomes are written behind the answer
    assert [(r["decision"]["verdict"], r["decision"]["rule"]) for r in records()] == [("deny", "default")]


def test_legacy_clients_get_the_same_answer(guarded: Bed) -> None:
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = guarded.post("reader", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
    headers = {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    guarded.post("reader", {"jsonrpc": "2.0", "method": "notifications/initialized"}, headers)

    def call(name: str) -> tuple[int, str]:
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": {}}}
        return shape(guarded.post("reader", body, headers), name)

    before = len(guarded.seen("fs"))
    assert call("fs__write") == call("fs__wrote")
    assert len(guarded.seen("fs")) == before
    assert "ran read" in call("fs__read")[1]


def test_a_server_that_no_row_speaks_of_is_not_there(guarded: Bed) -> None:
    for what in ("tools", "prompts", "resources", "resourceTemplates"):
        assert not [name for name in guarded.names("writer", what) if name.startswith("new")]
    refused, unknown = guarded.call("writer", "new__read"), guarded.call("writer", "no__read")
    assert shape(refused, "new__read") == shape(unknown, "no__read")
    discovered = guarded.ask("writer", "server/discover").json()["result"]
    assert "new" not in discovered.get("instructions", "")
    assert guarded.names("nobody") == [] and guarded.seen("new") == []


def test_an_unknown_method_is_not_found_whoever_asks(guarded: Bed) -> None:
    answer = guarded.ask("writer", "tools/destroy")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, -32601)


@pytest.mark.parametrize(
    "uri",
    ["fs+file:///secret", "fs+file:///secret/x", "fs+file:///%73ecret", "fs+FILE:///secret", "fs+file:///a/../secret",
     "fs+file:///secret%2Fx", "fs+file://localhost/secret", "fs+file:///./secret", "file:///secret", "FS+file:///secret",
     "fs+file:///a\\..\\secret", "fs+file:///%2e%2e/secret"],
)  # fmt: skip
def test_a_forbidden_resource_cannot_be_read_however_it_is_spelt(guarded: Bed, uri: str) -> None:
    before = len(guarded.seen("fs"))
    answer = guarded.ask("reader", "resources/read", uri=uri)
    assert answer.json()["error"]["message"] == "Resource not found", answer.text
    assert len(guarded.seen("fs")) == before


def test_what_may_be_read_and_got_is_and_the_rest_is_not_there(guarded: Bed) -> None:
    assert guarded.names("reader", "prompts") == ["fs__plain"]
    assert guarded.names("reader", "resources") == ["fs+file:///plain"]
    assert guarded.names("reader", "resourceTemplates") == ["fs+file:///home/{name}"]
    assert "result" in guarded.ask("reader", "resources/read", uri="fs+file:///home/ann").json()
    assert "result" in guarded.ask("reader", "prompts/get", name="fs__plain").json()
    before = len(guarded.seen("fs"))
    refused = guarded.ask("reader", "prompts/get", name="fs__secret")
    assert shape(refused, "fs__secret") == shape(guarded.ask("reader", "prompts/get", name="fs__nope"), "fs__nope")
    assert len(guarded.seen("fs")) == before


REFS = [
    {"type": "ref/prompt", "name": "fs__secret"},
    {"type": "ref/resource", "uri": "fs+file:///secret"},
    {"type": "ref/resource", "uri": "fs+file:///secret/{name}"},
]


@pytest.mark.parametrize("ref", REFS, ids=["prompt", "resource", "template"])
def test_nothing_is_completed_about_what_is_forbidden(guarded: Bed, ref: Json) -> None:
    argument = {"name": "name", "value": "a"}
    before = len(guarded.seen("fs"))
    refused = guarded.ask("reader", "completion/complete", ref=ref, argument=argument)
    unknown = guarded.ask("reader", "completion/complete", ref={"type": "ref/prompt", "name": "x"}, argument=argument)
    assert (refused.status_code, refused.text) == (unknown.status_code, unknown.text)
    assert len(guarded.seen("fs")) == before
    ref = {"type": "ref/prompt", "name": "fs__plain"}
    fine = guarded.ask("reader", "completion/complete", ref=ref, argument=argument)
    assert fine.json()["result"]["completion"]["values"] == ["secret"]


NAMES = ["FS__READ", "fs__Read", "Fs__read", "\uff46\uff53__read", "fs__re\u200bad", "fs__read\u200b", "", " ",
         "fs__" + "r" * 125, " fs__read", "fs__read ", "fs__", "__read", "read", "fs__*", "fs__r?ad"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_no_spelling_of_a_name_is_normalised_into_a_match(guarded: Bed, name: str) -> None:
    before = len(guarded.seen("fs"))
    answer = guarded.call("writer", name)
    assert answer.json()["error"]["code"] == -32602 or answer.status_code == 400, answer.text
    assert len(guarded.seen("fs")) == before


def test_two_clients_have_lists_of_their_own(guarded: Bed) -> None:
    for _ in range(3):
        assert guarded.names("reader") == ["fs__read", "fs__stat"]
        assert guarded.names("writer") == ["fs__read", "fs__stat", "fs__write", "fs__drop"]
        assert guarded.names("nobody") == []


# ---------------------------------------------------------------- arguments and approvals


def test_arguments_that_the_policy_does_not_want_never_reach_the_server(guarded: Bed) -> None:
    before = len(guarded.seen("fs"))
    refused = guarded.call("writer", "fs__write", path="/etc/passwd")
    assert reason(refused) == "invalid_arguments" and refused.json()["result"]["isError"] is True
    text = refused.json()["result"]["content"][0]["text"]
    assert "/path" in text and "/etc/passwd" not in text
    assert reason(guarded.call("writer", "fs__write")) == "invalid_arguments"
    assert len(guarded.seen("fs")) == before
    assert reason(guarded.call("writer", "fs__write", path="/home/ann")) == ""
    assert guarded.seen("fs")[-1]["params"]["arguments"] == {"path": "/home/ann"}
    # Whoever may not know of the tool is told nothing of its rule.
    assert "Unknown tool" in guarded.call("reader", "fs__write", path="/etc/passwd").text


def test_a_call_that_needs_an_approval_is_listed_and_never_reaches_the_server(guarded: Bed) -> None:
    before = len(guarded.seen("fs"))
    refused = guarded.call("writer", "fs__drop")
    assert "fs__drop" in guarded.names("writer") and reason(refused) == "approval_pending"
    assert "2 of role:lead" in refused.text and "two-person" in refused.text
    assert len(guarded.seen("fs")) == before


def test_what_was_recorded_can_be_decided_again_by_another_policy(guarded: Bed) -> None:
    guarded.call("reader", "fs__read")
    guarded.call("reader", "fs__write")
    (guarded.folder / "draft.csv").write_text(POLICY.replace("p, role:reader, fs, *, read, allow\n", ""))
    command = [*COMMAND, "policy", "diff", "draft.csv", "--replay", "audit", "--json", "-c", "sluice.yaml"]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=guarded.folder, env=clean_environment(), timeout=60, check=False
    )
    report = json.loads(done.stdout)
    assert done.returncode == 1 and set(report["changes"]) == {"allow->deny"}
    assert all(change["principal"] == "key:reader" for change in report["examples"])


def test_metrics_say_what_was_decided_and_which_policy_did(guarded: Bed) -> None:
    guarded.call("writer", "fs__drop")
    shown = guarded.process.get("/metrics")[1]
    assert 'sluice_decisions_total{class="destroy",server="fs",verdict="ask"}' in shown
    assert "sluice_policy_reload_success 1.0" in shown and "sluice_policy_shadow 0.0" in shown
    assert 'sluice_policy_info{revision="' in shown


# ---------------------------------------------------------------- a policy that cannot be used, or cannot decide


def start(folder: Path, policy: Json, **files: str) -> "subprocess.CompletedProcess[str]":
    """What the command says where it does not start."""
    for name, text in files.items():
        (folder / name.replace("_", ".")).write_text(text)
    servers = {"fs": recorder(folder, "fs", tools=["read"])}
    path = write_config(settings_for({"servers": servers, "policy": policy}, folder), folder)
    command = [*COMMAND, "serve", "-c", str(path)]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=clean_environment(), timeout=60, check=False
    )


def test_a_policy_that_is_missing_or_wrong_does_not_start_and_says_where(tmp_path: Path) -> None:
    for policy, words in (
        ({"files": ["nope.csv"]}, "unreadable-file there is no such file"),
        ({"files": ["policy.csv"]}, 'policy.csv:2:16 wrong-effect "Deny" is no effect (did you mean "deny"?)'),
    ):
        folder = tmp_path / policy["files"][0]
        folder.mkdir()
        done = start(folder, policy, policy_csv="p, *, *, *, *, allow\np, *, *, *, *, Deny\n")
        assert (done.returncode, done.stdout) == (3, ""), done.stderr
        assert words in done.stderr


def test_a_policy_that_breaks_its_tests_does_not_start(tmp_path: Path) -> None:
    tests = "- {as: {id: a}, call: fs/read, expect: deny}\n"
    policy = {"files": ["policy.csv"], "tests": "tests.yaml"}
    done = start(tmp_path, policy, policy_csv="p, *, *, *, *, allow\n", tests_yaml=tests)
    assert done.returncode == 3 and "tests.yaml:1:1 test-failed" in done.stderr


def test_an_empty_policy_denies_everything(tmp_path: Path) -> None:
    servers = {"fs": recorder(tmp_path, "fs", tools=["read"], prompts=["p"], resources=["a:b"], templates=["a:{b}"])}
    with bed(tmp_path, "# nothing\n", servers, clients={"keys": client_keys(ann=["role:owner"])}) as made:
        for what in ("tools", "prompts", "resources", "resourceTemplates"):
            assert made.names("ann", what) == []
        assert "Unknown tool" in made.call("ann", "fs__read").text
        assert "not found" in made.ask("ann", "resources/read", uri="fs+a:b").text
        assert "Unknown prompt" in made.ask("ann", "prompts/get", name="fs__p").text
        assert made.seen("fs") == []


def test_an_engine_that_breaks_lets_nothing_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "broken"
    launcher = [sys.executable, str(Path(__file__).parents[1] / "breaking_sluice.py"), str(flag)]
    monkeypatch.setattr("e2e.sluice_process.COMMAND", launcher)
    servers = {"fs": recorder(tmp_path, "fs", tools=["read", "stat"])}
    with bed(tmp_path, "p, *, *, *, *, allow\n", servers, clients={"keys": client_keys(ann=[])}) as made:
        assert "ran read" in made.call("ann", "fs__read").text  # and is remembered
        flag.write_text("stat")
        assert "Unknown tool" in made.call("ann", "fs__stat").text
        assert "sluice_decision_errors_total 0.0" not in made.process.get("/metrics")[1]
        flag.write_text("")
        assert "Unknown tool" in made.call("ann", "fs__stat").text  # from the first moment for what is not remembered
        made.until(lambda: "Unknown tool" in made.call("ann", "fs__read").text)
        assert made.process.get("/readyz")[0] == 503
        assert "the policy cannot decide" in made.process.get("/readyz")[1]
        before = len(made.seen("fs"))
        assert made.names("ann") == [] and "Unknown tool" in made.call("ann", "fs__stat").text
        assert len(made.seen("fs")) == before
        made.until(lambda: "policy_error" in json.dumps(made.audit()))
        flag.unlink()
        made.until(lambda: "ran stat" in made.call("ann", "fs__stat").text)
        assert made.process.get("/readyz")[0] == 200


# ---------------------------------------------------------------- shadow mode


def test_shadow_mode_lets_pass_what_rows_deny_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "arguments" / "fs").mkdir(parents=True)
    (tmp_path / "arguments" / "fs" / "write.json").write_text(json.dumps(RULE))
    servers = {"fs": recorder(tmp_path, "fs", tools=["read", "write", "fork"]) | {"tools": {"deny": ["fork"]}}}
    policy = {"files": ["policy.csv"], "arguments": "arguments", "mode": "shadow", "until": "2099-01-01"}
    keys = {"keys": client_keys(ann=[])}
    with bed(tmp_path, "p, role:x, *, *, *, allow\n", servers, clients=keys, policy=policy) as made:
        assert made.names("ann") == ["fs__read", "fs__write"]
        assert "ran read" in made.call("ann", "fs__read").text
        assert "would deny tools/call fs__read for key:ann by default" in made.process.log()

        def decisions() -> list[Any]:
            reads = [record for record in made.audit() if record.get("own") == "read"]
            return [record["decision"] for record in reads if "decision" in record]

        made.until(lambda: decisions() != [])  # outcomes are written behind the answer
        assert all(decision["would_deny"] is True for decision in decisions())
        # A tool list of the server, and the rules for arguments, are not the rows.
        assert "Unknown tool" in made.call("ann", "fs__fork").text
        assert reason(made.call("ann", "fs__write", path="/etc")) == "invalid_arguments"
        assert "sluice_policy_shadow 1.0" in made.process.get("/metrics")[1]
        assert any("shadow mode" in note for note in made.notes())


# ---------------------------------------------------------------- reload

OPEN = "p, *, *, *, *, allow\np, local, sluice, admin:*, *, allow\n"


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Bed]:
    servers = {"fs": recorder(tmp_path, "fs", tools=["read", "write"])}
    with bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[], bob=[])}) as made:
        yield made


BROKEN = {
    "a wrong effect": ("p, *, *, *, *, Allow\n", "policy.csv:1:16 wrong-effect"),
    "a field too few": ("p, *, *, *, allow\n", "policy.csv:1:13 column-count"),
    "an unknown row type": ("p3, *, *, *, *, allow\n", "policy.csv:1:1 unknown-row-type"),
    "an unknown profile": (OPEN + "p2, *, *, *, *, leads\n", "policy.csv:3:17 unknown-profile"),
    "a class that is none": ("p, *, *, *, delete, allow\n", "policy.csv:1:13 unknown-class"),
    "a subject that is none": ("p, ann, *, *, *, allow\n", "policy.csv:1:4 unknown-subject"),
}


def test_a_bad_policy_keeps_the_old_one_and_says_why(living: Bed) -> None:
    for text, words in BROKEN.values():
        living.write(text)
        living.until(lambda words=words: any(words in note for note in living.notes()))  # type: ignore[misc]
        assert words in living.process.log()
        assert living.names("ann") == ["fs__read", "fs__write"] and "ran read" in living.call("ann", "fs__read").text
        assert "sluice_policy_reload_success 0.0" in living.process.get("/metrics")[1]
        assert living.process.get("/readyz")[0] == 200
    (living.folder / "policy.csv").unlink()
    living.until(lambda: any("unreadable-file" in note for note in living.notes()))
    assert living.names("ann") == ["fs__read", "fs__write"]
    living.write(OPEN)
    living.until(lambda: not living.notes())


BAD_CONFIGS = {
    "an unknown key": (lambda text: text.replace('"drain"', '"drian"'), 'unknown-key "drian" is no key'),
    "a server twice": (lambda text: text.replace('"fs": {', '"fs": {"command": "x"}, "fs": {'), 'duplicate-key "fs"'),
    "a tag": (lambda text: text.replace('"2s"', "!!python/object:os.system 2s"), "tag YAML tags"),
    "a server's key with a path": (lambda text: text.replace('"fs": {', '"../fs": {'), "bad-server-key"),
    "a key that is no hash": (lambda text: text.replace('"sha256:', '"'), "bad-hash not a key hash"),
    "no YAML": (lambda text: text[:-3], "bad-yaml"),
    "nothing": (lambda text: "", "missing-key there is no policy"),
}


def test_a_bad_config_keeps_the_old_one_and_says_why(living: Bed) -> None:
    good = living.process.config.read_text()
    for spoil, words in BAD_CONFIGS.values():
        living.write(spoil(good), "sluice.yaml")  # type: ignore[no-untyped-call]
        living.until(lambda words=words: any(words in note for note in living.notes()))  # type: ignore[misc]
        assert "sluice.yaml:" in living.notes()[0]
        assert "ran read" in living.call("ann", "fs__read").text
    living.write(good, "sluice.yaml")
    living.until(lambda: not living.notes())


def test_a_good_policy_is_in_force_within_five_seconds_and_clients_are_told(living: Bed) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen", "params": listening()}
    headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen", **bearer("ann")}
    accept = {"Accept": "application/json, text/event-stream"}
    assert living.names("ann") == ["fs__read", "fs__write"]
    with httpx.stream("POST", living.process.url, json=body, headers=headers | accept, timeout=20) as stream:
        events = events_of(stream)
        assert next(events)["method"] == "notifications/subscriptions/acknowledged"
        living.write(OPEN + "p, key:ann, *, tool:write, *, deny\n")
        # Next on the stream, and so before the sign of life that comes 15 seconds after its beginning: the files are
        # looked at more often than that.
        assert next(events)["method"] == "notifications/tools/list_changed"
        assert living.names("ann") == ["fs__read"]
    assert "Unknown tool" in living.call("ann", "fs__write").text
    assert living.names("bob") == ["fs__read", "fs__write"]


def listening() -> Json:
    return {"notifications": {"toolsListChanged": True}, "_meta": META}


def events_of(stream: httpx.Response) -> Iterator[Json]:
    for line in stream.iter_lines():
        assert line.strip() != ":", "a sign of life"
        if line.startswith("data:") and line[5:].strip():
            yield json.loads(line[5:])


def test_a_key_that_is_removed_ends_its_session_and_its_streams(living: Bed) -> None:
    hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    answer = living.post("ann", {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}, {})
    session = {"MCP-Protocol-Version": LEGACY, "Mcp-Session-Id": answer.headers["mcp-session-id"]}
    living.post("ann", {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
    config = json.loads(living.process.config.read_text())
    del config["clients"]["keys"]["ann"]
    headers = {"Accept": "text/event-stream", **session, **bearer("ann")}
    with httpx.stream("GET", living.process.url, headers=headers, timeout=30) as stream:
        assert stream.status_code == 200
        living.write(json.dumps(config), "sluice.yaml")
        living.until(lambda: living.ask("ann", "tools/list").status_code == 401)
        try:
            assert not [line for line in stream.iter_lines() if line.startswith("data:") and line[5:].strip()]
        except httpx.RemoteProtocolError:
            pass  # closed in the middle of the stream, as it should be
    assert living.names("bob") == ["fs__read", "fs__write"]


def test_what_only_a_restart_can_change_is_said_and_the_rest_is_in_force(living: Bed) -> None:
    config = json.loads(living.process.config.read_text())
    config["servers"]["fs"]["tools"] = {"deny": ["write"]}
    config["limits"] = {"page": 10}
    living.write(json.dumps(config), "sluice.yaml")
    living.until(lambda: living.names("ann") == ["fs__read"])
    assert living.notes() == ["needs a restart: limits"]
    del config["servers"]["fs"]
    living.write(json.dumps(config), "sluice.yaml")
    living.until(lambda: living.names("ann") == [])
    assert "Unknown tool" in living.call("ann", "fs__read").text


def test_a_hangup_reads_everything_again_even_if_nothing_is_watched(tmp_path: Path) -> None:
    servers = {"fs": recorder(tmp_path, "fs", tools=["read"])}
    policy: Any = {"files": ["policy.csv"], "watch": False}
    with bed(tmp_path, OPEN, servers, clients={"keys": client_keys(ann=[])}, policy=policy) as made:
        assert made.names("ann") == ["fs__read"]
        made.write("# nothing\n")
        made.process.process.send_signal(signal.SIGHUP)
        made.until(lambda: made.names("ann") == [])
        assert made.process.process.poll() is None


def test_a_right_on_sluice_itself_is_a_row(living: Bed) -> None:
    def servers(who: str) -> int:
        url = f"{living.process.admin}/api/v1/servers"
        return httpx.get(url, headers={"Authorization": f"Bearer {key_of(who)}"}, timeout=30).status_code

    assert (servers("ann"), servers("nobody")) == (403, 401)
    living.write(OPEN + "p, key:ann, sluice, admin:servers, read, allow\n")
    living.until(lambda: servers("ann") == 200)
    assert servers("bob") == 403
