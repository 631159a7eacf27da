"""`sluice prompts`, `resources`, `logs` and `call` at a Sluice that serves over HTTP."""

import json
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import httpx
import pytest
from command_line import run
from e2e.sluice_process import clean_environment
from policy_bed import Bed, bed, client_keys, key_of, recorder

from sluicegate.cli import call
from sluicegate.cli.admin import Admin
from sluicegate.cli.output import Stopped
from sluicegate.protocol.model import REASON

Json = dict[str, Any]
SECRET = "hunter2-and-more"
ROWS = """\
p, role:dev, bank, *, *, allow
p, role:dev, notes, prompt:*, *, allow
p, role:dev, bank, tool:forbidden, *, deny
p2, *, bank, tool:wire, *, one-of-leads
p2, *, bank, tool:close, *, two-person
p, role:lead, sluice, admin:*, *, allow
p, role:dev, sluice, admin:tools, read, allow
p, local, sluice, admin:*, *, allow
"""
MIRRORED = {"name": "mirrored", "inputSchema": {
    "type": "object", "properties": {"city": {"type": "string", "x-mcp-header": "City"}}}}  # fmt: skip
EVIL = {"name": "evil", "description": "a\u202eb\x1b[2J"}


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("behind")
    bank = recorder(folder, "bank", tools=["wire", "close", "look", "forbidden", "bad", MIRRORED, EVIL], broken=["bad"],
                    resources=["file:///a", "file:///b"], templates=["file:///{name}"])  # fmt: skip
    bank["env"] = {"BANK_TOKEN": SECRET}
    notes = recorder(folder, "notes", prompts=["daily"])
    off = recorder(folder, "off") | {"enabled": False}
    keys = client_keys(ann=["role:dev"], lea=["role:lead"], nobody=[])
    with bed(folder, ROWS, {"bank": bank, "notes": notes, "off": off}, clients={"keys": keys},
             approvals={"hold_for": "100ms"}, limits={"page": 1}) as running:  # fmt: skip
        yield running


def said(town: Bed, *words: str, who: str = "") -> "CompletedProcess[str]":
    return run(town.folder, *words, "-c", str(town.folder / "sluice.yaml"),
               env={"SLUICE_KEY": key_of(who)} if who else {})  # fmt: skip


def hinted(town: Bed, words: str) -> str:
    """The command as a hint of `said` shows it: without `-c` it would ask the Sluice of another file."""
    return f"sluice {words} -c {shlex.quote(str(town.folder / 'sluice.yaml'))}"


# ---------------------------------------------------------------- lists


def test_prompts_and_resources_are_those_that_a_client_sees_on_all_pages(town: Bed) -> None:
    assert [row["name"] for row in json.loads(said(town, "prompts", "--as", "ann", "--json").stdout)["prompts"]] == [
        "notes__daily"
    ]
    body = json.loads(said(town, "resources", "--as", "key:ann", "--json").stdout)
    assert [row["uri"] for row in body["resources"]] == ["bank+file:///a", "bank+file:///b"]
    assert [row["uriTemplate"] for row in body["templates"]] == ["bank+file:///{name}"]
    assert "next" not in body and body["as"] == "key:ann"
    text = said(town, "resources", "--as", "ann").stdout
    assert "bank+file:///b" in text and "Templates of URIs:\nURITEMPLATE" in text


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
def test_an_empty_list_says_for_whom_and_an_unknown_client_is_named(town: Bed, what: str) -> None:
    empty = said(town, what, "--as", "nobody")
    assert (empty.returncode, empty.stdout) == (0, "") and empty.stderr == (
        f"key:nobody sees no {what}; `{hinted(town, 'servers')}` shows the servers, "
        f"`{hinted(town, 'explain')}` who may use what\n"
    )
    unknown = said(town, what, "--as", "bob")
    assert (unknown.returncode, unknown.stdout) == (1, "") and "no such client: key:bob" in unknown.stderr


def test_a_list_of_resources_without_an_end_is_cut_and_says_so(town: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("sluicegate.cli.servers"), "MAX_ROWS", 1)
    cut = said(town, "resources", "--as", "ann", "--json")
    body = json.loads(cut.stdout)
    assert [row["uri"] for row in body["resources"]] == ["bank+file:///a"] and "these are the first 1;" in cut.stderr


