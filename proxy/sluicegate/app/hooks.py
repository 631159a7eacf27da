"""Hooks, wired. Imported where a config has some."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial

from sluicegate.app import approvals, policy_loading, settings
from sluicegate.app.pipeline import HookGuards
from sluicegate.app.services import Services
from sluicegate.config import Config
from sluicegate.guards.hooks import asking_again, call_hooks, result_hooks, shown_task, watching, with_hooks
from sluicegate.hooks.asker import Hooks
from sluicegate.hooks.messages import WORDS
from sluicegate.hooks.settings import HookSettings
from sluicegate.metrics.scraped import Sample
from sluicegate.policy.hooked import HookVerdict, On
from sluicegate.protocol.model import Call, Client, Target


class HookTally:
    """What hooks said, and how long that took, for metrics. Each series is there from the start."""

    def __init__(self, hooks: tuple[HookSettings, ...]) -> None:
        self._verdicts = Counter[tuple[str, str, str]]()
        self._seconds = {one.name: 0.0 for one in hooks}
        for one in hooks:
            for on in one.on:
                self._verdicts.update({(one.name, on, word): 0 for word in (*WORDS[on], "failed") if on != "approval"})

    def add(self, verdict: HookVerdict) -> None:
        self._verdicts[verdict.hook, verdict.on, verdict.word] += 1
        self._seconds[verdict.hook] += verdict.seconds

    def samples(self) -> Iterator[Sample]:
        for labels, count in self._verdicts.items():
            yield "sluice_hook_verdicts", labels, count
        for hook, seconds in self._seconds.items():
            yield "sluice_hook_seconds", (hook,), seconds


def concerned(config: Config, client: Client, target: Target, held: frozenset[str]) -> dict[str, list[str]]:
    """The names of the hooks that are asked about such a call, and about its result."""
    ons: tuple[On, ...] = ("call", "result")
    return {on: [one.name for one in settings.hooks(config) if one.is_about(on, client, target, held)] for on in ons}


async def ask_about(
    config: Config, call: Call, target: Target, class_: str, held: frozenset[str]
) -> tuple[HookVerdict, ...]:
    """What the hooks of a config say of a call that nobody makes."""
    hooks = Hooks(
        settings.hooks(config), approvals.redactor(config), lambda target: class_, dict, roles_of=lambda client: held
    )
    try:
        return await hooks.about_call(call, target, hooks.due("call", call.client, target))
    finally:
        await hooks.aclose()


@asynccontextmanager
async def open_hooks(services: Services) -> AsyncIterator[HookGuards]:
    """The guards of the config's hooks, with connections that are open as long as the block."""
    config, judging = services.config, services.judging
    named = settings.hooks(config)
    tally = HookTally(named)
    services.metrics.watch(tally.samples)
    audit = services.audit
    redactor = approvals.redactor(config) if audit is None else audit.redactor
    hooks = Hooks(
        named, redactor, judging.judge.classify,
        lambda: policy_loading.profiles(judging.config), tally.add,
        judging.judge.roles_by_policy, judging.judge.revision,
    )  # fmt: skip
    try:
        yield HookGuards(
            call_hooks(hooks) if hooks.has("call") else None, result_hooks(hooks) if hooks.has("result") else None,
            partial(with_hooks, hooks), partial(asking_again, hooks), shown_task(hooks), partial(watching, hooks),
        )  # fmt: skip
    finally:
        await hooks.aclose()
