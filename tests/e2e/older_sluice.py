"""Sluice as it was on the first version of the tables: it knows no later ones, polls nothing, and its rows say less."""

from typing import Any

from sluicegate.__main__ import main
from sluicegate.app.replicas import Replicas
from sluicegate.store import postgres_statements as migrations
from sluicegate.store.postgres import PostgresStore

row = Replicas.row


def older(self: Replicas) -> dict[str, Any]:
    return {name: value for name, value in row(self).items() if name not in ("keys", "policy")}


if __name__ == "__main__":
    migrations.STEPS, migrations.VERSION = migrations.STEPS[:1], 1  # type: ignore[misc]
    Replicas.row = older  # type: ignore[method-assign]
    del PostgresStore.poll
    main()
