"""`install`, `uninstall` and `status`: Sluice in the files of desktop clients, and out of them again."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from sluicegate import config
from sluicegate.cli.config_file import (
    checked,
    config_path,
    config_text,
    find_state,
    servers_in,
    servers_of,
    state_folder,
    write_config,
)
from sluicegate.cli.init import sluice_command
from sluicegate.cli.options import AsJson, ConfigFile
from sluicegate.cli.output import (
    Code,
    coloured,
    count,
    info,
    print_json,
    print_out,
    printable,
    stop,
    table,
    with_config,
)
from sluicegate.cli.programs import at_home, make_absolute
from sluicegate.cli.proposed_classes import Proposals, propose, remember_hanging, set_classes, show_classes
from sluicegate.cli.secret import FOLDER, MovedSecrets
from sluicegate.cli.template import new_file, server_lines, with_servers
from sluicegate.config import NO_VALUE
from sluicegate.config.units import read_duration
from sluicegate.desktop import changes
from sluicegate.desktop.changes import Changed, FileChange, Journal
from sluicegate.desktop.clients import CLIENTS
from sluicegate.desktop.edit import CannotEdit, edited
from sluicegate.desktop.read import IN_PLAIN_TEXT, IS_SLUICE, NotAClientConfig, key_of, parse, read

NAMES: Final = ", ".join(CLIENTS)

Clients = Annotated[list[str] | None, typer.Argument(metavar="CLIENT...", help=f"{NAMES}.", show_default=False)]
All = Annotated[bool, typer.Option("--all", help="All of them that are on this machine.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would change; change nothing.")]
Yes = Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")]

_DEFAULT_TIMEOUT: Final = "60s"


@dataclass
class _Plan:
    """What becomes of one client. `change` is None where nothing has to be done."""

    client: str
    path: Path
    change: FileChange | None = None
    ours: dict[str, Any] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def shown(self) -> dict[str, Any]:
        pids = changes.running(CLIENTS[self.client].processes)
        about = {"client": self.client, "file": str(self.path), "changes": self.change is not None}
        return about | {"moved": self.moved, "notes": self.notes, "running": pids}


def install(
    clients: Clients = None,
    all_: All = False,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the client's own servers in its file, too.")] = False,
    dry_run: DryRun = False,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Do not start new servers to propose classes of their tools.")
    ] = False,
    yes: Yes = False,
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Put Sluice into the files of desktop clients. Their servers move into the config of Sluice. Their secrets move
    into your keyring, else into files that only you can read. Each new server is started once, and classes of its
    tools are proposed: reading ones need no question. `sluice uninstall` makes the clients' files what they were, byte
    for byte."""
    chosen = _chosen(clients, all_)
    path = config_path(config_file)
    text = config_text(path)
    taken: dict[str, Any] = dict(servers_of(path))
    before = set(taken)
    state = state_folder(path)
    moved = MovedSecrets(state / FOLDER)
    plans = [_planned(client, chosen, path, config_file, taken, keep, moved) for client in chosen]
    added = {key: server for key, server in taken.items() if key not in before}
    is_refused = not (yes or sys.stdin.isatty())  # nobody can be asked, so nothing will be written
    starts = {} if dry_run or no_start or is_refused else {key: moved.plain[key] for key in added}
    classes = propose(path, text, starts)
    set_classes(added, classes)
    written = with_servers(text, added) if text else new_file(added, use="personal")
    if added and servers_in(written).keys() != taken.keys():
        stop(Code.NEGATIVE, f"Sluice cannot add servers to {path}: write `servers:` with one server below another")
    unkept = [reference[2:-1].partition(":")[2] for reference in moved.texts]  # secrets that are not kept yet
    problems = [one for one in checked(path, written)
                if not (one.code in NO_VALUE and any(name in one.message for name in unkept))]  # fmt: skip
    notes = [*map(str, problems), *_about_config(path, config_file, written)]
    _show(plans, path, config_file, added, as_json, moved, notes, classes)
    if dry_run or not (any(plan.change for plan in plans) or added):
        return
    _ask(yes)
    if written != text:
        moved.keep()
        try:
            write_config(path, written, text)
        except BaseException:  # also an interrupt: secrets that nothing names do not stay
            moved.drop()
            raise
    changed: list[str] = []
    for plan in plans:
        if plan.change is not None:
            _apply(plan, Journal(state_folder(path), plan.client), changed, config_file)
            changed.append(plan.client)
    remember_hanging(path, classes)
    if not as_json:
        look = with_config("sluice servers", config_file)
        info(f"next: restart {', '.join(changed)}; then {look}")


