"""The API of approvals over the queue: of a Sluice that runs, and of a state directory on which none does."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

from sluicegate.admin.approvals import ApprovalsApi, ApprovalsApiDeps
from sluicegate.app import replicas, settings, state
from sluicegate.app.approvals import open_queue
from sluicegate.app.services import PolicyService, open_audit, open_policy_service
from sluicegate.approval.record import CallBinding
from sluicegate.approval.repository import ALL
from sluicegate.audit.newest import last_calls
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.config import Config
from sluicegate.protocol.jsonrpc import Json
from sluicegate.runtime.reader_threads import in_reader_thread
from sluicegate.store.memory import MemoryStore


def people(judges: PolicyService, log: Path | None, pins: DefinitionPins | None = None) -> ApprovalsApiDeps:
    """What the admin port has to know to show and decide approvals; `log` is the directory of the audit log. Without a
    running Sluice there are no `pins` at hand."""

    async def history(principal: str) -> list[Json]:
        if log is None:
            return []
        try:
            return await in_reader_thread(partial(last_calls, log, principal))
        except OSError:  # between two segments, or gone: what is shown is the less
            return []

    def accepted(binding: CallBinding) -> Json:
        mark = binding.definition.removeprefix("sha256:")
        return {} if pins is None else pins.acceptance(binding.server, binding.kind, binding.own, mark)

    judge = judges.judge
    return ApprovalsApiDeps(judge.roles_of, judge.row_text, history, accepted)


@asynccontextmanager
async def at_rest(config: Config, read_only: bool = False) -> AsyncIterator[ApprovalsApi]:
    """The queue where no Sluice runs: what is decided here, whoever runs on this state directory finds. `read_only` is
    for a copy of it: nothing that happens to it is kept, and nothing is recorded. Raises `PolicyError` where the policy
    cannot be used, `OSError` where the store cannot."""
    async with AsyncExitStack() as stack:
        judges = await stack.enter_async_context(open_policy_service(config, None, "cli"))
        opened = await stack.enter_async_context(state.open_store(config))
        await judges.learn(opened)
        store = opened
        audit = None
        if read_only:
            store = MemoryStore()
            for key, value in (await opened.scan(ALL)).items():
                await store.put(key, value)
        else:
            await replicas.refuse_beside(config, opened)
            audit = await stack.enter_async_context(open_audit(config, "cli", judges.judge))
        queue = open_queue(config, judges, store, audit, clock=await replicas.clock(config, opened))
        await queue.refresh()
        log = settings.audit(config).path.parent if config.audit.enabled else None
        yield ApprovalsApi(queue, people(judges, log), store)
