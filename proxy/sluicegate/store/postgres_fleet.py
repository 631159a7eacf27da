"""What replicas of a fleet ask of PostgreSQL again and again: the poll of each second, and the rates.

Statements alone; `postgres.py` has the connections.
"""

import secrets
from collections.abc import Sequence
from typing import Any, Final

from psycopg import AsyncConnection
from psycopg.errors import LockNotAvailable

from sluicegate.policy.leases import LeaseGrant, LeaseReport
from sluicegate.store.watch import Polled

Connection = AsyncConnection[tuple[Any, ...]]
LAST: Final = chr(0x10FFFF)
THERE: Final = "(expires IS NULL OR expires > clock_timestamp())"
# Whoever writes a key holds its lock until the commit. In the order of the locks, so that no two wait for each other.
LOCK: Final = """
SELECT pg_advisory_xact_lock(of.key) FROM
(SELECT DISTINCT hashtextextended(encode(name, 'hex'), 7410) AS key FROM unnest(%s::bytea[]) AS name ORDER BY key) AS of
"""
# One statement, and so one snapshot. A renewal waits for no standby, for it has to go on while one hangs: nothing but
# the time of an old row is lost with it. What the row says is written by `swap`. A commit that was given up may have
# that lock for long: the poll does not wait for it.
_POLL: Final = f"""
WITH haste AS MATERIALIZED (
    SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true)
),
lock AS MATERIALIZED (
    SELECT pg_try_advisory_xact_lock(hashtextextended(encode(%(lease)s::bytea, 'hex'), 7410)) AS is_ours FROM haste
),
renewed AS (
    UPDATE sluice_item SET expires = clock_timestamp() + make_interval(secs => %(lasts)s) FROM lock
    WHERE lock.is_ours AND key = %(lease)s::bytea AND value = %(row)s::bytea AND {THERE} RETURNING key
),
copied AS (
    INSERT INTO sluice_item (key, value, expires)
    SELECT %(seen)s::bytea, %(row)s::bytea, clock_timestamp() + make_interval(secs => %(seen_for)s) FROM renewed
    ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires = excluded.expires
)
SELECT EXISTS (SELECT FROM renewed), extract(epoch FROM clock_timestamp())::float8,
    ARRAY(SELECT value FROM sluice_item WHERE key >= %(low)s AND key < %(high)s AND {THERE} ORDER BY key),
    ARRAY(
        SELECT (
            SELECT coalesce(sum(hash_record_extended(ROW(key, value), %(seed)s::bigint)), 0)::text FROM sluice_item
            WHERE key >= span.low AND key < span.high AND {THERE}
        ) FROM unnest(%(lows)s::bytea[], %(highs)s::bytea[]) WITH ORDINALITY AS span(low, high, at) ORDER BY at
    )
"""
_SEED: Final = secrets.randbits(63)
"""Nobody can find two values of one hash that does not know it."""
# Counts that a failover loses let a few more pass; to wait for a standby with each of them is worth less.
_HASTE: Final = "SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true)"
# Rates of a fleet, for what `policy.leases` says. A report that was not answered may have been counted: the total of a
# holder says so. A holder that reports nothing for longer than its leases are good (`DOWN_AFTER`) has died.
_SETTLE: Final = """
WITH now AS MATERIALIZED (SELECT extract(epoch FROM clock_timestamp())::float8 AS seconds),
asked AS (
    SELECT one.*, now.seconds, floor(now.seconds / one.step)::bigint AS at,
        greatest(one.total - greatest(one.base, own.total), 0) AS fresh
    FROM now, unnest(%(key)s::bytea[], %(base)s::bigint[], %(total)s::bigint[], %(held)s::bigint[], %(want)s::bigint[],
        %(amount)s::bigint[], %(step)s::float8[], %(steps)s::bigint[], %(is_over)s::boolean[])
        AS one(key, base, total, held, want, amount, step, steps, is_over)
    LEFT JOIN sluice_leased AS own ON own.key = one.key AND own.holder = %(holder)s
),
found AS (
    SELECT asked.*, counted.oldest, asked.amount - asked.fresh - asked.held - counted.used - others.leased AS free
    FROM asked, LATERAL (
        SELECT coalesce(sum(used), 0)::bigint AS used, min(step) AS oldest FROM sluice_used
        WHERE sluice_used.key = asked.key AND sluice_used.step >= asked.at - asked.steps
    ) AS counted, LATERAL (
        SELECT coalesce(sum(leased), 0)::bigint AS leased FROM sluice_leased
        WHERE sluice_leased.key = asked.key AND holder <> %(holder)s AND expires > clock_timestamp()
    ) AS others
),
settled AS (SELECT *, least(want, greatest(free, 0)) AS granted FROM found),
counting AS (
    INSERT INTO sluice_used AS old (key, step, used, expires)
    SELECT key, at, fresh, clock_timestamp() + make_interval(secs => (steps + 2) * step) FROM settled WHERE fresh > 0
    ON CONFLICT (key, step) DO UPDATE SET used = old.used + excluded.used
),
ending AS (
    DELETE FROM sluice_leased USING settled
    WHERE is_over AND sluice_leased.key = settled.key AND holder = %(holder)s
),
leasing AS (
    INSERT INTO sluice_leased (key, holder, leased, total, expires)
    SELECT key, %(holder)s, held + granted, total, clock_timestamp() + make_interval(secs => 10) FROM settled
    WHERE NOT is_over
    ON CONFLICT (key, holder) DO UPDATE SET leased = excluded.leased, total = excluded.total, expires = excluded.expires
)
SELECT key, granted, free > 0,
    coalesce((least(oldest, CASE WHEN fresh > 0 THEN at END) + steps + 1) * step - seconds, 0) FROM settled
"""


def span(prefix: str) -> tuple[bytes, bytes]:
    """Between which all keys with that prefix are."""
    return prefix.encode(), (prefix + LAST).encode()


async def poll(
    connection: Connection, *, lease: tuple[str, float], seen: tuple[str, float], row: bytes | None, others: str,
    prefixes: Sequence[str],
) -> Polled:  # fmt: skip
    low, high = span(others)
    spans = [span(prefix) for prefix in prefixes]
    asked = {
        "lease": lease[0].encode(), "lasts": lease[1], "seen": seen[0].encode(), "seen_for": seen[1], "row": row,
        "low": low, "high": high, "lows": [one for one, _ in spans], "highs": [one for _, one in spans], "seed": _SEED,
    }  # fmt: skip
    found = await (await connection.execute(_POLL.encode(), asked)).fetchone()
    assert found is not None
    return Polled(found[0], found[1], found[2], dict(zip(prefixes, found[3], strict=True)))


async def settle(connection: Connection, *, holder: str, reports: Sequence[LeaseReport]) -> list[LeaseGrant] | None:
    """None where a key is busy for longer than rates may wait."""
    columns = dict(zip(LeaseReport._fields, map(list, zip(*reports, strict=True)), strict=True))
    try:
        async with connection.transaction():
            await connection.execute(_HASTE)
            await connection.execute(LOCK, (columns["key"],))
            rows = await connection.execute(_SETTLE, {**columns, "holder": holder})
            return [LeaseGrant(*row) for row in await rows.fetchall()]
    except LockNotAvailable:
        return None