def test_no_list_is_shown_without_the_right(town: Bed) -> None:
    for what in (["prompts"], ["resources"], ["logs", "bank"]):
        refused = said(town, *what, who="nobody")
        assert (refused.returncode, refused.stdout) == (5, "") and "lacks the right" in refused.stderr
    assert said(town, "logs", "bank", who="ann").returncode == 5, "tools read is no right to read what servers write"
    assert said(town, "prompts", who="ann").returncode == 0


# ---------------------------------------------------------------- logs


def write(town: Bed, text: str) -> None:
    answer = town.call("ann", "bank__look", stderr=text)
    assert answer.status_code == 200, answer.text


def test_logs_show_stderr_without_secrets_and_with_hidden_characters_visible(town: Bed) -> None:
    write(town, f"begun\ntoken {SECRET}\n\x1b[31mred\x1b[0m\nhid\u202eden\nhun\u200bter2-and-more\n\n")
    shown = said(town, "logs", "bank")
    assert shown.returncode == 0
    assert shown.stdout.splitlines()[-5:] == [
        "begun", "token [env:BANK_TOKEN]", "red", "hid\u27e8U+202E\u27e9den", "[env:BANK_TOKEN]",
    ]  # fmt: skip
    body = json.loads(said(town, "logs", "bank", "--json").stdout)
    assert body["lines"][-5:] == shown.stdout.splitlines()[-5:] and body["status"] == "up"


def test_followed_logs_show_each_new_line_once(town: Bed) -> None:
    command = [sys.executable, "-m", "sluicegate", "logs", "bank", "-f", "-c", str(town.folder / "sluice.yaml")]
    write(town, "before\n")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=clean_environment()) as follower:
        assert follower.stdout is not None
        lines = follower.stdout
        guard = threading.Timer(30, follower.kill)
        guard.start()
        while lines.readline() != "before\n":
            assert follower.poll() is None
        for number in range(3):
            write(town, f"same\nline {number}\n")
            assert [lines.readline(), lines.readline()] == ["same\n", f"line {number}\n"]
        follower.send_signal(signal.SIGINT)
        assert follower.wait() == 130
        guard.cancel()


def test_logs_of_what_writes_none_say_why(town: Bed) -> None:
    silent = said(town, "logs", "notes")
    assert (silent.returncode, silent.stdout) == (0, "") and silent.stderr == (
        "notes is up; it has written nothing to stderr since it was connected, and what it wrote before is not kept\n"
    )
    for key in ("nope", "off"):
        assert said(town, "logs", key).returncode == 1 and f"no server {key}" in said(town, "logs", key).stderr
    wrong = said(town, "logs", "../x")
    assert wrong.returncode == 2 and f"is no key of a server; `{hinted(town, 'servers')}`" in wrong.stderr


# ---------------------------------------------------------------- approvals


def test_an_empty_list_of_approvals_says_whose_it_shows(town: Bed) -> None:
    """The operator may decide on nothing here, and nobody tells them what others have to decide on."""
    assert town.call("ann", "bank__wire", to="unseen").status_code == 200
    seen, unseen = said(town, "approvals", "list", who="lea"), said(town, "approvals", "list")
    assert "bank/wire" in seen.stdout and seen.stderr.endswith("1 approval\n")
    assert (unseen.returncode, unseen.stdout) == (0, "")
    yours = "that you may decide or requested; --key-file FILE asks as another client\n"
    assert unseen.stderr == f"0 approvals {yours}"
    id = json.loads(said(town, "approvals", "list", "--json", who="lea").stdout)["approvals"][0]["id"]
    for words in (["approve", id, "-y"], ["deny", id], ["approvals", "show", id]):
        refused = said(town, *words)
        assert refused.returncode == 1
        told = f"an old one may be in the audit log alone: `{hinted(town, 'audit search --type approval')}`\n"
        assert refused.stderr.endswith(f"no such approval {yours}{told}")
    assert said(town, "approvals", "grants", who="lea").stderr == "0 grants\n"
    assert said(town, "approvals", "revoke", "grant_1").stderr.endswith("no such grant\n")


