"""Who goes on with a call that waited: the same client with the roles of now, and nobody with another key."""

from types import SimpleNamespace
from typing import Any

import pytest

from sluicegate.app.approvals import current
from sluicegate.app.servers import _may_still
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
        client_of=lambda principal, roles, is_operator: client, judge=SimpleNamespace(decide=decide),
    )  # fmt: skip
    trail = Trail("c1")
    trail.add(Decision(then, "", ""))
    call = Call(ANN, "tools/call", {}, target=Target("s", "tool", "t", "s__t"), trail=trail)
    assert _may_still(judges, call) is may
    assert seen == ([] if now is None else [("role:ops",)])
    assert _may_still(judges, Call(ANN, "tools/list", {})), "a list is judged item by item"
