"""Where tasks meet the other rooms: whose a server's word on one is, and what a request about one is about.

Functions of one room are handed to another here; what tasks are is decided in `router/tasks.py`.
"""

from collections.abc import Callable
from dataclasses import replace

from sluicegate.approval.queue import ApprovalQueue
from sluicegate.catalog_cache import Resolver
from sluicegate.guards.approval_tasks import ApprovalTaskDeps, ApprovalTasks, Job
from sluicegate.hub import Event, Hub
from sluicegate.protocol import tasks
from sluicegate.protocol.jsonrpc import Json, Notification, Response
from sluicegate.protocol.methods import ABOUT_A_TASK
from sluicegate.protocol.model import Ask, Call, Client, Handler, Outcome, Publish, Target, session_scope
from sluicegate.router.tasks import TaskRouter


class Tasking:
    """Servers are made before the router that knows their tasks: `tasks` comes second, and then whatever runs what
    nobody waits for."""

    tasks: TaskRouter
    start: Callable[[Job], object]
    announce: Publish

    def __init__(self, inspected: Callable[[str, Json], Json | None]) -> None:
        self._inspected = inspected

    def holding(self, desk: ApprovalQueue, current: Callable[[Client], Client], again: Handler) -> ApprovalTasks:
        """Calls that wait for a person as tasks of our own."""
        ways = ApprovalTaskDeps(
            again=again, start=lambda job: self.start(job), unfit=self.tasks.unfit, may_hold=self.tasks.may_hold,
            keep=self.tasks.keep, hand_over=self.tasks.hand_over, forget=self.tasks.forget, about=self.tasks.about,
            announce=self.announce, current=current,
        )  # fmt: skip
        return ApprovalTasks(desk, ways)

    def publish(self, hub: Hub, publish: Publish) -> Publish:
        """What a server says of a task is for the client that has it alone."""

        def tell(server: str, scope: str | None, notification: Notification) -> None:
            params = self._inspected(server, notification.params)
            if params is None:
                return
            if params is not notification.params:
                notification = replace(notification, params=params)
            if notification.method != tasks.STATUS:
                publish(server, scope, notification)
            elif (told := self.tasks.heard(server, notification)) is not None:
                hub.publish(Event(server, session_scope(told[0]), told[1]))

        self.announce = tell
        return tell

    def ask(self, server: str, ask: Ask) -> Ask:
        """A question outside of any call may be a task's: its client knows that by our id."""

        async def asked(session: str, method: str, params: Json) -> Response | None:
            shown = self._inspected(server, params)
            if shown is None:
                return None
            own = tasks.relation(params)
            if own is not None:
                shown = tasks.related(shown, self.tasks.public_id(server, own, session))
            return await ask(session, method, shown)

        return asked

    async def resolve(self, resolver: Resolver, call: Call) -> Target | Outcome | None:
        if call.method in ABOUT_A_TASK:
            return await self.tasks.resolve(call)
        return await resolver.resolve(call) or resolver.unlisted(call)