def _about_config(path: Path, named: Path | None, written: str) -> Iterator[str]:
    """What a person may not expect of a file that was not written for desktop clients."""
    if named is None and path != config.places()[-1].absolute():
        yield f"the servers go into {path}, which this folder has; -c FILE names another config"
    loaded = config.check_text(written.removeprefix("\ufeff"), str(path), path.parent, os.environ).config
    if loaded is not None and loaded.policy.use == "open":
        yield "its policy is open: no call asks, not even one that destroys. `policy: {use: personal}` does"


def _chosen(clients: list[str] | None, all_: bool) -> list[str]:
    if bool(clients) == all_:
        stop(Code.USAGE, f"name clients, or --all: {NAMES}")
    for name in clients or ():
        if name not in CLIENTS:
            stop(Code.USAGE, f"{printable(name)} is not a client that Sluice supports; these are: {NAMES}")
    chosen = list(dict.fromkeys(clients or [name for name in CLIENTS if CLIENTS[name].is_here()]))
    if not chosen:
        info(f"none of these clients is on this machine: {NAMES}")
    return chosen


def _planned(
    client: str, chosen: list[str], path: Path, named: Path | None, taken: dict[str, Any], keep: bool,
    secrets: MovedSecrets,
) -> _Plan:  # fmt: skip
    """Puts the servers that move into `taken`."""
    about = CLIENTS[client]
    plan = _Plan(client, about.file())
    try:
        data = changes.contents(plan.path)
        changes.require_writable(plan.path)
        names = {} if keep or not data else _moving(plan, data, taken, secrets)
        command, args = sluice_command(path)
        ours = about.sluice(command, args)
        suffix = plan.path.suffix.lower()
        replaced = changes.entry(data, suffix, about.root) if data else None
        if not names and replaced == ours:
            return plan
        after = edited(data or b"", suffix, about.root, frozenset(names), {changes.NAME: ours})
        document = parse(data, suffix) if data and data.strip() else {}
    except (OSError, CannotEdit, NotAClientConfig) as error:
        hint = "nothing was changed"
        if isinstance(error, CannotEdit):
            hint += f"; sluice init --for {client} prints what to add; --keep moves no servers"
        elif others := " ".join(one for one in chosen if one != client):
            hint += f"; mend that file, or name the other clients: {with_config(f'sluice install {others}', named)}"
        else:
            hint += "; mend that file first"
        stop(Code.NEGATIVE, _cannot_edit(client, error), hint)
    section = (document or {}).get(about.root) or {}
    gone = {name: section[name] for name in names}
    if replaced is not None and not changes.is_sluice(replaced) and changes.NAME not in names:
        gone[changes.NAME] = replaced
        back = with_config("sluice uninstall", named)
        plan.notes.append(f"another entry, {changes.NAME}, is replaced; {back} puts it back")
    plan.change = FileChange(str(plan.path), about.root, data, after, changes.mode_of(plan.path), gone)
    plan.moved, plan.ours = names, ours
    return plan


def _cannot_edit(client: str, error: Exception) -> str:
    file, why = CLIENTS[client].file(), str(error)
    if isinstance(error, OSError) and error.strerror:  # which may be about the journal
        other = error.filename if error.filename != str(file) else None
        why = f"{error.strerror}: {other}" if other else error.strerror
    return f"{client}: Sluice cannot edit {file}: {why}"


def _moving(plan: _Plan, data: bytes, taken: dict[str, Any], secrets: MovedSecrets) -> dict[str, str]:
    """The client's names of the servers that move, and their keys in the config. What cannot be imported stays."""
    root = CLIENTS[plan.client].root
    suffix = plan.path.suffix.lower()
    if not data.strip() or root not in (parse(data, suffix) or {}):
        return {}
    imported = read(data, suffix, with_projects=False)
    own = f"{changes.NAME}: {IS_SLUICE}"  # of an installation before
    plan.notes += [note for note in imported.notes if note != own and not note.endswith(IN_PLAIN_TEXT)]
    moved: dict[str, str] = {}
    whose: dict[str, list[str]] = {}  # by note
    for key, name in imported.names.items():
        server = imported.servers[key]
        notes = [*make_absolute(server)]
        forms = [server, dict(server)]  # the second is what an earlier Sluice took in
        notes += at_home(server)
        same = next((one for one in taken if any(secrets.is_same(one, form, taken[one]) for form in forms)), None)
        if same is not None and "cwd" in server and "cwd" not in taken[same]:
            wanted = f"cwd: {server['cwd']}, command: {server['command']}"
            plan.notes.append(f"servers.{same} may not find its files: give it {wanted}")
        if same in secrets.plain:  # it is new, too
            plan.notes += _longer_timeout(same, server, taken[same])
        if same is None:
            same = key_of(key, taken)
            secrets.move(same, server)
            taken[same] = server
            for note in notes:
                whose.setdefault(note, []).append(same)
        moved[name] = same
    plan.notes += [f"{', '.join(keys)}: {note}" for note, keys in whose.items()]
    return moved