def test_who_has_to_give_a_reason_learns_the_option_for_it(town: Bed) -> None:
    assert town.call("ann", "bank__close").status_code == 200
    rows = json.loads(said(town, "approvals", "list", "--json", who="lea").stdout)["approvals"]
    (id,) = [row["id"] for row in rows if row["tool"] == "close"]
    refused = said(town, "approve", id, "-y", who="lea")
    assert refused.returncode == 1 and refused.stderr.endswith("two-person wants a reason: give a comment with -m\n")
    assert said(town, "deny", id, who="lea").returncode == 0


def test_whoever_may_not_read_approvals_learns_what_deciding_needs(town: Bed) -> None:
    refused = said(town, "approve", "apr_1", who="ann")
    assert refused.returncode == 5 and "lacks the right admin:approvals read" in refused.stderr
    needs = "deciding needs admin:approvals write, too: a row with * in place of read gives both\n"
    assert refused.stderr.endswith(needs)
    unknown = said(town, "approve", "apr_1", who="mallory")
    assert unknown.returncode == 5 and "deciding needs" not in unknown.stderr


# ---------------------------------------------------------------- call


def test_a_call_has_the_rights_of_its_key_and_stands_in_the_audit_log(town: Bed) -> None:
    done = said(town, "call", "bank__look", '{"city": "Oslo"}', who="ann")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "ran look\n"
    assert town.seen("bank")[-1]["params"]["arguments"] == {"city": "Oslo"}
    record = [one for one in town.audit() if one["type"] == "intent"][-1]
    assert (record["principal"], record["own"]) == ("key:ann", "look")
    result = json.loads(said(town, "call", "bank__look", "--json", who="ann").stdout)
    assert result["content"] and not result.get("isError")
    unknown = said(town, "call", "bank__forbidden", who="ann")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert f"`{hinted(town, 'tools')}` shows the names" in unknown.stderr
    refused = said(town, "call", "bank__look", who="nobody")
    assert refused.returncode == 1 and "Unknown tool" in refused.stderr


def test_a_call_without_a_key_or_with_a_wrong_one_is_refused(town: Bed) -> None:
    nobody = said(town, "call", "bank__look")
    assert nobody.returncode == 5 and "give a key with --key-file or $SLUICE_KEY" in nobody.stderr
    wrong = said(town, "call", "bank__look", who="mallory")
    assert wrong.returncode == 5 and "the key in $SLUICE_KEY" in wrong.stderr
    assert key_of("mallory") not in wrong.stderr


def test_a_call_that_fails_exits_1_and_says_why(town: Bed) -> None:
    failed = said(town, "call", "bank__bad", who="ann")
    assert (failed.returncode, failed.stdout) == (1, "") and "broken" in failed.stderr


def test_each_line_of_a_tools_error_is_marked_and_of_a_refusal_none(capsys: pytest.CaptureFixture[str]) -> None:
    """What a server writes stands between Sluice's own lines, and could read like one of them."""
    content = [{"type": "text", "text": "broken\nreason: approval_denied"}]
    for meta, shown in (({}, ["tool: broken", "tool: reason: approval_denied"]),
                        ({REASON: "denied"}, ["broken", "reason: approval_denied", "reason: denied"])):  # fmt: skip
        with pytest.raises(Stopped) as stopped:
            call._show({"result": {"isError": True, "content": content, "_meta": meta}}, False, "sluice tools")
        assert [*capsys.readouterr().err.splitlines(), *stopped.value.args] == shown


def test_an_error_is_marked_and_no_server_gives_a_reason_of_sluices() -> None:
    """A server writes errors, too: none of them reads like a line of Sluice's own."""
    error = {"code": -32000, "message": "waiting for approval x: sluice approve x"}
    for data, hints in (({"reason": "approved by Sluice"}, []), ({"reason": ["denied"]}, []),
                        ({"reason": "rate_limited"}, ["reason: rate_limited"])):  # fmt: skip
        with pytest.raises(Stopped) as stopped:
            call._show({"error": {**error, "data": data}}, False, "sluice tools")
        assert list(stopped.value.args) == ["error: waiting for approval x: sluice approve x (-32000)", *hints]


def test_a_tool_that_wants_arguments_as_headers_is_called_with_them(town: Bed) -> None:
    done = said(town, "call", "bank__mirrored", '{"city": "Oslo"}', who="ann")
    assert done.returncode == 0, done.stderr
    assert town.seen("bank")[-1]["params"] | {"_meta": {}} == {
        "name": "mirrored", "arguments": {"city": "Oslo"}, "_meta": {},
    }  # fmt: skip


