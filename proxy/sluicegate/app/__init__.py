"""The composition root: a Config becomes every object and the tasks that keep them alive.

The only room that knows all others. `slices` cuts the config, `core` wires what every way in shares, `judging` and
`auditing` two parts of that, `http` and `stdio` are the two ways in, `administering` makes the admin API of both, and
`seat` says which of several processes runs the firewall. `workers` starts several processes that serve over HTTP as
one, `worker` is what each of them does. `law` makes of a config what decides, and `reload` notices that it changed.
`slow_turns` is a debugging aid.
"""

from sluicegate.app import slow_turns
from sluicegate.app.http import Outdated, RunningServer, running, serve
from sluicegate.app.stdio import join_stdio, serve_stdio
from sluicegate.app.worker import read_task, serve_worker
from sluicegate.app.workers import serve_workers

__all__ = [
    "Outdated", "RunningServer", "join_stdio", "read_task", "running", "serve", "serve_stdio", "serve_worker",
    "serve_workers", "slow_turns",
]  # fmt: skip
