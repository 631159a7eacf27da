"""Time that a test makes, for what goes by a clock of ours or by that of a PostgreSQL."""

from peers.postgres import Cluster


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


class EngineClock(Clock):
    """The time of a PostgreSQL: its sessions find a `clock_timestamp` of ours before its own."""

    def __init__(self, engine: Cluster, schema: str) -> None:
        self._engine, self._schema = engine, schema
        engine.ask(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.clock AS SELECT 1000.0::float8 AS now;"
                   f"CREATE FUNCTION {schema}.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS"
                   f" $$ SELECT to_timestamp(now) FROM {schema}.clock $$")  # fmt: skip
        self.url = f"{engine.url}?options=-csearch_path%3D{schema},pg_catalog"

    @property
    def now(self) -> float:
        return float(self._engine.ask(f"SELECT now FROM {self._schema}.clock")[0][0])

    @now.setter
    def now(self, now: float) -> None:
        self._engine.ask(f"UPDATE {self._schema}.clock SET now = {now!r}")
