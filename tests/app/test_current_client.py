"""Who goes on with a call that waited: the same client with the roles of now, and nobody with another key."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate import config
from sluicegate.app import state
from sluicegate.app.approvals import current, may_still
from sluicegate.app.services import open_policy_service
from sluicegate.protocol.model import Call, Client, Decision, Target, Trail, Verdict

ANN = Client("key:ann", ("role:dev",), "ann", credential="first")


@pytest.mark.parametrize(("credential", "goes_on"), [("first", True), ("second", False)])
def test_a_newer_key_of_the_same_name_goes_on_with_nothing(credential: str, goes_on: bool) -> None:
    now = Client("key:ann", ("role:ops",), "ann", credential=credential)
    keys = {"ann": SimpleNamespace(expires=None)}
    judges: Any = SimpleNamespace(
        config=SimpleNamespace(clients=SimpleNamespace(keys=keys)), client_of=lambda principal, roles, is_operator: now
    )
    found = current(judges, ANN)
    assert (found is not None) is goes_on and (found is None or found.roles == ("role:ops",))


def test_an_operator_who_previews_is_looked_for_where_operators_come_in() -> None:
    asked: list[bool] = []

    def client_of(principal: str, roles: tuple[str, ...], is_operator: bool) -> Client | None:
        asked.append(is_operator)
        return replace(ANN, credential="first") if is_operator else None

    keys = {"ann": SimpleNamespace(expires=None)}
    judges: Any = SimpleNamespace(config=SimpleNamespace(clients=SimpleNamespace(keys=keys)), client_of=client_of)
    assert current(judges, replace(ANN, is_operator=True)) is not None and current(judges, ANN) is None
    assert asked == [True, False]


@pytest.mark.parametrize(("transport", "roles"), [("stdio", ("role:dev",)), ("http", ("role:ops",))])
async def test_on_stdio_the_local_client_has_the_roles_of_the_start(
    tmp_path: Path, transport: str, roles: tuple[str, ...]
) -> None:
    """As its session has, until the restart that the reload asks for."""
    file = tmp_path / "sluice.yaml"
    section = {"policy": {"use": "team"}, "state": {"dir": str(tmp_path / "state")}}
    file.write_text(json.dumps({**section, "clients": {"local": {"roles": ["role:dev"]}}}))
    async with open_policy_service(config.load(file), file, transport) as judges:
        file.write_text(json.dumps({**section, "clients": {"local": {"roles": ["role:ops"]}}}))
        await judges.reload.renew()
        found = judges.client_of("local")
        assert found is not None and found.roles == roles


def test_an_approval_of_other_terms_than_its_own_does_not_let_a_call_pass() -> None:
    keys = {"ann": SimpleNamespace(expires=None)}
    now = Decision(Verdict.ASK, "two people", "")
    judges: Any = SimpleNamespace(
        config=SimpleNamespace(clients=SimpleNamespace(keys=keys)),
        client_of=lambda principal, roles, is_operator: ANN,
        judge=SimpleNamespace(decide=lambda call, target: now, check_arguments=lambda target, arguments: None),
    )
    trail = Trail("c1")
    trail.add(Decision(Verdict.ASK, "one person", ""))
    call = Call(ANN, "tools/call", {}, target=Target("s", "tool", "t", "s__t"), trail=trail)
    assert not may_still(judges, judges.judge.decide, call)
    trail.add(now)
    assert may_still(judges, judges.judge.decide, call)


@pytest.mark.parametrize(
    ("then", "now", "may"),
    [
        (Verdict.ALLOW, Verdict.ALLOW, True),
        (Verdict.ALLOW, Verdict.ASK, False),
        (Verdict.ASK, Verdict.ASK, True),
        (Verdict.ASK, Verdict.ALLOW, True),
        (Verdict.ALLOW, Verdict.DENY, False),
        (Verdict.ASK, Verdict.DENY, False),
        (Verdict.ALLOW, None, False),
    ],
)
def test_a_call_that_waited_at_its_server_is_sent_by_the_rights_of_now(
    then: Verdict, now: Verdict | None, may: bool
) -> None:
    client = None if now is None else Client("key:ann", ("role:ops",), "ann", credential="first")
    seen: list[tuple[str, ...]] = []

    def decide(call: Call, target: Target) -> Decision:
        seen.append(call.client.roles)
        return Decision(now or Verdict.ALLOW, "", "")

    judges: Any = SimpleNamespace(
        config=SimpleNamespace(clients=SimpleNamespace(keys={"ann": SimpleNamespace(expires=None)})),
        client_of=lambda principal, roles, is_operator: client,
        judge=SimpleNamespace(decide=decide, check_arguments=lambda target, arguments: None),
    )  # fmt: skip
    trail = Trail("c1")
    trail.add(Decision(then, "", ""))
    call = Call(ANN, "tools/call", {}, target=Target("s", "tool", "t", "s__t"), trail=trail)
    assert may_still(judges, judges.judge.decide, call) is may
    assert seen == ([] if now is None else [("role:ops",)])
    assert may_still(judges, judges.judge.decide, Call(ANN, "tools/list", {})), "a list is judged item by item"


async def test_a_call_that_waited_at_its_server_meets_the_argument_rules_of_now(tmp_path: Path) -> None:
    file, rule = tmp_path / "sluice.yaml", tmp_path / "arguments" / "bank" / "pay.json"
    (tmp_path / "policy.csv").write_text("p, *, bank, *, *, allow\n")
    rule.parent.mkdir(parents=True)
    policy = {"files": ["policy.csv"], "arguments": "arguments"}
    key = {"hash": f"sha256:{'0' * 64}"}
    section = {"policy": policy, "state": {"dir": str(tmp_path / "state")}, "clients": {"keys": {"ann": key}}}
    file.write_text(json.dumps({**section, "servers": {"bank": {"command": "true"}}}))
    async with open_policy_service(config.load(file), file, "http") as judges:
        client = judges.client_of("key:ann")
        assert client is not None
        target = Target("bank", "tool", "pay", "bank__pay", {"name": "pay"})
        call = Call(client, "tools/call", {"arguments": {"to": "eve"}}, target=target, trail=Trail("c1"))
        call.trail.add(judges.judge.decide(call, target))
        assert may_still(judges, judges.judge.decide, call)
        rule.write_text(json.dumps({"properties": {"to": {"enum": ["bob"]}}}))
        await judges.reload.renew()
        assert not judges.reload.problems and not may_still(judges, judges.judge.decide, call)
        assert may_still(judges, judges.judge.decide, replace(call, params={"arguments": {"to": "bob"}}))


async def test_a_row_of_the_store_revokes_its_key_whatever_is_in_it(tmp_path: Path) -> None:
    keys = {name: {"hash": "sha256:" + digit * 64} for name, digit in (("ann", "a"), ("bob", "b"), ("ci", "c"))}
    settings = config.Config.model_validate({
        "version": 1, "policy": {"use": "team"}, "state": {"dir": str(tmp_path / "state")}, "clients": {"keys": keys},
    })  # fmt: skip
    async with open_policy_service(settings, None, "http") as judges, state.open_store(settings) as store:
        await store.put(state.revoked_key("ann", None), b"lea")
        await store.put(state.revoked_key("bob", keys["bob"]["hash"]), b"")
        await judges.learn(store)
        assert list(judges.config.clients.keys) == ["ci"]