def _longer_timeout(key: str, server: dict[str, Any], present: dict[str, Any]) -> Iterator[str]:
    """Clients may wait for the same server for different times: the longest of them counts."""
    wanted, has = server.get("timeout"), present.get("timeout")
    if wanted is not None and read_duration(wanted) > read_duration(has or _DEFAULT_TIMEOUT):
        present["timeout"] = wanted
        yield f"{key}: its timeout is {wanted}, the longest of several clients"


def _show(
    plans: list[_Plan], path: Path, named: Path | None, added: dict[str, Any], as_json: bool, secrets: MovedSecrets,
    problems: list[str], classes: Proposals,
) -> None:  # fmt: skip
    if as_json:
        about: dict[str, Any] = {"config": str(path), "added": list(added), "secrets": list(secrets.texts)}
        about |= {"problems": problems, "classes": {key: one.classes for key, one in classes.items()}}
        print_json(about | {"clients": [plan.shown() for plan in plans]})
        return
    for plan in plans:
        if plan.change is None:
            print_out(f"{plan.client}  {plan.path}\n  Sluice is installed: nothing to do")
            continue
        print_out(f"{plan.client}  {plan.path}")
        _show_line("+", f"{changes.NAME}: {json.dumps(plan.ours, ensure_ascii=False)}")
        for name, key in plan.moved.items():
            is_new = "" if key in added else ", which is there already"
            _show_line("-", f"{name}: moves to {path.name} as {key}{is_new}")
        for note in plan.notes:
            info(f"  note  {printable(note)}")
        if pids := changes.running(CLIENTS[plan.client].processes):
            which = ", ".join(map(str, pids))
            hint = "quit it fully, its tray icon too, or it may write its file again"
            info(f"  note  {plan.client} runs (process {which}): {hint}")
    for note in [*secrets.notes(), *problems]:
        info(f"note  {note}")
    print_out(f"config  {path}: {count(len(added), 'new server')}")
    for line in filter(None, server_lines(added)):  # secrets are gone from it: it names where they are
        _show_line("+", line.removeprefix("  "))
    show_classes(classes, named)


def _show_line(sign: str, text: str) -> None:
    """One that comes or goes."""
    print_out(coloured(f"  {sign} {printable(text)}", like="added" if sign == "+" else "removed"))


