"""`sluice serve` in whose one hour eight pass: what it does by the hour or keeps for hours has a shorter life.

    python fast_clock_sluice.py SECONDS serve -c sluice.yaml

SECONDS stand for an hour: 450 where eight hours are one. What lives for less than an hour lives an eighth of that,
whatever SECONDS are. Bounds of what is kept in memory are an eighth as large, so that they are reached in the warm-up.
"""

import sys
from dataclasses import replace
from functools import partial

from sluicegate import __main__ as entry  # it decides what imports do: it is the first

hour = float(sys.argv.pop(1))
EIGHTH = 1 / 8

from sluicegate.admin import approvals as approvals_api  # noqa: E402
from sluicegate.approval import grants, repository  # noqa: E402
from sluicegate.audit import log as audit_log  # noqa: E402
from sluicegate.audit import record  # noqa: E402
from sluicegate.console import sessions as console_sessions  # noqa: E402
from sluicegate.downstream import pool, server_life  # noqa: E402
from sluicegate.guards import approval_tasks  # noqa: E402
from sluicegate.hooks import asker  # noqa: E402
from sluicegate.listen import settings as listening  # noqa: E402
from sluicegate.listen.auth import issuers  # noqa: E402

# Hourly, or kept for hours. A day would never end here: it is a quarter of an hour, and what is kept for it one.
now = {
    (audit_log, "_HOUSEKEEPING"): hour, (repository, "RETENTION"): hour, (approval_tasks, "RETENTION"): hour,
    (approval_tasks, "AFTER"): hour / 4, (approvals_api, "REMEMBERED"): hour, (grants, "LONGEST"): hour,
}  # fmt: skip
for (room, name), seconds in now.items():
    assert getattr(room, name) >= seconds, f"{room.__name__}.{name}"  # a name that is not there would change nothing
    setattr(room, name, seconds)
listening.SessionLimits = partial(
    listening.SessionLimits, idle=hour / 4, kept_for=300 * EIGHTH, kept_bytes=8 * 2**20
)  # fmt: skip
lifetimes = console_sessions.LIFETIMES
lifetimes["key"] = replace(lifetimes["key"], idle=hour / 2, absolute=12 * hour)

# Less than an hour.
grants.SECONDS, grants.IDLE = grants.SECONDS * EIGHTH, grants.IDLE * EIGHTH
pool.IDLE, pool.IDLE_LANE = pool.IDLE * EIGHTH, pool.IDLE_LANE * EIGHTH
asker.MAX_AGE *= EIGHTH
issuers.FRESH *= EIGHTH

record._MAX_REMEMBERED //= 8
repository.MAX_FINISHED //= 8
repository.MAX_FINISHED_OF //= 8
server_life._MAX_REMEMBERED //= 8
asker.MAX_CACHED //= 8

entry.main()
