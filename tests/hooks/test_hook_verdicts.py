"""What becomes of a decision that hooks were asked about, and of a result that they redact: by properties."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sluicegate.hooks.messages import NoVerdict, read, redacted
from sluicegate.policy.hooked import HookVerdict, combine, verdicts_of
from sluicegate.policy.profiles import BUILT_IN, ApprovalProfile
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.model import Verdict

PROFILES = {**BUILT_IN, "security": ApprovalProfile("security", "other", 1, ("role:security",))}
STRICT = {Verdict.ALLOW: 0, Verdict.ASK: 1, Verdict.DENY: 2}
NAMES = st.sampled_from([*PROFILES, "unknown"])
VERDICTS = st.lists(
    st.builds(
        lambda word, profile, passes: HookVerdict("h", "call", word, profile=profile, passes=passes),
        st.sampled_from(["allow", "deny", "ask", "failed"]), NAMES, st.booleans(),
    ),
    max_size=4,
).map(tuple)  # fmt: skip
RULINGS = st.one_of(
    st.just(Ruling(Verdict.ALLOW, "a.csv:1", "", "read")),
    st.just(Ruling(Verdict.DENY, "a.csv:2", "", "read")),
    st.sampled_from([*PROFILES]).map(lambda name: Ruling(Verdict.ASK, "a.csv:3", "", "read", name)),
)


@given(RULINGS, VERDICTS)
def test_a_hook_never_makes_a_decision_milder(ruling: Ruling, verdicts: tuple[HookVerdict, ...]) -> None:
    made = combine(ruling, verdicts, lambda: PROFILES)
    assert STRICT[made.verdict] >= STRICT[ruling.verdict]
    if ruling.verdict is Verdict.ASK and made.verdict is Verdict.ASK:
        assert PROFILES[made.profile].strictness >= PROFILES[ruling.profile].strictness
    if any(one.word == "deny" or (one.word == "failed" and not one.passes) for one in verdicts):
        assert made.verdict is Verdict.DENY
    if any(one.word == "ask" for one in verdicts):
        assert made.verdict is not Verdict.ALLOW
    for one in verdicts:
        if one.word == "ask" and made.verdict is Verdict.ASK:
            assert PROFILES[made.profile].strictness >= PROFILES[one.profile].strictness
    assert verdicts_of((ruling, made)) == verdicts
    assert combine(ruling, verdicts_of((ruling, made)), lambda: PROFILES) == made  # decided again, it is the same


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def places(value: Any, path: str = "") -> list[str]:
    """Every JSON pointer into a value."""
    found = [path] if path else []
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in members:
        found += places(item, f"{path}/{str(name).replace('~', '~0').replace('/', '~1')}")
    return found


@given(st.dictionaries(st.text(max_size=3), JSON, min_size=1, max_size=3), st.data())
def test_what_is_redacted_is_gone_and_nothing_else_changes(value: Any, data: st.DataObject) -> None:
    inner = [one for one in places(value) if "/" in one[1:]]  # the first members have the form of a result
    assume(inner)
    pointer = data.draw(st.sampled_from(inner))
    made = redacted(value, HookVerdict("h", "result", "redact", pointers=(pointer,)))
    before, after = dict(_leaves(value)), dict(_leaves(made))
    for at, leaf in before.items():
        if at != pointer and not at.startswith(f"{pointer}/"):
            assert after[at] == leaf
    assert not {at for at in after if at.startswith(f"{pointer}/") and at in before} - {f"{pointer}/type"}


def _leaves(value: Any) -> list[tuple[str, Any]]:
    def at(pointer: str) -> Any:
        found = value
        for part in pointer[1:].split("/"):
            part = part.replace("~1", "/").replace("~0", "~")
            found = found[int(part)] if isinstance(found, list) else found[part]
        return found

    return [(one, found) for one in places(value) if not isinstance(found := at(one), dict | list)]


@pytest.mark.parametrize("pointer", ["/b", "/a/5", "/a/-", "/a/01x", "/a/0/x", "/"])
def test_a_pointer_to_nothing_is_no_redaction(pointer: str) -> None:
    with pytest.raises(NoVerdict):
        redacted({"a": ["x"]}, HookVerdict("h", "result", "redact", pointers=(pointer,)))


@pytest.mark.parametrize(
    "answer",
    [
        '{"verdict": "redact"}', '{"verdict": "redact", "redact": []}', '{"verdict": "redact", "redact": ["a"]}',
        '{"verdict": "redact", "redact": "/a"}', '{"verdict": "redact", "redact": [1]}', '{"verdict": "deny"}', "null",
    ],
)  # fmt: skip
def test_what_is_no_verdict_on_a_result(answer: str) -> None:
    with pytest.raises(NoVerdict):
        read("result", "json", "h", answer.encode())


@given(st.binary(max_size=200))
def test_no_answer_breaks_the_reader(data: bytes) -> None:
    try:
        read("call", "opa", "h", data)
    except NoVerdict:
        pass
