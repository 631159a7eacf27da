"""`state migrate` and `import`: the tables of the database that `state.url` names, and what SQLite kept before."""

from functools import partial
from typing import Annotated

import anyio
import typer

from sluicegate import config
from sluicegate.app import state, state_import
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import Code, give, info, load, stop
from sluicegate.store import StoreFailed


def migrate(
    role: Annotated[
        str | None,
        typer.Option("--as", metavar="ROLE", show_default=False,
                     help="The role that makes them, for the role of state.url. libpq finds its password: in "
                          "~/.pgpass or PGPASSWORD."),
    ] = None,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Make or change the tables, where the role of state.url may not. Replicas go on meanwhile."""
    loaded = _with_database(config_file)
    try:
        before, now = anyio.run(partial(state.migrate, loaded, role))
    except StoreFailed as error:
        stop(Code.UNREACHABLE, f"nothing was changed: {error}")
    text = f"the tables are of version {now}" + (f"; they were of version {before}" if 0 < before < now else "")
    give(as_json, {"before": before, "now": now}, [text])


def import_(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Bring what a Sluice kept in state.dir into the database, once. No Sluice may run meanwhile."""
    loaded = _with_database(config_file)
    try:
        brought = anyio.run(state_import.bring, loaded)
    except OSError as error:  # a `StoreFailed`, too
        stop(Code.NEGATIVE, f"nothing was imported: {error}")
    rows = [f"{count} {kind}" for kind, count in brought.counts.items()]
    give(as_json, {"imported": brought.counts, "left": brought.left, "again": brought.is_again}, rows)
    if brought.is_again:
        info("all of it was imported before")
    elif not rows:
        info("there was nothing to import")
    if brought.left:
        info(f"{brought.left} rows stay behind: console sessions, logins under way and parts of large answers")


def _with_database(config_file: ConfigFile) -> config.Config:
    path, loaded = load(config_file, quietly=True)
    if loaded.state.url is None:
        stop(Code.CONFIG, f"{path} has no state.url: there is no database")
    return loaded
