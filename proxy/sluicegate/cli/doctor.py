"""`doctor`: looks for what commonly keeps Sluice and its servers from working, and says what mends it."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import anyio
import typer
from anyio.to_thread import run_sync

from sluicegate import config
from sluicegate.cli import doctor_machine, doctor_servers
from sluicegate.cli.admin import Admin, running_servers
from sluicegate.cli.check import examine
from sluicegate.cli.doctor_machine import Diagnosis, Examined
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import (
    Code,
    coloured,
    count,
    info,
    print_json,
    print_out,
    printable,
    progress,
    stop,
    with_config,
)
from sluicegate.cli.reached_servers import quiet_log

Check = Callable[[Examined], Iterable[Diagnosis]]
MACHINE: Final[dict[str, Check]] = {
    "install": doctor_machine.installation,
    "config": doctor_machine.config_file,
    "commands": doctor_machine.commands,
    "sandboxes": doctor_machine.sandboxes,
    "ports": doctor_machine.ports,
    "state": doctor_machine.state_directory,
    "clients": doctor_machine.clients,
}
_WITHOUT_CONFIG: Final = ("install", "config", "clients")  # all others are of what it says
SERVERS: Final = {
    "servers": doctor_servers.servers,
    "tokens": doctor_servers.tokens,
    "clock": doctor_servers.clock,
    "sizes": doctor_servers.sizes,
}
"""Those that are given how every server was reached."""
WITHIN: Final = 10.0
"""Seconds that each check has."""


def doctor(
    fix: Annotated[
        bool, typer.Option("--fix", help="Mend what Sluice can mend: modes of its files, commands without a path.")
    ] = False,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Look for what keeps Sluice and its servers from working. Says what mends it; exits 1 if something fails. Starts
    each server for a moment, unless a Sluice runs with this config: then that one is asked."""
    found = _all(_examined(config_file))
    fixed = [(check, one, one.fix()) for check, one in found if fix and one.fix is not None]
    if fixed:
        found = _all(_examined(config_file))
    failed = sum(one.state == "failed" for _, one in found)
    if as_json:
        rows = [_row(check, one) for check, one in found]
        done = [{"check": check, "subject": one.subject, "done": what} for check, one, what in fixed]
        print_json({"ok": not failed, "checks": rows, "fixed": done})
    else:
        for check, _, what in fixed:
            print_out(f"{coloured('fixed')}    {check}: {printable(what)}")
        for line in _lines(found):
            print_out(line)
    _end(found, failed, config_file)


def _end(found: list[tuple[str, Diagnosis]], failed: int, named: Path | None) -> None:
    warnings = sum(one.state == "warning" for _, one in found)
    if any(one.fix for _, one in found):
        info(f"{with_config('sluice doctor --fix', named)} mends what is marked *")
    if failed:
        stop(Code.NEGATIVE, f"{count(failed, 'problem')}, {count(warnings, 'warning')}")
    info("no problems" + (f", {count(warnings, 'warning')}" if warnings else ""))


def _row(check: str, one: Diagnosis) -> dict[str, Any]:
    about = {"check": check, "subject": one.subject, "state": one.state, "message": one.message, "hint": one.hint}
    return about | {"fixable": one.fix is not None}


def _lines(found: list[tuple[str, Diagnosis]]) -> Iterator[str]:
    for check, one in found:
        mark = " *" if one.fix else ""
        state = coloured(f"{one.state:<8}", one.state)
        yield f"{state} {check}: {printable(one.subject)}: {printable(one.message)}{mark}"
        if one.hint:
            yield f"         {printable(one.hint)}"


def _examined(named: Path | None) -> Examined:
    path, checked = examine(named)
    loaded = checked.config or config.check(path).config if path.is_file() else None
    return Examined(path.absolute(), checked.findings, loaded, running_servers(path) if loaded else None, named)


def _get(path: Path) -> Callable[[str], int]:
    def get(what: str) -> int:
        with Admin(path, as_operator=True).client() as client:
            return client.get(client.base_url.copy_with(path=what)).status_code

    return get


def _all(examined: Examined) -> list[tuple[str, Diagnosis]]:
    with quiet_log():
        return anyio.run(_checked, examined)


async def _checked(examined: Examined) -> list[tuple[str, Diagnosis]]:
    """All checks at once, in the order of their tables."""
    names = (*MACHINE, *SERVERS, "console")
    found: dict[str, list[Diagnosis]] = {name: [] for name in names}

    async def one(name: str, check: Callable[[], Iterable[Diagnosis]]) -> None:
        with anyio.move_on_after(WITHIN) as limit:
            found[name] = await run_sync(lambda: list(check()), abandon_on_cancel=True)
        if limit.cancelled_caught:
            found[name] = [Diagnosis(name, "failed", f"this check did not end within {WITHIN:g} seconds")]

    enabled = sum(server.enabled for server in examined.config.servers.values()) if examined.config else 0
    async with anyio.create_task_group() as group:
        for name, check in MACHINE.items():
            if examined.config is not None or name in _WITHOUT_CONFIG:
                group.start_soon(one, name, partial(check, examined))
        get = None if examined.rows is None else _get(examined.path)
        group.start_soon(one, "console", partial(doctor_servers.console, examined, get))
        with progress("servers", enabled) as done:
            reached = await doctor_servers.reach_all(examined, done)
        for name, about in SERVERS.items() if examined.config is not None else ():
            group.start_soon(one, name, partial(about, examined, reached))
    return [(name, one) for name in names for one in found[name]]
