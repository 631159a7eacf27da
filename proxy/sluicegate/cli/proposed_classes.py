"""Classes of tools that `install` and `add` propose: by a server's annotations and by the words in names. A person sees
and accepts them."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import anyio

from sluicegate import config
from sluicegate.app import state
from sluicegate.catalog_cache.snapshot_store import KEEP, hung_key
from sluicegate.cli.output import info, print_out, printable, progress, with_config
from sluicegate.cli.reached_servers import ReachedServer, quiet_log, reach_these
from sluicegate.cli.template import new_file, with_servers
from sluicegate.protocol.jsonrpc import inside

START_WITHIN: Final = 45.0
"""Seconds that each new server has to list its tools, whatever its `start_timeout`: the first start of a package
downloads it, and those of several share the network."""

# As MCP has names (2025-11-25 server/tools#tool-names): the keys of `classes` are globs, and a tool called `*` would
# speak for all others of its server.
_NAME: Final = re.compile(r"[A-Za-z0-9_./-]{1,128}")
_MOST: Final = 1_000
"""Tools of a server that get a class: the config file is for people, too."""
_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_RUN: Final = re.compile(r"[A-Z]+|[a-z]+")  # `getIDdelete`: where no capital begins the word
_DESTROYS: Final = frozenset(
    "clear delete destroy discard drop erase kill purge remove reset revoke terminate truncate uninstall wipe".split()
)
_READS: Final = frozenset("count describe diff fetch find get info list lookup read search show status view".split())
_STRICTNESS: Final = ("read", "", "destroy")
# One of these in a name, and an annotation alone does not make it a reading one.
_WRITES: Final = frozenset(
    "accept activate add adjust allow amend append apply approve archive assign ban bash buy call cancel change "
    "checkin checkout clone close cmd command commit configure copy create deactivate deny deploy disable dispatch "
    "downgrade edit enable eval exec execute exchange fork grant import insert install invoke kick launch login logout "
    "merge migrate modify mount move mutate open out override patch pause pay post promote provision publish purchase "
    "push put reboot register reject rename replace reply resize resolve restart restore resume revert rotate run save "
    "schedule script sell send set shell sign spawn sql start stop submit subscribe suspend swap switch sync toggle "
    "transfer trigger unlock unset unsubscribe update upgrade upload upsert vote withdraw write".split()
)
# What such a tool reads is a secret, more often than not: a person is asked.
_SECRETS: Final = frozenset(
    "cookie cookies credential credentials env environ environment key keychain keyring password passwords secret "
    "secrets token tokens vault".split()
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """Classes of a server's tools by their own names, or why there are none. `others` are names without a class, which
    count as `write`."""

    classes: dict[str, str] | None
    why: str = ""
    others: tuple[str, ...] = ()
    hangs: bool = False
    needs_login: bool = False


Proposals = Mapping[str, Proposal]
"""By the key of a server."""


def propose(path: Path, text: str, servers: dict[str, Any]) -> Proposals:
    """Starts each of these new servers once, as the config file at `path` with that text would."""
    plain = with_servers(text, servers) if text.strip() else new_file(servers, use="personal")
    folder = path.parent if path.parent.is_dir() else Path.home()  # where they run
    loaded = config.check_text(plain.removeprefix("\ufeff"), str(path), folder, os.environ).config
    if loaded is None or not servers:
        return {}
    return propose_for(loaded, [key for key in servers if loaded.servers[key].enabled])


def propose_for(loaded: config.Config, keys: Sequence[str]) -> Proposals:
    """Starts each of these servers once, at the same time."""
    if not keys:
        return {}
    about = f"starting servers, at most {START_WITHIN:g} seconds"
    with progress(about, len(keys)) as done, quiet_log():
        reached = anyio.run(reach_these, loaded, dict.fromkeys(keys, START_WITHIN), done)
    return {key: _proposal(reached[key]) for key in keys}


def _proposal(server: ReachedServer) -> Proposal:
    if server.needs_login:
        return Proposal(None, "it wants a login first", needs_login=True)
    if server.tools is None:
        return Proposal(None, server.error or "it is down", hangs=server.hangs)
    if not server.tools:
        return Proposal(None, "it has none")
    return proposal_of(server.tools)


def proposal_of(tools: Sequence[dict[str, Any]]) -> Proposal:
    classes = proposed(tools)
    names = (tool.get("name") for tool in tools)
    others = [name for name in names if isinstance(name, str) and name not in classes]
    return Proposal(classes, others=tuple(others[:_MOST]))


def remember_hanging(path: Path, proposals: Proposals) -> None:
    """The next start of Sluice waits for none of them: a client's first list is not late by one that hangs."""
    hanging = [key for key, found in proposals.items() if found.hangs]
    loaded = config.check(path).config if hanging else None
    if loaded is not None:
        with suppress(OSError):  # then it waits for them
            anyio.run(_remember, loaded, hanging)


async def _remember(loaded: config.Config, hanging: list[str]) -> None:
    async with state.open_store(loaded) as store:
        for key in hanging:
            await store.put(hung_key(key, loaded.servers[key].identity), b"", KEEP)


def set_classes(servers: dict[str, Any], proposals: Proposals) -> None:
    for key, found in proposals.items():
        if found.classes:
            servers[key]["tools"] = {**servers[key].get("tools", {}), "classes": found.classes}


def show_classes(proposals: Proposals, named: Path | None) -> None:
    for key, found in proposals.items():
        if found.classes is None:
            info(f"note  {key} lists no tools now: {printable(found.why)}; each will count as `write`.")
            first = f"login {key}" if found.needs_login else "doctor"
            look, again = (with_config(f"sluice {words}", named) for words in (first, f"classes {key}"))
            info(f"      See `{look}`. Once it runs, `{again}` proposes its classes")
            continue
        for class_ in ("read", "destroy"):
            if names := [printable(name) for name, own in found.classes.items() if own == class_]:
                print_out(f"  {key}  {class_}: {', '.join(names)}")
        if found.others:
            print_out(f"  {key}  write: {', '.join(map(printable, found.others))}")


def proposed(tools: Iterable[dict[str, Any]]) -> dict[str, str]:
    """`read` or `destroy` by the own name of a tool. One that is left out counts as `write`, and asks. Of a name that
    is listed twice, the strictest counts."""
    found: dict[str, str] = {}
    for tool in tools:
        name = tool.get("name")
        if isinstance(name, str) and _NAME.fullmatch(name) and (name in found or len(found) < _MOST):
            found[name] = max(found.get(name, "read"), _class_of(tool), key=_STRICTNESS.index)
    return {name: class_ for name, class_ in found.items() if class_}


def _class_of(tool: dict[str, Any]) -> str:
    words = [word.lower() for word in _WORD.findall(tool["name"])]
    seen = {*words, *map(str.lower, _RUN.findall(tool["name"]))}
    is_reading = inside(tool, "annotations", "readOnlyHint") is True
    is_destroying = inside(tool, "annotations", "destructiveHint") is True
    if not _DESTROYS.isdisjoint(seen) or (is_destroying and not is_reading):
        return "destroy"
    if is_destroying or not _WRITES.isdisjoint(seen) or not _SECRETS.isdisjoint(seen):
        return ""
    return "read" if is_reading or (words and words[0] in _READS) else ""