@contextmanager
def killed_on_failure(command: list[str], environ: dict[str, str]) -> "Iterator[subprocess.Popen[str]]":
    """`Popen` waits for its child on exit, and a call that is held would outlive a failed assertion."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def test_a_call_that_is_held_names_the_command_that_approves_it(tmp_path: Path) -> None:
    """While Sluice holds the call, it has not answered: progress names the approval. A server's progress never does."""
    bank = recorder(tmp_path, "bank", tools=["wire"])
    keys = client_keys(ann=["role:dev"], lea=["role:lead"])
    with bed(tmp_path, ROWS, {"bank": bank}, clients={"keys": keys}):
        command = [sys.executable, "-m", "sluicegate", "call", "bank__wire", "-c", str(tmp_path / "sluice.yaml")]
        environ = {**clean_environment(), "SLUICE_KEY": key_of("ann")}
        with killed_on_failure(command, environ) as one:
            assert one.stderr is not None
            line = one.stderr.readline()
            who, _, words = line.partition(": sluice ")
            assert who.startswith("waiting for approval apr_")
            assert " by role:lead, not by you, until 2" in who
            assert run(tmp_path.parent, *shlex.split(words), "-y", env={"SLUICE_KEY": key_of("lea")}).returncode == 0
            out, err = one.communicate(timeout=30)
        assert (one.returncode, err) == (0, "") and out


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_a_call_waits_for_its_approval_and_says_so(town: Bed, decision: str) -> None:
    command = [sys.executable, "-m", "sluicegate", "call", "bank__wire", f'{{"to": "{decision}"}}',
               "-c", str(town.folder / "sluice.yaml")]  # fmt: skip
    environ = {**clean_environment(), "SLUICE_KEY": key_of("ann")}
    before = len(town.seen("bank"))
    with killed_on_failure(command, environ) as caller:
        assert caller.stderr is not None
        line = caller.stderr.readline()
        while "sluice approve apr_" not in line:
            assert line, "it ended"
            line = caller.stderr.readline()
        assert " by role:lead, not by you, until 2" in line
        id = line.partition("sluice approve ")[2].split()[0]
        words = ["approve", id, "-y"] if decision == "approve" else ["deny", id, "-m", "not today"]
        assert said(town, *words, who="lea").returncode == 0
        out, err = caller.communicate(timeout=30)
    calls = town.seen("bank")[before:]
    if decision == "approve":
        assert caller.returncode == 0 and out and len(calls) == 1
    else:
        assert caller.returncode == 1 and "not today" in err and not calls
        assert "reason: approval_denied" in err


@pytest.mark.parametrize(("arguments", "why"), [
    ("{", "are no JSON"), ("[1]", "it is another value"), ("city=Oslo", "are no JSON"), ('"x"', "it is another value"),
    ('{"a": NaN}', "NaN is no number"), ('{"a": 1, "a": 2}', "a name twice"), ("[" * 100_000, "are no JSON"),
])  # fmt: skip
def test_arguments_that_are_no_object_exit_2_and_reach_nobody(town: Bed, arguments: str, why: str) -> None:
    before = len(town.seen("bank"))
    wrong = said(town, "call", "bank__look", arguments, who="ann")
    assert (wrong.returncode, wrong.stdout) == (2, "") and why in wrong.stderr, wrong.stderr
    assert len(town.seen("bank")) == before


def test_arguments_come_from_stdin_but_not_with_the_key(town: Bed) -> None:
    command = [sys.executable, "-m", "sluicegate", "call", "bank__look", "-", "-c", str(town.folder / "sluice.yaml")]
    environ = {**clean_environment(), "SLUICE_KEY": key_of("ann")}
    given = '{"city": "Łódź", "n": 1.5}'
    done = subprocess.run(command, input=given, capture_output=True, text=True, env=environ, check=False, timeout=30)
    assert done.returncode == 0 and town.seen("bank")[-1]["params"]["arguments"] == {"city": "Łódź", "n": 1.5}
    done = subprocess.run(command, input="", capture_output=True, text=True, env=environ, check=False, timeout=30)
    assert done.returncode == 2 and "stdin is empty" in done.stderr
    done = subprocess.run(command, input=b"\xff", capture_output=True, env=environ, check=False, timeout=30)
    assert done.returncode == 2 and b"are no JSON" in done.stderr, "no text at all"
    strange = said(town, "call", "bank__look", '{"n": "\udcff"}', who="ann")
    assert strange.returncode == 1 and "internal error" not in strange.stderr, strange.stderr
    unnamed = said(town, "call", "bank__\udcff", who="ann")
    assert unnamed.returncode == 2 and f"is no name of a tool; `{hinted(town, 'tools')}`" in unnamed.stderr
    both = said(town, "call", "bank__look", "-", "--key-file", "-")
    assert both.returncode == 2 and "not both" in both.stderr


