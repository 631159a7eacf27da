"""What a server gives to be given back comes back as it was, also where it looks like something of ours."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.downstream.session import url_elicitation
from sluicegate.downstream.tasks import polling, task_ids
from sluicegate.downstream.tasks.polling import PolledTask
from sluicegate.guards.seal import seal
from sluicegate.protocol.model import (
    Call,
    Client,
    InputRequired,
    Outcome,
    OwnState,
    Target,
    TaskStarted,
)
from sluicegate.store.keys import KeyRing, Sealer

TOOL = Target("git", "tool", "push", "g__push")
LIKE_OURS = st.sampled_from([PolledTask("t").pack(), 'pages {"a":{}}', "parked 0 0", ":t", "", "task ", "0a:1"]).map(
    str
)
TEXTS = LIKE_OURS | st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def call(**params: Any) -> Call:
    return Call(Client("key:a"), "tools/call", {"name": "push", **params}, target=TOOL)


@given(TEXTS, st.sampled_from([task_ids.FREE, "0a1b2c"]))
def test_the_id_of_a_task(own: str, mark: str) -> None:
    shown = task_ids.outwards(call(), TaskStarted({"taskId": own}), mark)
    assert isinstance(shown, TaskStarted) and task_ids.mark_of(shown.task["taskId"]) == mark
    assert task_ids.inwards(call(taskId=shown.task["taskId"])).params["taskId"] == own


@given(TEXTS)
def test_a_state_of_a_server_is_never_one_of_ours(state: str) -> None:
    assert polling.resumed_task(call(requestState=state)) is None and not url_elicitation.is_state(state)
    assert polling.resumed_task(call(requestState=PolledTask(state, frozenset({"q"})).pack())) == PolledTask(
        state, frozenset({"q"})
    )


@pytest.mark.parametrize("kind", [str, OwnState])
async def test_a_state_travels_with_whose_it_is(kind: type[str], tmp_path: Any) -> None:
    sealer = Sealer(KeyRing.load(tmp_path / "keys", "seal"))
    guard = seal(sealer.seal, sealer.unseal, lambda call, outcome: outcome)
    for text in ('task ["t"]', 'pages {"a":{}}', "", '\u20ac\U0001f600\x00"\\'):
        seen: list[Any] = []

        async def server(call: Call, text: str = text, seen: list[Any] = seen) -> Outcome:
            seen.append(call.params.get("requestState"))
            return InputRequired({}, kind(text))

        first = await guard(call(), server)
        assert isinstance(first, InputRequired)
        await guard(call(requestState=first.state), server)
        assert seen == [None, text] and type(seen[1]) is kind
