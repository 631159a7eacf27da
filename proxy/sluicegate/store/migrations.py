"""The tables of a store in PostgreSQL, version by version: as data, which `postgres.py` brings into force.

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
