"""What a hook said is remembered as long as it says so, within a bound in bytes."""

import sys

from hook_service import hook_service

from sluicegate.audit.redact import Redactor
from sluicegate.hooks import asker
from sluicegate.hooks.asker import Hook, Hooks
from sluicegate.hooks.settings import HookSettings
from sluicegate.protocol.model import Client, Target


async def test_long_answers_of_a_hook_fill_no_memory() -> None:
    """10,000 of them were remembered, each with up to 100 pointers: 2 GiB."""
    pointers = [f"/structuredContent/{number}/" + "x" * 470 + "\U0001f600" for number in range(100)]
    with hook_service() as service:
        service.headers = {"Cache-Control": "max-age=60"}
        service.answers = lambda asked: {"verdict": "redact", "redact": pointers}
        hook = Hook(HookSettings("h", service.url, frozenset({"result"}), timeout=20.0))

        async def ask(number: int) -> bool:
            return (await hook.ask("result", b"{}", b"%d" % number, "id", "key:a")).is_cached

        for number in range(200):
            assert not await ask(number)
        held = [one for _, verdict, *_ in hook._cached.values() for one in verdict.pointers]
        assert asker.MAX_CACHED / 2 < sum(map(sys.getsizeof, held)) <= asker.MAX_CACHED
        assert await ask(199) and not await ask(0)
        for _ in range(300):  # the same question again, once its answer is over
            hook._cached[b"199"] = (0.0, *hook._cached[b"199"][1:])
            assert not await ask(199)
        assert await ask(198) and await ask(0), "what is remembered anew counts once"
        await hook.aclose()


def test_which_hooks_are_due_is_not_remembered_for_each_uri() -> None:
    """A client that read 10,000 of 4,096 characters filled 40 MiB."""
    about = HookSettings("h", "http://127.0.0.1:1/", frozenset({"call"}))
    named = HookSettings("t", "http://127.0.0.1:1/", frozenset({"call"}), tools=("a*",))
    hooks = Hooks([about, named], Redactor(b"k" * 32), lambda target: "read", dict)
    client = Client("key:a")
    for number in range(100):
        assert hooks.due("call", client, Target("s", "res", f"m://{number}", f"m://{number}")) == (about,)
    assert len(hooks._due) == 1
    assert hooks.due("call", client, Target("s", "tool", "ab", "s__ab")) == (about, named)
    assert hooks.due("call", client, Target("s", "tool", "b", "s__b")) == (about,)