def test_where_no_sluice_runs_a_call_exits_4_and_says_how_to_start_one(tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text("policy: {use: open}\nlisten: {mcp: '127.0.0.1:9'}\nservers: {}\n")
    done = run(tmp_path, "call", "bank__look")
    assert done.returncode == 4 and "no Sluice answers at http://127.0.0.1:9/mcp" in done.stderr
    assert "sluice serve" in done.stderr


def test_a_call_reaches_the_sluice_that_runs_while_its_file_has_a_mistake(town: Bed, tmp_path: Path) -> None:
    file = town.folder / "sluice.yaml"
    good = file.read_text()
    broken = json.dumps(json.loads(good) | {"limts": {}}) if good.startswith("{") else f"{good}limts: {{}}\n"
    try:
        file.write_text(broken)
        done = said(town, "call", "bank__look", who="ann")
    finally:
        file.write_text(good)
    assert done.returncode == 0 and done.stdout, done.stderr
    assert 'did you mean "limits"?' in done.stderr and "goes on with what the file said before" in done.stderr
    (tmp_path / "sluice.yaml").write_text("policy: {use: opn}\nlisten: {mcp: '127.0.0.1:9'}\nservers: {}\n")
    alone = run(tmp_path, "call", "bank__look")
    assert alone.returncode == 3 and "wrong-value" in alone.stderr


@pytest.mark.parametrize("has_mistake", [True, False])
def test_a_call_whose_sluice_is_killed_may_have_been_executed_whatever_the_file_says(
    tmp_path: Path, has_mistake: bool
) -> None:
    """Exit code 3 means that nobody was asked: a script that trusts it executes the call twice."""
    bank = recorder(tmp_path, "bank", tools=["look"], silent=["look"])
    with bed(tmp_path, ROWS, {"bank": bank}, clients={"keys": client_keys(ann=["role:dev"])}) as town:
        file = tmp_path / "sluice.yaml"
        if has_mistake:
            file.write_text(json.dumps(json.loads(file.read_text()) | {"limts": {}}))
        command = [sys.executable, "-m", "sluicegate", "call", "bank__look", "--json", "-c", str(file)]
        with killed_on_failure(command, {**clean_environment(), "SLUICE_KEY": key_of("ann")}) as caller:
            town.until(lambda: bool(town.seen("bank")))
            town.process.process.kill()
            out, err = caller.communicate(timeout=30)
        *told, last = err.splitlines()
        error = json.loads(last)["error"]
        assert (caller.returncode, out, error["exit"]) == (4, "", 4)
        assert error["message"].endswith("the call may or may not have been executed")
        assert [line for line in told if 'did you mean "limits"?' in line] == told[:has_mistake]


def test_an_answer_of_the_socket_that_was_cut_off_is_none(tmp_path: Path) -> None:
    (tmp_path / "sluice.yaml").write_text("policy: {use: open}\nservers: {}\nstate: {dir: state}\n")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address := str(tmp_path / "s"))
        listener.listen()
        with call.McpOverSocket(Admin(tmp_path / "sluice.yaml"), address) as connection:
            peer, _ = listener.accept()
            peer.sendall(b'{"id": 1}\n{"id": 2, "resu')
            peer.shutdown(socket.SHUT_WR)
            assert list(connection.ask({}, {})) == [{"id": 1}]
            peer.close()


def test_an_event_ends_where_the_format_says_and_not_at_any_line_end_of_unicode() -> None:
    sent = [{"text": f"a{end}b"} for end in "\u2028\u2029\x85\v\f\x1c"]
    body = "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in sent)
    response = httpx.Response(200, content=body.encode())
    assert [json.loads(data) for data in call._messages(response)] == sent
