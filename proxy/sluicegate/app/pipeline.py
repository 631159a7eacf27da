"""The way of a call, wired: every guard with the functions of other rooms that it goes by, and the router inside."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeVar

from sluicegate.app import metric_sources
from sluicegate.app.approvals import PageLink, approve_deps, may_still
from sluicegate.app.late import Late
from sluicegate.app.replicas import MarkingSealer
from sluicegate.app.servers import Backends
from sluicegate.app.services import Services
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.catalog_cache import Resolver
from sluicegate.guards import RESUMED, TASK_NOTIFICATIONS, chain, search
from sluicegate.guards.approve import Renew, approve
from sluicegate.guards.commit import commit
from sluicegate.guards.cut_off import cut_off
from sluicegate.guards.enforce import Decide, enforce
from sluicegate.guards.inspect import inspect, inspect_task_state
from sluicegate.guards.login import LoginDeps, LoginLink, login
from sluicegate.guards.measure import Measure
from sluicegate.guards.name import name
from sluicegate.guards.questions import judged
from sluicegate.guards.quota import quota
from sluicegate.guards.record import RecordGuard
from sluicegate.guards.seal import seal, unresolved
from sluicegate.guards.throttle import throttle
from sluicegate.metrics import client_label
from sluicegate.policy.rates import Windows
from sluicegate.policy.schemas import Outputs
from sluicegate.protocol.input_requests_client import opens_pages
from sluicegate.protocol.model import Client, Guard, Handler
from sluicegate.router import Cursors, Router
from sluicegate.router.large_results import LargeResultBounds
from sluicegate.router.tasks import ShownTask, shown_whole
from sluicegate.router.tool_search import SearchDeps

T = TypeVar("T")
UntilFree = Callable[[str], float]


def _as_it_is(given: T) -> T:
    return given


@dataclass(frozen=True, slots=True)
class HookGuards:
    """Those of the config's hooks. `renewed` makes of a decision one that keeps what hooks have said of the call, and
    `again` has them asked once more before an approval is used. `shown_task` is what they leave of a task's state, and
    `watched` the decision on a subscription."""

    call: Guard | None = None
    result: Guard | None = None
    renewed: Callable[[Decide], Decide] = _as_it_is
    again: Callable[[Renew], Renew] = _as_it_is
    shown_task: ShownTask = shown_whole
    watched: Callable[[Decide], Decide] = _as_it_is


NO_HOOKS: Final = HookGuards()


def pipeline(
    services: Services, behind: Backends, queue: ApprovalQueue, page_link: Late[PageLink],
    windows: Mapping[str, Windows], hooks: HookGuards = NO_HOOKS,
) -> tuple[Router, Handler, UntilFree]:  # fmt: skip
    """The router by itself, for who may see everything that a client sees; all guards around it; and how many seconds a
    principal has to wait for its rate, 0.0 for none. `windows` are the rates, by scope."""
    config, judge, audit = services.config, services.judging.judge, services.audit
    replicas = services.replicas
    sealer = services.sealer if replicas is None else MarkingSealer(replicas.mark, services.sealer)
    tables = behind.control.tables
    metrics = services.metrics if config.telemetry.metrics else None
    resolver = Resolver(behind.lists, judge.may_list)
    behind.control.on_switch.append(resolver.configure)
    behind.control.on_end.append(queue.withdraw_servers)
    cursors = Cursors(sealer.seal, sealer.unseal, lambda: tables.generations)
    about_task = Late[Handler]()
    asked = approve_deps(config, services.judging, resolver, behind.pins, page_link, hooks.renewed(judge.decide))
    asking = replace(asked, renew=hooks.again(asked.renew))
    is_allowed_still = partial(may_still, services.judging, asked.decide)
    behind.tasking.may_still.set(is_allowed_still)
    router = Router(behind.servers, behind.lists, resolver, behind.hub, cursors, judge.may_list, judge.may_see,
                    hooks.watched(judge.decide), services.store, judge.permission_key,
                    about_task=lambda call: about_task()(call),
                    inspected=partial(inspect_task_state, behind.tasking.inspected), current=asked.current,
                    mark="" if replicas is None else replicas.mark,
                    searching=SearchDeps(judge.search_of, judge.is_pinned, search.TOOLS),
                    large=LargeResultBounds(config.limits.paged_results, config.limits.paged_for),
                    clock=services.clock, shown_task=hooks.shown_task)  # fmt: skip
    behind.tasking.router.set(router.tasks)
    behind.tasking.large_results.set(router.large_results)
    services.metrics.watch(partial(metric_sources.limits, windows))
    services.metrics.watch(partial(metric_sources.lists, router.search.tokens, client_label))
    outputs = Outputs()
    begun_call = unresolved(sealer.unseal)

    logging_in = LoginDeps(
        account=lambda server, client: behind.servers[server].account(client),
        begin=services.logins.begin_link,
        wait=services.logins.wait,
        renew=asked.renew,
        current=asked.current,
        decide=asked.decide,
        opens_pages=opens_pages,
        tells_legacy=lambda: services.judging.config.login.legacy == "error",
        hold_for=config.approvals.hold_for,
    )

    def identity(key: str) -> str:
        return behind.servers[key].identity

    def abandon(key: str, call_id: str) -> None:
        if (server := behind.servers.get(key)) is not None:  # a task may outlast it
            server.abandon(call_id)

    def has_search(client: Client) -> bool:
        return judge.search_of(client).mode != "off"

    guards: dict[str, Guard | None] = {
        "measure": Measure(metrics.call, metrics.calls) if metrics else None,
        "record": RecordGuard(audit.outcome if audit else None),
        "cut_off": None if replicas is None else cut_off(lambda: replicas.problem),
        "throttle": throttle(windows["client"]) if "client" in windows else None,
        "find": search.find(has_search, router.search.find),
        "name": name(
            partial(behind.tasking.resolve, resolver), tables.rewriting.__getitem__, resolver.find, begun_call,
            asked.current,
        ),
        "seal": seal(
            sealer.seal,
            sealer.unseal,
            partial(judged, own=services.own_pages),
            services.clock,
            identity,
            abandon,
        ),
        "enforce": enforce(
            metric_sources.timed(judge.decide, metrics.decided) if metrics else judge.decide,
            judge.check_arguments,
            judge.explains,
        ),
        "quota": quota(windows["tool"]) if "tool" in windows else None,
        "call_hooks": hooks.call,
        "approve": approve(queue, asking, is_task=True),
        "login": login(replace(logging_in, begin=_no_link)),
        "commit": commit(services.store.spend, audit.intent if audit else None, identity, is_allowed_still),
        "inspect": inspect(tables.inspection, outputs.check, judge.decide, outputs.prepare),
        "result_hooks": hooks.result,
    }
    to_clients, to_servers = services.spans or (None, None)
    # The time of servers is measured inside all guards: the rest of what `measure` counts is Sluice's own.
    measured = Measure(metrics.server_call, metrics.server_calls) if metrics else None
    innermost = _with_target(to_servers, _with_target(measured, router))
    again = chain(guards, innermost, RESUMED)
    guards["approve"] = approve(queue, asking, behind.tasking.approval_tasks(queue, asked.current, again, abandon))
    about_task.set(chain(guards, innermost, TASK_NOTIFICATIONS))
    guards["login"] = login(logging_in)
    until_free = windows["client"].until_free if "client" in windows else lambda principal: 0.0
    whole = chain(guards, innermost)
    handler = whole if to_clients is None else partial(to_clients, inner=whole)
    return router, search.unwrapped(has_search, handler), until_free


async def _no_link(server: str, client: Client) -> LoginLink | None:
    """Nobody looks at what a task asks just now."""
    return None


def _with_target(guard: Guard | None, inner: Handler) -> Handler:
    """Leaves calls without a target to `inner`, such as lists: they may be answered without any server."""
    return inner if guard is None else lambda call: inner(call) if call.target is None else guard(call, inner)
