"""How long a first list takes: 2,000 tools on 50 servers under 1,000 rows, in slices; then the same list again.

Run as a script. It prints what it measures and judges nothing: `make bench` compares with the budgets.
"""

import json
import random
from time import perf_counter, process_time

from sluicegate.policy.csv_rows import read_rows
from sluicegate.policy.engine import Engine
from sluicegate.policy.files import bundled_model
from sluicegate.policy.profiles import BUILT_IN
from sluicegate.policy.rules import PolicyRules
from sluicegate.protocol.model import Client, Target
from sluicegate.router.visible_lists import STRIDE

SERVERS, TOOLS, ROWS = 50, 40, 1_000
VERBS = ("get", "list", "create", "update", "delete")


def make_rows(seed: int) -> str:
    """A company's policy: a few rows for all servers, most for one, half of them by a tool's name."""
    pick = random.Random(seed)
    lines = [
        "p, role:everyone, *, *, read, allow",
        "p, *, *, tool:*delete_99*, *, deny",
        "p2, *, *, tool:*, destroy, two-person",
        "p2, role:dev, *, tool:*, write, confirm",
        "g, group:eng, role:dev",
    ]
    while len(lines) < ROWS:
        server, role = f"server-{pick.randrange(SERVERS)}", f"role:{pick.choice(('dev', 'ops', 'qa', 'data', 'web'))}"
        verb, number = pick.choice(VERBS), pick.randrange(TOOLS)
        obj = f"tool:{verb}_{number}" if pick.random() < 0.5 else f"tool:{verb}_*"
        effect = "deny" if pick.random() < 0.2 else "allow"
        line = f"p, {role}, {server}, {obj}, {pick.choice(('*', 'read', 'write', 'destroy'))}, {effect}"
        if line not in lines:
            lines.append(line)
    return "\n".join(lines)


def wanted() -> list[tuple[Target, str]]:
    classes = {"get": "read", "list": "read", "create": "write", "update": "write", "delete": "destroy"}
    names = [(f"{VERBS[n % 5]}_{n}", classes[VERBS[n % 5]]) for n in range(TOOLS)]
    return [
        (Target(f"server-{s}", "tool", own, f"server-{s}__{own}"), act) for s in range(SERVERS) for own, act in names
    ]


def measure() -> dict[str, float]:
    started = perf_counter()
    rows, findings = read_rows(make_rows(1), "policy.csv")
    assert not findings and len(rows) == ROWS
    policy = PolicyRules(Engine(bundled_model().read_text()), rows, BUILT_IN, "bench")
    built = perf_counter() - started
    client, things = Client("key:dev", ("group:eng",)), wanted()
    shown, slices = 0, list[float]()
    started, worked = perf_counter(), process_time()
    for at in range(0, len(things), STRIDE):  # between two of them others may have a turn
        since = perf_counter()
        part = things[at : at + STRIDE]
        shown += sum(policy.decide(client, target, act).verdict.value != "deny" for target, act in part)
        slices.append(perf_counter() - since)
    first, worked = perf_counter() - started, process_time() - worked
    started = perf_counter()
    assert sum(policy.decide(client, target, act).verdict.value != "deny" for target, act in things) == shown
    again = perf_counter() - started
    return {
        "rows": ROWS, "tools": len(things), "shown": shown, "build_ms": built * 1e3, "first_ms": first * 1e3,
        "first_cpu_ms": worked * 1e3,
        "slices": len(slices), "longest_slice_ms": max(slices) * 1e3, "again_ms": again * 1e3,
    }  # fmt: skip


if __name__ == "__main__":
    print(json.dumps({name: round(value, 2) for name, value in measure().items()}))