def _ask(yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        stop(Code.USAGE, "nothing was changed: --yes changes the files without a question")
    if not typer.confirm("Change these files?"):
        stop(Code.NEGATIVE, "nothing was changed")


def _apply(plan: _Plan, journal: Journal, changed: list[str], named: Path | None) -> None:
    assert plan.change is not None
    try:
        changes.make(plan.change, journal)
    except (OSError, Changed) as error:
        undo = with_config(f"sluice uninstall {' '.join(changed)}", named)
        done = f"changed already: {', '.join(changed)}; {undo} undoes that"
        stop(Code.NEGATIVE, _cannot_edit(plan.client, error), done if changed else "no client was changed")


def uninstall(
    clients: Clients = None, all_: All = False, dry_run: DryRun = False, yes: Yes = False,
    config_file: ConfigFile = None, as_json: AsJson = False,
) -> None:  # fmt: skip
    """Take Sluice out of the files of desktop clients. A file that nobody edited since is what it was before, byte for
    byte. In others the entry of Sluice is removed, and the servers come back that had moved. The config stays."""
    chosen = _chosen(clients, all_)
    path = config_path(config_file)
    journals = {client: Journal(state_folder(path), client) for client in chosen}
    problems: list[str] = []
    rows = [_row(client, journals[client], problems) for client in chosen]
    will_change = any(row["installed"] for row in rows)
    if not as_json:
        for row in rows:
            print_out(f"{row['client']}  {row['file']}\n  {printable(row.get('done') or row['plan'])}")
    if dry_run or not will_change:
        if as_json:
            print_json({"clients": rows})
        stop(Code.NEGATIVE if problems else Code.OK, *problems)
    _ask(yes)
    for row in rows:
        if row["installed"]:
            try:
                row["done"] = _removed(row["client"], journals[row["client"]])
            except (OSError, Changed, CannotEdit, NotAClientConfig) as error:
                problems.append(_cannot_edit(row["client"], error))
    if as_json:
        print_json({"clients": rows})
    for row in () if as_json else rows:
        if row["installed"]:
            print_out(printable(f"{row['client']}: {row.get('done') or 'is left as it is'}"))
    if done := [row["client"] for row in rows if row.get("done")]:
        info(f"next: restart {', '.join(done)}")
        info(f"{path.parent} and {state_folder(path)} stay: the config, the audit log, secrets that moved here")
    stop(Code.NEGATIVE if problems else Code.OK, *problems)


def _row(client: str, journal: Journal, problems: list[str]) -> dict[str, Any]:
    """What cannot be read counts as not installed, unless the journal has it. It is left alone, and is a problem."""
    about = CLIENTS[client]
    path = about.file()
    plan = "Sluice is not installed: nothing to do"
    try:
        if is_installed := bool(steps := journal.changes()):
            plan = changes.plan_of(steps)
        found = changes.contents(path)
        entry = changes.entry(found, path.suffix.lower(), about.root) if found and not is_installed else None
        if changes.is_sluice(entry):
            is_installed, plan = True, f"{changes.NAME} goes; no servers come back, for nothing is known of it here"
    except (OSError, Changed, NotAClientConfig) as error:
        problems.append(_cannot_edit(client, error))
        return {"client": client, "file": str(path), "installed": False, "done": "cannot be read"}
    return {"client": client, "file": str(path), "installed": is_installed, "plan": plan}


def _removed(client: str, journal: Journal) -> str:
    """Undoes the changes from the last to the first."""
    done = ""
    steps = journal.changes()
    while steps:
        done = f"{steps[-1].path} {changes.undo(steps[-1])}"
        steps.pop()
        journal.write(steps)
    about = CLIENTS[client]
    if changes.take_out(about.file(), about.root):
        done = f"{about.file()}: Sluice is taken out"
    return done


def status(config_file: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show which desktop clients start Sluice. And which of them run, so that they have to be restarted after a
    change. Their ages are compared on Linux alone."""
    path = config_path(config_file)
    command, args = sluice_command(path)
    state = find_state(path)
    rows = []
    for client, about in CLIENTS.items():
        file = about.file()
        row: dict[str, Any] = {"client": client, "state": found_state(client, command, args), "file": str(file)}
        pids = changes.running(about.processes)
        at = Journal(state, client).written_at() if state else None
        old = [pid for pid in pids if at is not None and changes.began_before(pid, at)]
        rows.append(row | {"running": pids, "restart": old, "shadowed": [str(one) for one in about.shadowed()]})
    if as_json:
        print_json({"config": str(path), "clients": rows})
        return
    cells = [[row["client"], row["state"], "yes" if row["running"] else "no", row["file"]] for row in rows]
    print_out(table([["CLIENT", "STATE", "RUNNING", "FILE"], *cells], state="STATE"))
    for row in rows:
        if row["restart"]:
            which = ", ".join(map(str, row["restart"]))
            info(f"note  {row['client']} runs since before the last change of its file (process {which}): restart it")
        for other in row["shadowed"]:
            info(f"note  {row['client']} has a second file, {other}: it may read that one")


def found_state(client: str, command: str, args: list[str]) -> str:
    """Whether a client's file starts this Sluice, in words. They begin with `installed` where it starts one, and with
    `stale` or `not readable` where the file has to be mended."""
    about = CLIENTS[client]
    file = about.file()
    if not about.is_here():
        return "not on this machine"
    try:
        data = changes.contents(file)
        entry = changes.entry(data, file.suffix.lower(), about.root) if data else None
    except OSError:
        return "not readable"
    except NotAClientConfig as error:
        return f"not readable: {error}"
    if entry is None or not changes.is_sluice(entry):
        return "not installed"
    program = Path(str(entry.get(about.command)))
    if program.is_absolute() and not program.exists():
        return "stale: there is no such program"
    is_ours = (entry.get(about.command), entry.get("args")) == (command, args)
    return "installed" if is_ours else "installed with another command or config"


def imported_names(file: Path) -> set[str]:
    """The keys that the servers of a client's file would have in the config, without those of single projects, which do
    not move; none for a file that cannot be read."""
    try:
        return set(read(file.read_bytes(), file.suffix.lower(), with_projects=False).servers)
    except (OSError, NotAClientConfig):
        return set()
