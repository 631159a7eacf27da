"""What hooks are asked, and which answers count, is as `docs/reference/hook.schema.json` says."""

import json
from pathlib import Path
from typing import Any

import pytest
from hook_service import hook_service
from jsonschema import Draft202012Validator

from sluicegate.audit.redact import Redactor
from sluicegate.hooks.asker import Hooks
from sluicegate.hooks.messages import MAX_POINTER, MAX_POINTERS, WORDS, NoVerdict, read
from sluicegate.hooks.settings import HookSettings
from sluicegate.policy.hooked import On
from sluicegate.protocol.model import Call, Client, Target

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/hook.schema.json").read_text("utf-8"))
PROFILES: list[Any] = [None, "", "confirm", "p" * 33, 1]
POINTERS: list[Any] = [
    None, [], "/a/b", ["/a/b"], ["a"], [1], ["/a"] * (MAX_POINTERS + 1), ["/" + "a" * MAX_POINTER],
]  # fmt: skip


def validator(part: str) -> Draft202012Validator:
    return Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{part}"})


@pytest.mark.parametrize("kind", ["tool", "prompt", "res"])
async def test_questions_are_as_the_schema_says(kind: Any) -> None:
    target, call = Target("s", kind, "own", "public"), Call(Client("key:a"), "tools/call", {"arguments": {"a": 1}})
    with hook_service() as service:
        ons = frozenset[On]({"call", "result"})
        named = [HookSettings("a", service.url, ons, timeout=20.0, sees_whole=True),
                 HookSettings("b", service.url, ons, timeout=20.0)]  # fmt: skip
        hooks = Hooks(named, Redactor(b"k" * 32), lambda target: "read", dict)
        await hooks.about_call(call, target, hooks.due("call", call.client, target))
        await hooks.about_result(call, target, hooks.due("result", call.client, target), {"content": []}, b'{"x":1}')
        await hooks.aclose()
    assert len(service.asked) == 4
    properties = SCHEMA["$defs"]["question"]["properties"]
    for asked in service.asked:
        validator("question").validate(asked)
        assert asked.keys() == properties.keys() - ({"result"} if asked["on"] == "call" else set())
        assert asked["client"].keys() == properties["client"]["properties"].keys()


@pytest.mark.parametrize("on", ["call", "result"])
def test_an_answer_counts_where_the_schema_takes_it(on: On) -> None:
    valid = validator(f"answer_on_{on}").is_valid
    assert frozenset(SCHEMA["$defs"][f"answer_on_{on}"]["properties"]["verdict"]["enum"]) == WORDS[on]
    member, values = ("profile", PROFILES) if on == "call" else ("redact", POINTERS)
    assert not valid([]) and not valid({})
    for word in (*WORDS["call"], *WORDS["result"], "ALLOW", 1):
        for value in values:
            for reason in ({}, {"reason": "r"}, {"reason": None}, {"reason": 1}):
                answer = {"verdict": word, **({} if value is None else {member: value}), **reason}
                try:
                    read(on, "json", "h", json.dumps(answer).encode())
                except NoVerdict:
                    assert not valid(answer), answer
                else:
                    assert valid(answer), answer
