"""The composition root: a Config becomes every object and the tasks that keep them alive.

The only room that knows all others. `settings` cuts the config. `services` opens what exists before any server,
`servers` what lists and answers, `server_control` which of them run, `approvals` the queue. `pipeline` builds the guard
chain, and `core` puts all of it together. `serve` and `stdio` are the two ways to reach it, and `admin_app` is their
admin API. `instance_lock` decides which of several processes runs the firewall; `workers` are several that serve over
HTTP as one. `reload` notices that a file changed, and `policy_loading` makes a policy of it. `late` links two parts
that need each other. `slow_turns` is a debugging aid.
"""

from sluicegate.app import slow_turns
from sluicegate.app.serve import Outdated, RunningServer, running, serve
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.app.workers.supervisor import serve_workers
from sluicegate.app.workers.worker import read_task, serve_worker

__all__ = [
    "Outdated", "RunningServer", "join_stdio", "read_task", "running", "serve", "serve_stdio", "serve_worker",
    "serve_workers", "slow_turns",
]  # fmt: skip
