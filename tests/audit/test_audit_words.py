"""Records, and what others read of them, word for word: whoever searches, exports or verifies relies on each name."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from audit_kit import (
    CLIENT,
    DIGEST_KEY,
    ITEM,
    OK,
    SEED,
    TARGET,
    check_one,
    fits_ocsf,
    make_call,
    one_call,
    open_audit,
    records,
    segments,
    settings,
    settled,
)

from sluicegate import __version__
from sluicegate.admin.calls import _stage
from sluicegate.audit import chain, export, record, record_templates
from sluicegate.audit.chain import ChainHead, Link
from sluicegate.audit.checkpoint import Signer, read_publics
from sluicegate.audit.follow import Follower
from sluicegate.audit.log import AuditLog, IdentityFailures, Tally
from sluicegate.audit.newest import last_calls
from sluicegate.audit.publish import Publisher, read_newest
from sluicegate.audit.read import Filter, approvals, principals, read_time, search
from sluicegate.audit.record import Body
from sluicegate.audit.recover import Torn
from sluicegate.audit.redact import Redactor
from sluicegate.audit.segment import Segment, retire
from sluicegate.audit.settings import Redaction, Rotation, SinkSettings, file_of, is_segment
from sluicegate.audit.sinks import open_channel, syslog
from sluicegate.audit.verify import verify
from sluicegate.cli.audit import _approval
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.model import (
    ApprovalRef,
    Client,
    Decision,
    Failure,
    InputRequired,
    Result,
    Target,
    Verdict,
    refuse,
)
from sluicegate.store import private

PLACE = {"v": 1, "writer": "w", "epoch": 2, "seq": 3, "prev": "p", "time": "2026-10-01T12:30:00.123456789Z"}
CALL = {
    **PLACE, "type": "outcome", "call": "c1", "method": "tools/call", "principal": "key:a", "roles": ["role:r"],
    "groups": ["group:g"], "client": {"name": "probe", "version": "1"}, "revision": "2026-07-28", "server": "db",
    "kind": "tool", "own": "drop", "class": "destroy", "decision": {"verdict": "allow", "rule": "p:7", "policy": "r7"},
    "outcome": "ok", "reason": "task", "seconds": 0.25, "code": -1, "trace": "t" * 32, "arguments": {"a": 1},
}  # fmt: skip
PRODUCT = {"name": "Sluice", "vendor_name": "mcp-sluice", "version": __version__}


def test_a_call_is_an_ocsf_event_with_everything_in_its_place() -> None:
    made = export.ocsf(CALL)
    fits_ocsf(made)
    assert made == {
        "category_uid": 6, "class_uid": 6003, "activity_id": 4, "activity_name": "Delete", "type_uid": 600304,
        "time": 1_790_857_800_123, "severity_id": 1, "status_id": 1, "status": "Success", "status_detail": "task",
        "metadata": {"version": "1.8.0", "product": PRODUCT, "profiles": ["security_control", "trace"],
                     "uid": "w-2-3", "sequence": 3, "log_name": "w", "event_code": "outcome", "correlation_uid": "c1"},
        "actor": {"user": {"uid": "key:a", "groups": [{"name": "role:r", "type": "role"},
                                                      {"name": "group:g", "type": "group"}]}, "app_name": "probe"},
        "api": {"operation": "tools/call", "service": {"name": "mcp"}, "version": "2026-07-28",
                "request": {"uid": "c1"}, "response": {"code": -1, "error": "ok"}},
        "src_endpoint": {"svc_name": "probe", "uid": "key:a"}, "dst_endpoint": {"svc_name": "db"},
        "resources": [{"name": "drop", "type": "tool", "role_id": 1}], "duration": 250, "trace": {"uid": "t" * 32},
        "action_id": 1, "action": "Allowed", "disposition_id": 1, "disposition": "Allowed",
        "authorizations": [{"decision": "allow", "policy": {"uid": "p:7", "version": "r7"}}],
        "unmapped": {"sluice": {"kind": "tool", "class": "destroy", "arguments": {"a": 1}}},
    }  # fmt: skip


def test_what_is_no_call_is_an_ocsf_event_too() -> None:
    made = export.ocsf({**PLACE, "type": "admin", "act": "stop"})
    fits_ocsf(made)
    assert made == {
        "category_uid": 6, "class_uid": 6003, "activity_id": 99, "activity_name": "Other", "type_uid": 600399,
        "time": 1_790_857_800_123, "severity_id": 1, "status_id": 1, "status": "Success",
        "metadata": {"version": "1.8.0", "product": PRODUCT, "profiles": ["security_control", "trace"],
                     "uid": "w-2-3", "sequence": 3, "log_name": "w", "event_code": "admin"},
        "actor": {"app_name": "sluice"}, "api": {"operation": "sluice/admin", "service": {"name": "mcp"}},
        "src_endpoint": {"svc_name": "sluice", "uid": "sluice"}, "unmapped": {"sluice": {"act": "stop"}},
    }  # fmt: skip
    bare = {**PLACE, "type": "outcome", "server": "db", "client": {}, "principal": "p", "decision": {}, "code": 1}
    event = export.ocsf(bare)
    assert event["resources"] == [{"name": "", "type": "", "role_id": 1}] and event["api"]["response"]["error"] == ""
    assert event["actor"] == {"user": {"uid": "p", "groups": []}, "app_name": "unknown"}
    assert event["authorizations"] == [{"decision": "", "policy": {"uid": ""}}]


@pytest.mark.parametrize(
    ("fields", "activity", "status", "severity", "ecs"),
    [
        ({"outcome": "ok", "class": "read"}, "Read", "Success", 1, "success"),
        ({"outcome": "denied", "class": "write"}, "Update", "Failure", 2, "failure"),
        ({"outcome": "unknown", "class": "odd"}, "Other", "Unknown", 1, "unknown"),
        ({"outcome": "waiting", "method": "tools/list"}, "Read", "Unknown", 1, "unknown"),
        ({"type": "intent", "method": "resources/read"}, "Read", "Unknown", 1, "unknown"),
        ({"outcome": "tool_error", "method": "prompts/get"}, "Read", "Failure", 2, "failure"),
        ({"outcome": "timeout", "method": "server/discover"}, "Read", "Failure", 2, "failure"),
        ({"method": "completion/complete"}, "Read", "Success", 1, "success"),
        ({"method": "subscriptions/listen"}, "Read", "Success", 1, "success"),
        ({"method": "tools/call"}, "Other", "Success", 1, "success"),
    ],
)
def test_an_event_says_what_was_done_and_how_it_ended(
    fields: dict[str, Any], activity: str, status: str, severity: int, ecs: str
) -> None:
    made = export.ocsf({**PLACE, "type": "outcome", **fields})
    assert (made["activity_name"], made["status"], made["severity_id"]) == (activity, status, severity)
    assert export.ecs({**PLACE, "type": "outcome", **fields})["event"]["outcome"] == ecs


def test_a_denial_is_an_action_in_both() -> None:
    denied = {**CALL, "decision": {"verdict": "deny", "rule": "p:7"}}
    made = export.ocsf(denied)
    assert (made["action_id"], made["action"]) == (2, "Denied")
    assert (made["disposition_id"], made["disposition"]) == (2, "Blocked")
    assert made["authorizations"] == [{"decision": "deny", "policy": {"uid": "p:7"}}]
    document = export.ecs(denied)
    assert document["event"]["type"] == ["access", "denied"] and document["rule"] == {"id": "p:7", "version": ""}


def test_a_call_is_an_ecs_document_with_everything_in_its_place() -> None:
    assert export.ecs(CALL) == {
        "@timestamp": PLACE["time"], "ecs": {"version": "8.17.0"},
        "event": {"id": "w-2-3", "kind": "event", "category": ["api"], "type": ["access", "allowed"],
                  "action": "tools/call", "outcome": "success", "sequence": 3, "dataset": "sluice.audit",
                  "provider": "w", "duration": 250_000_000, "reason": "task"},
        "service": {"name": "sluice", "version": __version__},
        "sluice": {"record": "outcome", "epoch": 2, "prev": "p", "kind": "tool", "class": "destroy",
                   "arguments": {"a": 1}, "own": "drop", "outcome": "ok", "code": -1, "revision": "2026-07-28"},
        "user": {"name": "key:a", "roles": ["role:r", "group:g"]}, "user_agent": {"name": "probe", "version": "1"},
        "rule": {"id": "p:7", "version": "r7"}, "trace": {"id": "t" * 32}, "transaction": {"id": "c1"},
        "destination": {"domain": "db"},
    }  # fmt: skip
    identity = export.ecs({**PLACE, "type": "identity", "address": "x", "principal": "p"})
    assert identity == {
        "@timestamp": PLACE["time"], "ecs": {"version": "8.17.0"},
        "event": {"id": "w-2-3", "kind": "event", "category": ["authentication"], "type": ["start"],
                  "action": "identity", "outcome": "failure", "sequence": 3, "dataset": "sluice.audit",
                  "provider": "w"},
        "service": {"name": "sluice", "version": __version__}, "user": {"name": "p", "roles": []}, "user_agent": {},
        "sluice": {"record": "identity", "epoch": 2, "prev": "p", "address": "x"},
    }  # fmt: skip
    assert export.ecs({**PLACE, "type": "admin"})["event"]["type"] == ["info"]


@pytest.mark.parametrize(
    ("what", "status", "outcome"),
    [
        ("client_login_failed", "Failure", "failure"), ("client_refused", "Failure", "failure"),
        ("login_failed", "Failure", "failure"), ("refresh_failed", "Failure", "failure"), (None, "Failure", "failure"),
        ("issuer_changed", "Failure", "failure"),
        ("client_allowed", "Success", "success"), ("client_logged_in", "Success", "success"),
        ("login_done", "Success", "success"), ("logged_out", "Success", "success"),
    ],
)  # fmt: skip
def test_both_say_whether_somebody_was_let_in(what: str | None, status: str, outcome: str) -> None:
    made = {**PLACE, "type": "identity", **({"what": what} if what else {"address": "x", "count": 1})}
    event = export.ocsf(made)
    fits_ocsf(event)
    assert event["status"] == status and export.ecs(made)["event"]["outcome"] == outcome


@pytest.mark.parametrize(
    ("fields", "status", "outcome"),
    [
        ({"type": "admin", "act": "console_refused", "way": "key", "address": "192.0.2.1"}, "Failure", "failure"),
        ({"type": "admin", "act": "console_login", "principal": "key:a"}, "Success", "success"),
        ({"type": "decision", "principal": "key:a", "server": "sluice", "object": "admin:audit", "act": "read",
          "decision": {"verdict": "deny", "rule": "no row allows it", "policy": "r7"}}, "Failure", "failure"),
        ({"type": "decision", "what": "ssrf_blocked", "host": "x.test", "address": "10.0.0.1"}, "Failure", "failure"),
    ],
)  # fmt: skip
def test_both_say_who_was_refused_without_a_call(fields: dict[str, Any], status: str, outcome: str) -> None:
    event = export.ocsf(PLACE | fields)
    fits_ocsf(event)
    assert event["status"] == status and export.ecs(PLACE | fields)["event"]["outcome"] == outcome


def test_the_client_of_a_login_is_named_as_that_of_a_call_is() -> None:
    made = {**PLACE, "type": "identity", "what": "client_allowed", "principal": "jwt:i#ann", "client": "Claude"}
    assert export.ecs(made)["user_agent"] == {"name": "Claude"}
    event = export.ocsf(made)
    fits_ocsf(event)
    assert event["actor"]["app_name"] == event["src_endpoint"]["svc_name"] == "Claude"


# ---------------------------------------------------------------- composing


def composer(**how: Any) -> record.Composer:
    return record.Composer(Redactor(b"k" * 32), **how)


def body(data: Body) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(b"{%b}" % (data if isinstance(data, bytes) else data()))
    assert made.pop("time").endswith("Z")
    return made


def test_a_record_of_a_call_says_all_that_is_known() -> None:
    redactor = Redactor(b"k" * 32)
    made = composer(classify=lambda target: "write", revision=lambda: "r7", transport="stdio")
    client = replace(CLIENT, session="s1", revision="2025-11-25")
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    call = make_call("c1", {"title": "x"}, client=client, meta={"traceparent": parent})
    call.trail.resume("c0", 2, ApprovalRef("apr_1", "d", "r", "p"))
    about = made.about(call)
    known = {
        "call": "c1", "method": "tools/call", "transport": "stdio", "principal": "key:ci-bot", "roles": ["role:ci"],
        "groups": ["group:dev"], "revision": "2025-11-25", "client": {"name": "probe", "version": "1"},
        "owner": "team-ci", "session": redactor.short_digest("s1"), "server": "github", "kind": "tool",
        "own": "create_issue", "public": "gh__create_issue", "class": "write", "definition": record.fingerprint(ITEM),
        "decision": {"verdict": "allow", "rule": "policy.csv:17", "policy": "r7"},
        "round": {"call": "c0", "number": 2}, "trace": "a" * 32,
    }  # fmt: skip
    said = {"arguments_digest": redactor.digest(canonical({"title": "x"}).encode()), "arguments": {"title": "x"}}
    assert body(made.intent(call, about, None)) == {"type": "intent", **known, **said}
    approval = {"id": "apr_1", "state": "consumed"}
    assert body(made.intent(call, about, approval)) == {"type": "intent", **known, **said, "approval": approval}
    ended = {"type": "outcome", **known, "outcome": "ok", "seconds": 0.25}
    assert body(made.outcome(call, about, InputRequired({}), 0.25)) == {**ended, "reason": "input_required"}
    assert body(made.outcome(call, about, Result({}), -1.0)) == {
        **ended, "seconds": 0.0, "result_digest": redactor.digest(b"{}")}  # fmt: skip
    assert body(made.outcome(call, None, Result({}), 0.25)) == {**ended, **said}
    failed = body(made.outcome(call, about, Failure(10**9, "x"), 0.25))
    assert failed == {**ended, "outcome": "protocol_error", "code": 0}
    assert body(made.outcome(call, about, Failure(1 - 10**9, "x"), 0.25))["code"] == 1 - 10**9
    made.forget()
    assert body(made.outcome(call, None, Result({}), 0.25)) == {**ended, **said}


def test_a_record_of_less_says_less() -> None:
    made = composer()
    unknown = make_call("a b", target=None, client=Client("key:x"), params={"name": "nope"}, meta={"traceparent": "x"})
    assert body(made.outcome(unknown, None, None, 0.0)) == {
        "type": "outcome", "call": "a b", "method": "tools/call", "transport": "http", "principal": "key:x",
        "roles": [], "groups": [], "revision": unknown.client.revision, "client": {"name": "", "version": ""},
        "asked": "nope", "outcome": "cancelled", "seconds": 0.0,
    }  # fmt: skip
    odd = body(made.outcome(replace(unknown, params={"uri": 7}), None, None, 0.0))
    assert odd["asked"] == "<class 'int'>"
    refused = body(made.outcome(replace(unknown, params={"name": "nope", "arguments": {"password": "p", "n": 1}}),
                                None, None, 0.0))  # fmt: skip
    assert refused["asked"] == "nope" and refused["arguments"]["n"] == 1 and refused["arguments"]["password"] != "p"
    plain = Target("s", "res", "a:b", "s+a:b")
    call = make_call("c", target=plain)
    assert not {"class", "definition"} & body(made.intent(call, made.about(call), None)).keys()
    assert body(made.note("pin", {})) == {"type": "pin"} and body(made.note("pin", {"a": 1})) == {"type": "pin", "a": 1}
    with pytest.raises(ValueError, match=r"^no such note: intent$"):
        made.note("intent", {})
    withheld = body(composer(results="redacted").outcome(call, "", refuse("tools/call", "denied", "x"), 0.0))
    assert "result" not in withheld and withheld["reason"] == "denied"


def test_what_is_remembered_is_made_anew_when_a_definition_changes() -> None:
    asked: list[Target] = []
    counted = composer(classify=lambda target: asked.append(target) or "write")
    assert counted.about(make_call("c")) == counted.about(make_call("c")) and len(asked) == 1
    made = composer(revision=lambda: "r1")
    one, two = make_call("c1"), make_call("c2", target=replace(TARGET, item={"name": "x"}))
    first, second = made.about(one), made.about(two)
    assert record.fingerprint(ITEM) in first and record.fingerprint({"name": "x"}) in second
    shadow = make_call("c3", verdict=Verdict.DENY)
    assert body(made.intent(shadow, made.about(shadow), None))["decision"] == {
        "verdict": "deny", "rule": "policy.csv:17", "policy": "r1"}  # fmt: skip


def test_each_record_has_the_decision_of_its_own_call() -> None:
    revision = "r1"
    made = composer(revision=lambda: revision)

    def told(decision: Decision) -> dict[str, Any]:
        call = make_call("c")
        call.trail.add(decision)
        found: dict[str, Any] = body(made.intent(call, made.about(call), None))["decision"]
        return found

    allowed = Decision(Verdict.ALLOW, "policy.csv:1", "because")
    assert told(allowed) == {"verdict": "allow", "rule": "policy.csv:1", "policy": "r1"}
    assert told(replace(allowed, verdict=Verdict.ASK)) == {"verdict": "ask", "rule": "policy.csv:1", "policy": "r1"}
    assert told(replace(allowed, rule="policy.csv:2")) == {"verdict": "allow", "rule": "policy.csv:2", "policy": "r1"}
    shadow = Ruling(Verdict.ALLOW, "policy.csv:1", "because", would_deny=True)
    assert told(shadow) == {"verdict": "allow", "rule": "policy.csv:1", "policy": "r1", "would_deny": True}
    assert told(replace(shadow, would_deny=False)) == told(allowed)
    revision = "r2"
    assert told(allowed)["policy"] == "r2" and told(shadow)["policy"] == "r2"
    revision = ""
    assert told(allowed) == {"verdict": "allow", "rule": "policy.csv:1"}
    assert told(replace(allowed, rule="r" * 600))["rule"] == "r" * 512 + "...(88 more)"
    assert "ghp_" not in told(replace(allowed, rule=f"ghp_{'a' * 36}"))["rule"]


def test_what_a_writer_says_itself_has_these_names() -> None:
    key, head = record_templates.Introduction("k1", b"p" * 32), ChainHead(4, "h")
    public = {"key": {"id": "k1", "public": "cHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHA="}}
    loss, torn = record_templates.Loss("disk", 3, 9, True), Torn(7, "abc")
    opened = body(record_templates.opening("1Z", "start", key, head, {"c": 1}, loss=loss, torn=torn))
    version = {"type": "admin", "version": __version__}
    assert opened == {
        **version, **public, "act": "open", "why": "start", "after": {"seq": 4, "hash": "h"}, "open": {"c": 1},
        "loss": {"reason": "disk", "durable": 3, "last": 9, "signed": True}, "torn": {"bytes": 7, "sha256": "abc"},
    }  # fmt: skip
    assert not {"loss", "torn"} & body(record_templates.opening("1Z", "x", key, head, {})).keys()
    assert body(record_templates.start("1Z", key)) == {**version, **public, "act": "start"}
    later = replace(key, previous="k0", sig="s")
    assert body(record_templates.start("1Z", later)) == {
        **version,
        **public,
        "act": "start",
        "previous": "k0",
        "sig": "s",
    }
    assert body(record_templates.stop("1Z")) == {"type": "admin", "act": "stop"}
    assert body(record_templates.lost("1Z", 5)) == {"type": "admin", "act": "lost", "count": 5}
    assert body(record_templates.interrupted("c", 6, "1Z")) == {
        "type": "outcome", "call": "c", "outcome": "unknown", "reason": "interrupted", "intent": 6}  # fmt: skip
    assert record_templates.seconds("1970-01-01T00:01:00.500000000Z") == 60.5 and record_templates.seconds("x") == 0.0
    assert record_templates.seconds("1970-01-01T00:01:00Z") == 60.0


# ---------------------------------------------------------------- reading


def test_a_filter_matches_what_its_fields_say() -> None:
    place = Link("w", 1, 2, "p", "outcome", "2026-10-01T12:00:00.000000000Z", "c1")
    for wanted, is_so in (
        (Filter(), True), (Filter(type="outcome"), True), (Filter(type="intent"), False), (Filter(call="c1"), True),
        (Filter(call="c2"), False), (Filter(since=place.time), True), (Filter(until=place.time), False),
        (Filter(since="2026-10-02"), False), (Filter(until="2026-10-02"), True),
    ):  # fmt: skip
        assert wanted.may_match(place) is is_so
    made = {"principal": "key:a", "approval": {"approver": "key:b"}, "outcome": "denied", "reason": "rate_limited",
            "server": "db", "own": "drop", "public": "d__drop"}  # fmt: skip
    for wanted, is_so in (
        (Filter(principal="key:a"), True), (Filter(principal="key:b"), True), (Filter(principal="key:c"), False),
        (Filter(outcome="denied"), True), (Filter(outcome="rate_limited"), True), (Filter(outcome="ok"), False),
        (Filter(tool="db/dr*"), True), (Filter(tool="drop"), True), (Filter(tool="d__*"), True),
        (Filter(tool="x*"), False),
    ):  # fmt: skip
        assert wanted.matches(made) is is_so
    assert Filter(principal="key:b").matches({"act": "server_stop", "by": "key:b"})
    assert Filter(tool="n*").matches({"asked": "nope"}) and not Filter(tool="n*").matches({"asked": 7})
    assert not Filter(principal="key:b").matches({"approval": "key:b"})


def test_one_row_says_who_approved_what_and_what_became_of_it() -> None:
    told = [
        {"type": "approval", "time": "1", "principal": "key:a", "server": "db", "own": "drop",
         "approval": {"id": "x", "state": "pending", "profile": "two", "digest": "d"}},
        {"type": "approval", "time": "2", "principal": "key:z",
         "approval": {"id": "x", "state": "approved", "approver": "key:b", "comment": "c", "scope": "once"}},
        {"type": "intent", "time": "3", "call": "c1", "own": "other",
         "approval": {"id": "x", "state": "consumed", "approver": "key:b"}},
        {"type": "outcome", "time": "4", "call": "c1", "outcome": "ok"},
        {"type": "outcome", "time": "5", "call": "c2", "outcome": "denied"},
        {"type": "approval", "time": "6", "approval": {"state": "odd"}}, {"type": "pin", "time": "7", "approval": 1},
    ]  # fmt: skip
    decided = {"time": "2", "approver": "key:b", "state": "approved", "comment": "c", "scope": "once"}
    assert approvals(told) == [
        {"id": "x", "decisions": [decided], "asked_at": "1", "state": "consumed", "profile": "two", "digest": "d",
         "principal": "key:a", "server": "db", "tool": "drop", "outcome": "ok"}
    ]  # fmt: skip


def test_a_decision_that_came_too_late_is_marked_and_changes_no_state() -> None:
    told = [
        {"type": "approval", "time": "1", "approval": {"id": "x", "state": "approved", "approver": "key:b"}},
        {"type": "approval", "time": "2", "approval": {"id": "x", "state": "approved", "approver": "key:b"}},
        {"type": "approval", "time": "3",
         "approval": {"id": "x", "state": "cancelled", "void": "approved", "approver": "key:b"}},
        {"type": "approval", "time": "4", "approval": {"id": "x", "state": "cancelled", "void": "consumed"}},
    ]  # fmt: skip
    (row,) = approvals(told)
    decided = {"approver": "key:b", "state": "approved"}
    assert row["decisions"] == [{"time": "1", **decided}, {"time": "2", **decided, "is_void": True}]
    assert row["state"] == "cancelled"
    assert _approval(row)[4:6] == ["cancelled", "key:b (approved), key:b (approved, too late)"]
    assert [_stage(one) for one in told[-2:]] == ["approval not approved", "approval not consumed"]


async def test_the_last_calls_of_somebody_are_few_and_the_newest_come_first(tmp_path: Path) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(12):
            await one_call(audit, f"c{number}")
        await one_call(audit, "o", client=Client("key:other"))
        await one_call(audit, "f", Failure(-32603, "x"), target=replace(TARGET, own="drop"))
    folder = tmp_path / "audit"
    found = last_calls(folder, "key:ci-bot")
    assert len(found) == 10 and [one["own"] for one in found[:2]] == ["drop", "create_issue"]
    assert found[0] == {"time": found[0]["time"], "method": "tools/call", "server": "github", "own": "drop",
                        "outcome": "protocol_error"}  # fmt: skip
    assert [one["time"] for one in found] == sorted((one["time"] for one in found), reverse=True)
    assert len(last_calls(folder, "key:ci-bot", 3)) == 3 and last_calls(folder, "key:x") == []
    assert principals(folder) == {"key:ci-bot", "key:other"}
    assert len(list(search(folder, Filter(type="intent", tool="drop")))) == 1


async def test_failures_of_one_address_are_one_note() -> None:
    notes: list[Any] = []
    failures = IdentityFailures(notes.append, window=60.0)
    for reason in ("bad key", "bad key", "expired"):
        failures.add("192.0.2.1", reason)
    for number in range(45):
        failures.add("192.0.2.2", f"r{number}")
    failures.flush()
    one = {"address": "192.0.2.1", "count": 3, "reasons": {"bad key": 2, "expired": 1}, "window": 60.0}
    assert notes[0] == one and notes[1]["count"] == 45
    assert len(notes[1]["reasons"]) == 41 and notes[1]["reasons"]["other"] == 5
    failures.flush()
    assert len(notes) == 2


def test_files_of_writers_stand_beside_one_another(tmp_path: Path) -> None:
    first = tmp_path / "sluice.jsonl"
    assert file_of(first, "sluice") == first and file_of(first, "sluice-2") == tmp_path / "sluice-2.jsonl"
    assert file_of(first, "x") == tmp_path / "sluice-x.jsonl"
    first.touch()
    (tmp_path / "x.txt").touch()
    assert is_segment(first) and not is_segment(tmp_path / "x.txt") and not is_segment(tmp_path / "y.jsonl")


def test_what_matters_is_a_notice_in_syslog() -> None:
    for type, priority in (("admin", 109), ("identity", 109), ("policy", 109), ("pin", 109), ("approval", 109),
                           ("intent", 110), ("outcome", 110), ("decision", 110), ("checkpoint", 110)):  # fmt: skip
        place = Link("w", 1, 2, "p", type, str(PLACE["time"]), "c1")
        head, line = syslog(place, b'{"v":1}').split(b" - ", 1)
        assert line == b'{"v":1}'
        before, time, _, program, writer, kind = head.decode().split(" ")
        assert (before, time) == (f"<{priority}>1", "2026-10-01T12:30:00.123456Z")
        assert (program, writer, kind) == ("sluice", "w", type)
    for time in ("2026-10-01T12:30:00Z", "2026-10-01T12:30:00.123456Z"):  # as precise as RFC 5424 allows, or less
        assert syslog(Link("w", 1, 2, "p", "pin", time, ""), b"{}").split(b" ")[1] == time.encode()


def test_a_time_that_is_none_is_an_error_that_says_the_forms() -> None:
    now = datetime(2026, 11, 22, 22, 0, tzinfo=UTC)
    for text in ("2026-13-01", "2026-01-01T00:00:00+24:00", "2026-01-01T00:00:00+00:60", "0001-01-01T00:00+23:00"):
        with pytest.raises(ValueError, match=f"^{text!r} is no time that exists$".replace("+", r"\+")):
            read_time(text, now)
    with pytest.raises(ValueError, match=r"^'soon' is no time; write 1h, 30m, 2d \(back from now\), today"):
        read_time(" soon ", now)
    assert read_time("now", now) == "2026-11-22T22:00:00.000000000Z"
    assert read_time("yesterday", now) == "2026-11-21T00:00:00.000000000Z"
    assert read_time("2026-11-22T22:00:00.5-23:59", now) == "2026-11-23T21:59:00.500000000Z"


# ---------------------------------------------------------------- what the verifier says

Lines = list[bytes]


def put_in(lines: Lines, at: int, seq: int, epoch: int = 1, type: str = "pin", writer: str = "sluice") -> Lines:
    before = ChainHead(seq - 1, chain.digest(lines[at - 1]))
    forged = chain.link(before, writer, epoch, f'"type":"{type}","time":"{PLACE["time"]}"'.encode())[0]
    return [*lines[:at], forged.rstrip(b"\n"), *lines[at:]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda ls: [*ls[:3], ls[3].replace(b'"time":"20', b'"time":"21'), *ls[4:]],
         "4: record 4: was changed: its hash is not the one that record 5 names"),
        (lambda ls: [*ls[:3], *ls[4:]], "4: record 4: record 4 is missing here: removed or moved"),
        (lambda ls: [*ls[:3], *ls[6:]], "4: record 4: records 4 to 6 are missing here: removed or moved"),
        (lambda ls: [*ls[:5], ls[2], *ls[5:]], "6: record 3: stands behind record 5: put in or moved"),
        (lambda ls: [*ls[:3], b"x", *ls[4:]], "4: record 4: is not a record: it was changed or put in"),
        (lambda ls: [*ls[:3], b"x" * 2**23], "4: record 4: is longer than a record can be"),
        (lambda ls: put_in(ls[:5], 5, 6, writer="other"), "6: record 6: is of another writer (other): put in"),
        (lambda ls: put_in(ls[:5], 5, 6, epoch=2), "6: record 6: is of epoch 2 after epoch 1: put in or changed"),
        (lambda ls: put_in(ls[:5], 5, 6, type="checkpoint"),
         "6: record 6: is no checkpoint: it was changed or put in"),
        (lambda ls: ls[1:], "1: record 2: a segment must begin with its opening, and this does not"),
        (lambda ls: [*ls[:4], ls[4].replace(b'"prev":"', b'"prev":"0', 1)[:-1]],
         "5: record 5: is not a record: it was changed or put in"),
    ],
)  # fmt: skip
async def test_the_first_wrong_place_is_named_with_what_is_wrong(
    tmp_path: Path, change: Callable[[Lines], Lines], said: str
) -> None:
    async with open_audit(tmp_path) as audit:
        for number in range(6):
            await one_call(audit, f"c{number}")
    (path,) = segments(tmp_path)
    path.write_bytes(b"".join(line + b"\n" for line in change(path.read_bytes().splitlines())))
    (report,) = verify([path], {})
    assert [str(finding) for finding in report.findings] == [f"sluice.jsonl:{said}"] and not report.ok


# ---------------------------------------------------------------- files, places, bounds


def test_a_segment_is_the_file_that_its_name_means(tmp_path: Path) -> None:
    path = tmp_path / "sluice.jsonl"
    made = Segment.create(path, 7, 1.0, is_durable=True)
    made.write(b"abc\n")
    made.check()
    assert path.read_bytes() == b"abc\n"
    assert (made.first, made.opened, made.size) == (7, 1.0, 4)
    resumed = Segment.resume(path, 7, 1.0, is_durable=False)
    resumed.write(b"d")
    with pytest.raises(OSError, match=r"^sluice.jsonl was changed by somebody else$"):
        made.check()
    path.rename(tmp_path / "x")
    with pytest.raises(FileNotFoundError, match=r"^sluice.jsonl was removed or renamed$"):
        made.check()
    path.write_bytes(b"abcd\n")
    with pytest.raises(FileNotFoundError, match=r"^sluice.jsonl was replaced by another file$"):
        made.check()
    for name in ("sluice.jsonl.000000000007", "sluice.jsonl.000000000007-1", "sluice.jsonl.000000000007-2"):
        path.touch()
        assert retire(path, 7) == tmp_path / name and not path.exists()
    made.close()
    resumed.close()


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = private.take_lock(tmp_path / "l")
    assert lock is not None and private.take_lock(tmp_path / "l") is None
    os.close(lock)
    again = private.take_lock(tmp_path / "l")
    assert again is not None
    os.close(again)


def test_a_place_that_takes_no_checkpoint_is_named_without_its_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signed = Signer((b"s" * 32,)).sign("w", 1, 3, "a" * 64, str(PLACE["time"]))
    (tmp_path / "state").mkdir(mode=0o700)
    places = [str(tmp_path / "kept"), str(tmp_path / "none" / "u@x?token=1"), "http://u:p@127.0.0.1:1/c?key=1"]
    publisher = Publisher(tmp_path / "state", "w", places)
    publisher.start()
    publisher.put(signed)
    publisher.stop()
    assert (tmp_path / "kept").read_bytes() == signed.dump() == (tmp_path / "state" / "w.checkpoint").read_bytes()
    assert read_newest(tmp_path / "state", "w") == signed and read_newest(tmp_path / "state", "x") is None
    told = [(record.message, vars(record)["place"], vars(record)["error"]) for record in caplog.records]
    assert told == [
        ("cannot publish the checkpoint", "x", "FileNotFoundError"),
        ("cannot publish the checkpoint", "http://127.0.0.1:1", "ConnectError"),
    ]
    broken = Publisher(tmp_path / "nowhere", "w")
    broken.start()
    broken.put(signed)
    broken.stop()
    assert vars(caplog.records[-1])["file"] == str(tmp_path / "nowhere" / "w.checkpoint")


async def test_a_segment_that_was_gone_on_with_is_named_by_its_first_record_when_it_is_full(tmp_path: Path) -> None:
    for number in range(2):
        async with open_audit(tmp_path, rotate=Rotation(size=20_000)) as audit:
            for call in range(2 + 12 * number):
                await one_call(audit, f"{number}-{call}")
    assert segments(tmp_path)[0].name == "sluice.jsonl.000000000001" and len(segments(tmp_path)) > 1


async def test_records_are_as_the_settings_want_them(tmp_path: Path) -> None:
    redact = Redaction(("pet",), {"github/*": ("/title",)})
    wanted = settings(tmp_path, arguments="redacted", results="redacted", transport="stdio", redact=redact)
    audit = AuditLog(wanted, DIGEST_KEY, (SEED,), lambda target: f"class of {target.own}", lambda: "r7")
    await audit.start()
    call = make_call("c1", {"title": "x", "pet": "Rex", "n": 1})
    assert await audit.intent(call)
    audit.outcome(call, Result({"content": [], "pet": "Rex"}), 0.25)
    audit.identity_failure("192.0.2.1", "bad key")
    await audit.stop()
    (intent,), (outcome,), (identity,) = (records(tmp_path, type) for type in ("intent", "outcome", "identity"))
    redactor = Redactor(DIGEST_KEY)
    masked = {"title": f"[redacted:{redactor.short_digest(canonical('x'))}]", "n": 1,
              "pet": f"[redacted:{redactor.short_digest('Rex')}]"}  # fmt: skip
    assert intent["arguments"] == masked and outcome["result"] == {"content": [], "pet": masked["pet"]}
    for one in (intent, outcome):
        assert (one["transport"], one["class"], one["call"]) == ("stdio", "class of create_issue", "c1")
        assert one["decision"]["policy"] == "r7"
    assert (identity["address"], identity["count"], identity["reasons"]) == ("192.0.2.1", 1, {"bad key": 1})
    assert read_publics((tmp_path / "state" / "sign.pub").read_text()) == Signer([SEED]).publics
    assert check_one(tmp_path).ok and not [one for one in records(tmp_path, "outcome") if one["outcome"] == "unknown"]


async def test_an_audit_log_counts_what_became_of_records(tmp_path: Path) -> None:
    idle = AuditLog(settings(tmp_path), b"d" * 32, (b"s" * 32,))
    assert idle.problem == "the audit log is not started" and idle.head() is None
    assert not await idle.intent(make_call("c")) and not await idle.note_durably("pin", {})
    idle.outcome(make_call("c"), OK, 0.0)
    none = {("file", "ok"): 0, ("file", "refused"): 1, ("file", "failed"): 0}
    assert idle.tally() == Tally(none, 1, 0, {"file": 0.0})
    async with open_audit(tmp_path) as audit:
        await one_call(audit, "c1")
        assert await audit.note_durably("admin", {"act": "stop"}) and audit.problem is None
        await settled(audit)
        tally = audit.tally()
        assert tally.records == {("file", "ok"): 4, ("file", "refused"): 0, ("file", "failed"): 0}
        assert (tally.lost, tally.waiting, tally.lag) == (0, 0, {"file": 0.0})
    follower = Follower(tmp_path / "audit", "sluice", 2)
    assert [place.type for place, _ in follower.read(1)] == ["outcome"]
    follower.close()


def test_what_is_kept_of_values_is_bounded_and_says_so() -> None:
    redactor = Redactor(b"k" * 32, ["pet"], {"s/*": ["/a/*/b", "/l/1"]})
    assert redactor.masked([1, 2, 3, 4], "", 9, 3, 99) == ([1, 2, 3, "...(1 more)"], True)
    assert redactor.masked([1, 2, 3], "", 9, 4, 99) == ([1, 2, 3], False)
    assert redactor.masked("abcdef", "", 4, 9, 99) == ("abcd...(2 more)", True)
    assert redactor.masked("abcd", "", 4, 9, 99) == ("abcd", False)
    assert redactor.masked({"a": "xx", "b": "yy"}, "", 9, 9, 4) == (
        {
            "a": "xx",
            "b": "...(2 more)",
        },
        True,
    )
    assert redactor.masked({"a": "xxxx", "b": "yy"}, "", 9, 9, 4) == ({"a": "...(4 more)", "...": "(1 more)"}, True)
    assert redactor.masked({"a": 1, "b": 2, "c": 3}, "", 9, 2, 99) == ({"a": 1, "b": 2, "...": "(1 more)"}, True)
    deep: Any = "x"
    for _ in range(70):
        deep = [deep]
    shown, is_cut = redactor.masked(deep, "", 9, 999, 9999)
    assert is_cut and json.dumps(shown) == "[" * 64 + '"...(1 more)"' + "]" * 64
    assert redactor.masked([10**40, 10**40 - 1], "", 9, 9, 99) == (["...(a long number)", 10**40 - 1], True)
    mark = redactor.arguments({"password": "p"}, "t")["password"]
    assert mark == f"[redacted:{redactor.short_digest('p')}]" and len(mark) == 27
    for named in ({"pet": "p"}, {"my_PET": "p"}, {"name": "password", "value": "p"}, {"pаsswоrd": "p"}):
        assert mark in redactor.arguments(named, "t").values() or named == {"my_PET": "p"}
    assert redactor.arguments({"password": None, "token": True}, "t") == {"password": None, "token": True}
    placed = redactor.arguments({"a": [{"b": "p"}, {"c": "p"}], "l": ["p", "p", "p"]}, "S/x")
    assert placed == {"a": [{"b": redactor._mark('"p"')}, {"c": "p"}], "l": ["p", redactor._mark('"p"'), "p"]}
    assert record.dump({"a\ud800": ["\udfffb", 1]}) == '{"a\\ufffd":["\\ufffdb",1]}'
    with pytest.raises(ValueError, match=r"^a JSON pointer begins with a slash: a$"):
        Redactor(b"k", (), {"t": ["a"]})
    long = make_call("é" + "i" * 80, target=None)
    assert body(composer().outcome(long, None, None, 0.0))["call"] == "é" + "i" * 63 + "...(17 more)"


def test_a_sink_that_is_none_is_told_what_one_is() -> None:
    with pytest.raises(ValueError, match=r"^a sink is an http") as refused:
        open_channel(SinkSettings("x", "ftp://x"))
    assert str(refused.value) == ("a sink is an http(s) URL, or tcp://host:port or udp://host:port of a syslog server")
