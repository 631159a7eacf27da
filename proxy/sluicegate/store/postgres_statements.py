"""What `postgres.py` says to the engine: the tables, version by version, and its statements. Opens no connection.

A version only adds: Sluices of the one before go on beside it while replicas are restarted one by one. What nobody
reads any more is dropped a release later, and `OLDEST_READER` raised then. All steps are over within the time of an
operation: none builds an index of a table that has rows.
"""

from collections.abc import Iterator
from typing import Final

STEPS: Final[tuple[tuple[str, ...], ...]] = (
    (  # 1
        "CREATE TABLE IF NOT EXISTS sluice_item (key bytea PRIMARY KEY, value bytea NOT NULL, expires timestamptz)",
        "CREATE INDEX IF NOT EXISTS sluice_item_expires ON sluice_item (expires) WHERE expires IS NOT NULL",
        "CREATE TABLE IF NOT EXISTS sluice_spent (key bytea PRIMARY KEY, expires timestamptz NOT NULL)",
        "CREATE INDEX IF NOT EXISTS sluice_spent_expires ON sluice_spent (expires)",
        "CREATE TABLE IF NOT EXISTS sluice_schema (version int NOT NULL, min_reader int NOT NULL)",
    ),
    (  # 2: the rates of a fleet
        "CREATE TABLE IF NOT EXISTS sluice_used (key bytea, step bigint, used bigint NOT NULL,"
        " expires timestamptz NOT NULL, PRIMARY KEY (key, step))",
        "CREATE INDEX IF NOT EXISTS sluice_used_expires ON sluice_used (expires)",
        "CREATE TABLE IF NOT EXISTS sluice_leased (key bytea, holder text, leased bigint NOT NULL,"
        " total bigint NOT NULL, expires timestamptz NOT NULL, PRIMARY KEY (key, holder))",
    ),
)
"""What makes each version of the one before."""
VERSION: Final = len(STEPS)
OLDEST_READER: Final = 1
"""Sluices that know no newer version than the one before this do not start on tables of `VERSION`."""
GRANTS: Final = (
    "GRANT SELECT, INSERT, UPDATE, DELETE ON sluice_item, sluice_spent, sluice_used, sluice_leased TO {}",
    "GRANT SELECT ON sluice_schema TO {}",
)
"""What a role needs that did not make them."""


def after(version: int) -> Iterator[str]:
    """The statements that tables of `version` lack; 0 where there are none."""
    if version >= VERSION:
        return
    for step in STEPS[version:]:
        yield from step
    yield "DELETE FROM sluice_schema"
    yield f"INSERT INTO sluice_schema VALUES ({VERSION}, {OLDEST_READER})"


IS_THERE: Final = "SELECT to_regclass('sluice_schema')"
# Where this role has the tables, or would make them. Another one that makes them for it may have another search_path.
SCHEMA: Final = """
SELECT coalesce((SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = to_regclass('sluice_schema')),
    quote_ident(current_schema()))
"""
FIND_VERSION: Final = "SELECT version, min_reader FROM sluice_schema"
PURGE_AT_ONCE: Final = 1000
THERE: Final = "(expires IS NULL OR expires > clock_timestamp())"
ENDS: Final = "clock_timestamp() + make_interval(secs => %s)"  # NULL, and so never, of no time
GET: Final = f"SELECT value FROM sluice_item WHERE key = %s AND {THERE}"
GET_ALL: Final = f"SELECT key, value FROM sluice_item WHERE key = ANY(%s) AND {THERE}"
PUT: Final = f"""
INSERT INTO sluice_item (key, value, expires) VALUES (%s, %s, {ENDS})
ON CONFLICT (key) DO UPDATE SET value = excluded.value, expires = excluded.expires
"""
DELETE: Final = "DELETE FROM sluice_item WHERE key = %s"
SCAN: Final = f"SELECT key, value FROM sluice_item WHERE key >= %s AND key < %s AND {THERE} ORDER BY key"
EXPIRE: Final = f"UPDATE sluice_item SET expires = {ENDS} WHERE key = %s AND {THERE}"
SPEND: Final = f"""
INSERT INTO sluice_spent AS old (key, expires) VALUES (%s, coalesce({ENDS}, 'infinity'))
ON CONFLICT (key) DO UPDATE SET expires = excluded.expires WHERE old.expires <= clock_timestamp()
"""
SPENT_TOO: Final = f"""
INSERT INTO sluice_spent AS old (key, expires) VALUES (%s, coalesce({ENDS}, 'infinity'))
ON CONFLICT (key) DO UPDATE SET expires = greatest(old.expires, excluded.expires)
"""
PURGE: Final = tuple(
    f"DELETE FROM {table} WHERE ({key}) IN (SELECT {key} FROM {table} WHERE expires <= clock_timestamp()"
    f" LIMIT {PURGE_AT_ONCE} FOR UPDATE SKIP LOCKED)"
    for table, key in (
        ("sluice_item", "key"), ("sluice_spent", "key"), ("sluice_used", "key, step"), ("sluice_leased", "key, holder")
    )
)  # fmt: skip
NOW: Final = "SELECT extract(epoch FROM clock_timestamp())"
# A process of the engine that waits for a lock does not notice that its client has gone. It would wait as long as a
# commit that waits for a standby, and with each try there would be one more.
PATIENCE: Final = "SET LOCAL lock_timeout = '4s'"
REPLICATION: Final = "SELECT current_setting('synchronous_standby_names'), current_setting('synchronous_commit')"
# Whoever writes a key holds its lock until the commit. In the order of the locks, so that no two wait for each other.
LOCK: Final = """
SELECT pg_advisory_xact_lock(of.key) FROM
(SELECT DISTINCT hashtextextended(encode(name, 'hex'), 7410) AS key FROM unnest(%s::bytea[]) AS name ORDER BY key) AS of
"""


def span(prefix: str) -> tuple[bytes, bytes]:
    """Between which all keys with that prefix are."""
    return prefix.encode(), (prefix + chr(0x10FFFF)).encode()


# One statement, and so one snapshot. A renewal waits for no standby, for it has to go on while one hangs: nothing but
# the time of an old row is lost with it. What the row says is written by `swap`. A commit that was given up may have
# that lock for long: the poll does not wait for it.
POLL: Final = f"""
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
# Counts that a failover loses let a few more pass; to wait for a standby with each of them is worth less.
HASTE: Final = "SELECT set_config('lock_timeout', '1s', true), set_config('synchronous_commit', 'off', true)"
# Rates of a fleet, for what `policy.leases` says. A report that was not answered may have been counted: the total of a
# holder says so. A holder that reports nothing for longer than its leases are good (`DOWN_AFTER`) has died.
SETTLE: Final = """
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
