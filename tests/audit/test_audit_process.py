"""The audit log of a real Sluice, as an operator has it: what it says, what it never says, and how it is proved."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

import pytest
from audit_kit import fits_ocsf
from audit_sluice import ENVIRONMENT, HERE, META, VERSION, Sluice, records, run, start

from sluicegate.audit.checkpoint import Signer, write_publics


@pytest.fixture
def sluice(tmp_path: Path) -> Iterator[Sluice]:
    found = start(tmp_path)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait(30)


def test_a_call_leaves_an_intent_and_an_outcome_and_the_log_is_proved(sluice: Sluice) -> None:
    assert sluice.call("rec__note", {"title": "x"}).json()["result"]["content"][0]["text"] == "noted"
    assert sluice.call("rec__made_up").status_code in (200, 400)
    assert sluice.run("audit", "verify").returncode == 0, "a running log can be proved, too"
    sluice.stop()
    found = {(record["type"], record.get("public", record.get("asked"))): record for record in records(sluice.folder)}
    intent, outcome = found["intent", "rec__note"], found["outcome", "rec__note"]
    assert intent["call"] == outcome["call"] and intent["seq"] < outcome["seq"]
    assert (intent["principal"], intent["owner"], intent["roles"]) == ("key:probe", "team", ["role:ci"])
    assert outcome["outcome"] == "ok" and intent["client"] == {"name": "probe", "version": "1"}
    assert found["outcome", "rec__made_up"]["reason"] == "not_found"
    done = sluice.run("audit", "verify", "--json")
    assert done.returncode == 0 and json.loads(done.stdout)["writers"][0]["tail"] == 0


def test_a_log_is_proved_elsewhere_with_the_public_key_alone(sluice: Sluice, tmp_path: Path) -> None:
    for number in range(3):
        sluice.call("rec__note", {"n": number})
    sluice.stop()
    other = tmp_path / "other"
    other.mkdir()
    (other / "copy.jsonl").write_bytes(sluice.log.read_bytes())
    state = sluice.folder / "state" / "audit"
    (other / "sign.pub").write_bytes((state / "sign.pub").read_bytes())
    (other / "kept").write_bytes(next(state.glob("*/sluice.checkpoint")).read_bytes())
    command = ["audit", "verify", "copy.jsonl", "--key", "sign.pub", "--checkpoint", "kept"]
    assert run(other, *command).returncode == 0
    whole = (other / "copy.jsonl").read_bytes()
    (other / "copy.jsonl").write_bytes(whole.replace(b'"n":1', b'"n":7', 1))
    done = run(other, *command)
    line = next(number for number, text in enumerate(whole.splitlines(), 1) if b'"n":1' in text)
    assert done.returncode == 1 and f"BAD  copy.jsonl:{line}: record {line}:" in done.stdout
    (other / "copy.jsonl").write_bytes(b"".join(whole.splitlines(keepends=True)[:-3]))
    done = run(other, *command)
    assert done.returncode == 1 and "cut off" in done.stdout
    assert run(other, "audit", "verify", "nothing", "--key", "sign.pub").returncode == 1
    assert run(other, "audit", "verify", "copy.jsonl", "--key", "kept").returncode == 2


def test_the_log_is_read_searched_and_exported(sluice: Sluice) -> None:
    sluice.call("rec__note", {"title": "x"})
    sluice.call("rec__fail")
    sluice.stop()
    tail = sluice.run("audit", "tail", "-n", "20", "--type", "outcome", "--tool", "rec/*")
    assert [line.split()[3:5] for line in tail.stdout.splitlines()] == [
        ["rec__note", "ok"],
        ["rec__fail", "protocol_error"],
    ]
    assert sluice.run("audit", "search", "--principal", "key:probe", "--outcome", "ok").returncode == 0
    assert sluice.run("audit", "search", "--principal", "key:nobody").returncode == 1
    for format, key in (("jsonl", "seq"), ("ocsf", "class_uid"), ("ecs", "@timestamp")):
        lines = sluice.run("audit", "export", "--format", format).stdout.splitlines()
        assert len(lines) == len(records(sluice.folder)) and all(key in json.loads(line) for line in lines)
        for line in lines if format == "ocsf" else ():
            fits_ocsf(json.loads(line))
    assert sluice.run("audit", "export", "--format", "xml").returncode == 2
    assert sluice.run("audit", "approvals").stdout.startswith("APPROVAL")


def test_without_a_log_nothing_reaches_the_server_and_service_returns(sluice: Sluice) -> None:
    sluice.call("rec__note", {"n": 1})
    directory = sluice.folder / "audit"
    directory.rename(sluice.folder / "away")
    refused = [sluice.call("rec__note", {"n": 2}).json()["result"] for _ in range(3)]
    assert all(result["isError"] and "NOT EXECUTED" in result["content"][0]["text"] for result in refused)
    assert all(result["_meta"]["dev.sluice/reason"] == "audit_unavailable" for result in refused)
    assert len(sluice.seen()) == 1
    sluice.wait("/readyz", 503)
    (sluice.folder / "away").rename(directory)
    sluice.wait("/readyz", 200)
    assert "isError" not in sluice.call("rec__note", {"n": 3}).json()["result"]
    metrics = sluice.get("/metrics").text
    assert 'sluice_audit_records_total{result="refused",sink="file"} 3.0' in metrics
    assert "sluice_audit_lost_total 0.0" in metrics
    sluice.stop()
    assert sluice.run("audit", "verify").returncode == 0


def test_a_killed_sluice_closes_what_was_open_as_unknown(sluice: Sluice) -> None:
    sluice.call("rec__note")
    sluice.process.kill()
    sluice.process.wait(30)
    again = start(sluice.folder)
    try:
        again.call("rec__note")
    finally:
        again.stop()
    done = sluice.run("audit", "verify")
    assert done.returncode == 0 and "note: sluice: records " in done.stderr, "a note names the log of its writer"
    found = [json.loads(line) for path in sorted(sluice.log.parent.glob("*.jsonl*"))
             for line in path.read_text().splitlines()]  # fmt: skip
    intents = {record["call"] for record in found if record["type"] == "intent"}
    assert intents <= {record["call"] for record in found if record["type"] == "outcome"}
    assert {record["epoch"] for record in found} == {1, 2}


NAUGHTY = [
    '"rec__a\\nb"', '"rec__\\u001b[31mred"', '"rec__\\u0000"', '"rec__\\u202egnp"', '"rec__\\u2028x"',
    '"rec__\\"},{\\"v\\":1"', '"rec__\\ud83d\\ude00"', '"rec__\\ud800"',
]  # fmt: skip


def test_whatever_a_client_sends_makes_exactly_one_valid_line_each(sluice: Sluice) -> None:
    meta = json.dumps({**META, "io.modelcontextprotocol/clientInfo": {"name": "a\n\x1b[31m\0", "version": '"'}})
    asked = 0
    for name in NAUGHTY:
        wrong = f'{{"name":{name},"arguments":{{{name}:[{name}]}},"_meta":{meta}}}'
        right = f'{{"name":"rec__note","arguments":{{{name}:[{name}]}},"_meta":{meta}}}'
        for params, header in ((wrong, "x"), (right, "rec__note")):
            body = f'{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{params}}}'
            answer = sluice.send(body.encode(), {"mcp-method": "tools/call", "mcp-name": header, **VERSION})
            asked += answer.status_code == 200 and header == "rec__note"
    seen = len(sluice.seen())
    sluice.stop()
    data = sluice.log.read_bytes()
    assert all(0x20 <= byte < 0x7F or byte == 0x0A for byte in data), "printable ASCII and line breaks"
    found = records(sluice.folder)
    assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
    assert seen == asked == sum(record["type"] == "intent" for record in found) >= len(NAUGHTY) - 1
    assert sluice.run("audit", "verify").returncode == 0


def test_a_log_that_is_none_makes_the_verifier_say_so(tmp_path: Path) -> None:
    (tmp_path / "sign.pub").write_bytes(write_publics(Signer([b"s" * 32]).publics))
    logs = (b"", b"no log\n", b"\0" * 100_000, b"[" * 200_000 + b"\n", b"x" * (9 << 20))
    names = [f"{number}.jsonl" for number in range(len(logs))]
    for name, data in zip(names, logs, strict=True):
        (tmp_path / name).write_bytes(data)
    done = run(tmp_path, "audit", "verify", *names, "--key", "sign.pub")
    assert done.returncode == 1, done.stderr
    assert sorted(line.split(":")[0] for line in done.stdout.splitlines()) == [f"BAD  {name}" for name in names]


def test_one_client_on_stdio_is_recorded_with_its_trace_and_its_revision(tmp_path: Path) -> None:
    config = {"policy": {"use": "open"}, "state": {"dir": "state"}, "servers": {"rec": {
        "command": sys.executable, "args": [str(HERE / "recording_server.py"), str(tmp_path / "seen")]}}}  # fmt: skip
    (tmp_path / "sluice.yaml").write_text(json.dumps(config))
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "desk", "version": "7"}}
    trace = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
    call = {"name": "rec__note", "arguments": {}, "_meta": trace}
    with Popen([sys.executable, "-m", "sluicegate", "stdio"], cwd=tmp_path, env=ENVIRONMENT, stdin=PIPE, stdout=PIPE,
               stderr=DEVNULL) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None
        for id, method, params in ((1, "initialize", hello), (2, "tools/call", call)):
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
            while json.loads(process.stdout.readline()).get("id") != id:
                pass
            if id == 1:
                process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.close()
        assert process.wait(30) == 0
    (intent,) = records(tmp_path, "intent")
    told = intent["transport"], intent["revision"], intent["principal"], intent["trace"], intent["client"]["name"]
    assert told == ("stdio", "2025-06-18", "local", "a" * 32, "desk") and intent["definition"].startswith("sha256:")


def test_results_are_kept_and_shown_where_that_is_wanted(tmp_path: Path) -> None:
    hidden = {"content": [{"type": "text", "text": "pebble\u202e74"}]}
    plain = {"content": [{"type": "text", "text": "token: pebble-73"}], "structuredContent": {"rows": 3}}
    script = {"command": sys.executable, "args": [str(HERE / "recording_server.py"), str(tmp_path / "seen")]}
    server = script | {"required": True, "pin": "off", "results": "block"}
    sluice = start(tmp_path, servers={"rec": server}, audit={"results": "redacted"})
    try:
        for answer in (plain, hidden):
            sluice.call("rec__show", {"answer": answer})
        sluice.ask("resources/read", "rec+file:///note", uri="rec+file:///note")
        sluice.ask("prompts/get", "rec__ask", name="rec__ask")
        sluice.stop()
    finally:
        sluice.process.kill()
        sluice.process.wait(30)
    kept = [record for record in records(tmp_path, "outcome") if "result" in record]
    assert [record["method"] for record in kept] == ["tools/call", "resources/read", "prompts/get"]
    assert kept[0]["result"]["structuredContent"] == {"rows": 3}
    assert "pebble" not in json.dumps(kept) and all("[redacted:" in json.dumps(record["result"]) for record in kept)
    assert sluice.run("audit", "verify").returncode == 0
    shown = sluice.run("audit", "search", "--results").stdout
    assert shown.count("[redacted:") == 3 and '"rows": 3' in shown and "pebble" not in shown
    assert len(sluice.run("audit", "search", "--results", "--json").stdout.splitlines()) == 3
    none = sluice.run("audit", "search", "--results", "--type", "intent")
    assert none.returncode == 1 and "audit.results: redacted" in none.stderr
