"""All hooks of a call are asked at once, and one hook so many questions at most."""

import asyncio
from collections.abc import Coroutine
from threading import Event
from typing import Any

from hook_service import hook_service
from waiting import until

from sluicegate.audit.redact import Redactor
from sluicegate.hooks.asker import AT_ONCE, MAX_WAITING, NO_TURN, SILENT, Hook, Hooks
from sluicegate.hooks.settings import HookSettings
from sluicegate.policy.hooked import HookVerdict
from sluicegate.protocol.model import Call, Client, Target, Trail
from sluicegate.runtime.loop_budget import client_budgets

ON = frozenset({"call"})
MORE = 3


def _ask(hook: Hook, number: int, principal: str = "key:a") -> Coroutine[None, None, HookVerdict]:
    return hook.ask("call", b'{"of": "%b"}' % principal.encode(), b"%d" % number, "id", principal)


async def test_a_call_is_told_to_all_its_hooks_before_one_has_answered() -> None:
    with hook_service() as first, hook_service() as second:
        first.released.clear()
        second.released.clear()
        named = [HookSettings(name, one.url, ON, timeout=20.0) for name, one in (("a", first), ("b", second))]
        hooks = Hooks(named, Redactor(b"k" * 32), lambda target: "read", dict)
        call, target = Call(Client("key:a"), "tools/call", {}), Target("s", "tool", "t", "s__t")
        asking = asyncio.ensure_future(hooks.about_call(call, target, hooks.due("call", call.client, target)))
        await until(lambda: len(first.asked) == len(second.asked) == 1)
        second.released.set()
        first.released.set()
        assert [(one.hook, one.word) for one in await asking] == [("a", "allow"), ("b", "allow")]
        await hooks.aclose()


async def test_a_hook_has_a_bounded_number_of_questions_and_the_rest_wait_for_their_turn() -> None:
    with hook_service() as service:
        service.released.clear()
        hook = Hook(HookSettings("h", service.url, ON, timeout=20.0))
        asked = [asyncio.ensure_future(_ask(hook, one)) for one in range(AT_ONCE + MORE)]
        await until(lambda: len(service.asked) == AT_ONCE)
        assert len(service.connections) == AT_ONCE
        service.released.set()
        assert {one.word for one in await asyncio.gather(*asked)} == {"allow"}
        assert len(service.asked) == AT_ONCE + MORE and len(service.connections) <= AT_ONCE
        await hook.aclose()


class WatchedRedactor(Redactor):
    """Notes whose arguments it masks, and how many threads do at once."""

    def __init__(self) -> None:
        super().__init__(b"k" * 32)
        self.order: list[str] = []
        self.inside = self.most = 0

    def masked(self, value: Any, *about: Any) -> tuple[Any, bool]:
        self.order.append(value["of"])
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            return super().masked(value, *about)
        finally:
            self.inside -= 1


async def test_large_arguments_are_masked_one_after_the_other_and_whoever_sent_them_pays() -> None:
    """Forty threads at once kept the event loop from the interpreter, for seconds."""
    redactor, target = WatchedRedactor(), Target("s", "tool", "t", "s__t")
    with hook_service() as service:
        hooks = Hooks([HookSettings("h", service.url, ON, timeout=20.0)], redactor, lambda target: "read", dict)

        def ask(name: str) -> Coroutine[None, None, tuple[HookVerdict, ...]]:
            client, arguments = Client(name), {"of": name, "text": "password: x1y2z3\n" * 4_000}
            call = Call(client, "tools/call", {"arguments": arguments}, trail=Trail("id"))
            return hooks.about_call(call, target, hooks.due("call", client, target))

        asking = [asyncio.ensure_future(ask(name)) for name in ("key:many",) * 12 + ("key:one",)]
        assert {one.word for (one,) in await asyncio.gather(*asking)} == {"allow"}
        await hooks.aclose()
    assert redactor.most == 1 and redactor.order.index("key:one") <= 2
    assert all(client_budgets()[name]._start > 0 for name in ("key:many", "key:one"))


async def test_a_client_with_very_many_questions_keeps_those_of_another_one_waiting_for_a_turn_at_most() -> None:
    with hook_service() as service:
        service.released.clear()
        hook = Hook(HookSettings("h", service.url, ON, timeout=20.0))
        many = [asyncio.ensure_future(_ask(hook, one)) for one in range(3 * AT_ONCE)]
        await until(lambda: len(service.asked) == AT_ONCE)
        other = asyncio.ensure_future(_ask(hook, len(many), "key:b"))
        await asyncio.sleep(0)
        service.released.set()
        assert {one.word for one in await asyncio.gather(*many, other)} == {"allow"}
        assert service.asked.index({"of": "key:b"}) < 2 * AT_ONCE
        await hook.aclose()


async def test_a_client_that_has_too_many_questions_does_not_get_past_a_hook_by_that() -> None:
    with hook_service() as service:
        service.released.clear()
        hook = Hook(HookSettings("h", service.url, ON, timeout=20.0, passes=True))
        many = [asyncio.ensure_future(_ask(hook, one)) for one in range(AT_ONCE + MAX_WAITING)]
        await until(lambda: len(service.asked) == AT_ONCE)
        verdict = await _ask(hook, len(many))
        assert verdict.word == "failed" and verdict.refuses
        service.released.set()
        assert {one.word for one in await asyncio.gather(*many)} == {"allow"}
        await hook.aclose()


async def test_questions_without_a_turn_are_treated_as_the_settings_say_while_the_hook_answers_nobody() -> None:
    """Of a hook that hangs, more than 64 calls in its time were refused, for all `on_failure: allow`."""
    with hook_service() as service:
        service.released.clear()
        hook = Hook(HookSettings("h", service.url, ON, timeout=1.0, passes=True))
        verdicts = await asyncio.gather(*(_ask(hook, one, f"key:{one % 2}") for one in range(3 * AT_ONCE)))
        assert {(one.word, one.refuses) for one in verdicts} == {("failed", False)}
        assert sum(one.reason == SILENT for one in verdicts) >= AT_ONCE
        await hook.aclose()


async def test_questions_without_a_turn_are_refused_where_the_hook_is_slow_on_those_of_their_client_alone() -> None:
    """What it takes may depend on their text: their client would get past it by that."""
    with hook_service() as service:
        service.released.clear()
        hook = Hook(HookSettings("h", service.url, ON, timeout=1.0, passes=True))
        verdicts = await asyncio.gather(*(_ask(hook, one) for one in range(3 * AT_ONCE)))
        assert {one.refuses for one in verdicts if one.reason == NO_TURN} == {True}
        assert SILENT not in {one.reason for one in verdicts}
        await hook.aclose()


async def test_questions_without_a_turn_are_refused_where_the_hook_has_answered_somebody_meanwhile() -> None:
    waits = Event()
    with hook_service() as service:

        def answer(asked: object) -> dict[str, str]:
            if asked is not service.asked[0]:
                waits.wait(30)
            return {"verdict": "allow"}

        service.answers = answer
        hook = Hook(HookSettings("h", service.url, ON, timeout=1.5, passes=True))
        verdicts = await asyncio.gather(*(_ask(hook, one, f"key:{one % 2}") for one in range(3 * AT_ONCE)))
        waits.set()
        assert {one.refuses for one in verdicts if one.reason == NO_TURN} == {True}
        await hook.aclose()
