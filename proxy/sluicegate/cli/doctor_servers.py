"""What `doctor` finds by reaching each server: whether it starts, what it says, when its token ends, what it costs."""

import json
import re
import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from fnmatch import fnmatchcase
from typing import Any, Final

import httpx
import jwt

from sluicegate import config
from sluicegate.app import state
from sluicegate.cli.check import stored_definitions
from sluicegate.cli.doctor_machine import Diagnosis, Examined
from sluicegate.cli.output import count
from sluicegate.cli.programs import is_found_by_all, not_found
from sluicegate.cli.reached_servers import ReachedServer, reach_these
from sluicegate.login.records import LOGINS

LIMIT: Final = 30.0
"""Seconds that each server has to start and to list its tools, unless its `start_timeout` is shorter."""
_DATE_WITHIN: Final = 5.0
SOON: Final = 7 * 86400.0
MANY_TOKENS: Final = 20_000
_SKEW: Final = 60.0
_ERROR: Final = re.compile(r"(?:npm )?(?:error|fatal)\b", re.IGNORECASE)
_NO_PROGRAM: Final = re.compile(r"the command .+ (?:was not found on PATH|does not exist)")
_MOST_LINES: Final = 10
_CHARACTERS: Final = 4  # of JSON in a token, about


async def reach_all(examined: Examined, done: Callable[[int], None]) -> dict[str, ReachedServer]:
    """Starts or reaches every enabled server, all at once. Those of a Sluice that runs are asked there: a second
    process could disturb the first one."""
    if (loaded := examined.config) is None:
        return {}
    enabled = [key for key, section in loaded.servers.items() if section.enabled]
    reached = {row["key"]: _from_row(row) for row in examined.rows or () if row.get("key") in enabled}
    done(len(reached))
    limits = {key: min(LIMIT, loaded.servers[key].start_timeout) for key in enabled if key not in reached}
    reached |= await reach_these(loaded, limits, done)
    return {key: reached[key] for key in enabled}


def _from_row(row: dict[str, Any]) -> ReachedServer:
    status, hangs = row.get("status"), str(row.get("lists")).endswith("does not answer")
    error = str(row.get("last_error") or ("it does not answer" if hangs else ""))
    return ReachedServer(
        0.0, status == "up", error, str(row.get("exit") or ""), list(row.get("stderr") or ()),
        str(row.get("noise") or ""), needs_login=bool(row.get("needs_login")), hangs=hangs,
        is_starting=status == "starting" and not hangs,
    )  # fmt: skip


def _telling(lines: list[str]) -> str:
    """The line that calls itself an error, as uv and npm write it before hints, else the last."""
    return next((line for line in lines[-_MOST_LINES:] if _ERROR.match(line)), lines[-1])


def servers(examined: Examined, reached: dict[str, ReachedServer]) -> Iterator[Diagnosis]:
    """Whether each is up; lines on stdout that are no messages."""
    for key, why in examined.loaded.disabled.items():
        yield Diagnosis(key, "failed", f"it is disabled: {why}", "set what is missing, or take the server out")
    missing = {problem.path[1] for problem in not_found(examined.loaded) if problem.code == "command-not-found"}
    for key, one in reached.items():
        if key in missing and not one.is_up:
            yield Diagnosis(key, "skipped", "its program is missing")
        elif one.needs_login and state.peek(examined.loaded, [f"{LOGINS}/{key}/"]):
            message = f"it wants a login, and somebody is logged in: see `{examined.command('logins')}`"
            yield Diagnosis(key, "ok", message)
        elif one.is_starting:
            message = "it is still starting, as the Sluice says that runs"
            yield Diagnosis(key, "warning", message, f"wait, and run {examined.command('doctor')} again")
        elif not one.is_up and _is_behind(examined.loaded.servers[key], one):
            message = "the Sluice that runs has not found its program, which is there now"
            hint = f"Sluice follows within five seconds: run {examined.command('doctor')} again"
            yield Diagnosis(key, "warning", message, hint)
        elif not one.is_up:
            detail = f"; it wrote: {_telling(one.stderr)}" if one.stderr else ""
            yield Diagnosis(key, "failed", (one.error or "it is down") + detail, _hint(examined, key, one))
        elif one.tools is None:
            yield Diagnosis(key, "ok", "up, as the Sluice says that runs")
        else:
            yield Diagnosis(key, "ok", f"{count(len(one.tools), 'tool')}, after {1000 * one.seconds:.0f} ms")
        if one.is_up and one.noise:
            message = f"it writes to stdout what is no message: {one.noise}"
            yield Diagnosis(key, "warning", message, "make it log to stderr; other clients may fail at this")


def _is_behind(section: config.AnyServer, one: ReachedServer) -> bool:
    """Whether a Sluice that runs says what was so before its program was installed, or its path was written."""
    is_missing = _NO_PROGRAM.match(one.error) is not None
    return isinstance(section, config.StdioServer) and is_missing and is_found_by_all(section)


def _hint(examined: Examined, key: str, one: ReachedServer) -> str:
    section = examined.loaded.servers[key]
    if one.needs_login:
        command = examined.command(f"login {key}")
        return f"run `{command}`, or put a token into headers of {key}: Authorization: Bearer ${{env:TOKEN}}"
    if "HTTP 401" in one.error or "HTTP 403" in one.error:
        return f"login needed: put a valid token into headers of {key}, such as Authorization: Bearer ${{env:TOKEN}}"
    if isinstance(section, config.HttpServer):
        return "check its url, and that it runs"
    if "its sandbox cannot be made" in one.error:
        return f"{examined.command('doctor')} says more under sandboxes; docs/how-to/sandbox.md"
    if "was not found" in one.error:
        return f"write its path into servers.{key}.command: {examined.command('doctor --fix')} does"
    if one.hangs or "within" in one.error:
        return "run its command by hand and wait; a first start may download packages"
    return "run its command by hand, and read what it says"


def tokens(examined: Examined, reached: dict[str, ReachedServer]) -> Iterator[Diagnosis]:
    """Tokens in `headers` and keys of clients that have ended, or end within a week."""
    found = [*_ends_of_tokens(examined.loaded), *_ends_of_keys(examined.loaded)]
    now = time.time()
    for subject, end, hint in found:
        when = datetime.fromtimestamp(end, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if end <= now:
            yield Diagnosis(subject, "failed", f"it expired at {when}", hint)
        elif end - now < SOON:
            yield Diagnosis(subject, "warning", f"it expires at {when}", hint)
        else:
            yield Diagnosis(subject, "ok", f"it is good until {when}")


def _ends_of_tokens(loaded: config.Config) -> Iterator[tuple[str, float, str]]:
    for key, server in loaded.servers.items():
        for name, value in server.headers.items() if isinstance(server, config.HttpServer) else ():
            if (end := _end_of(value.get_secret_value().rpartition(" ")[2])) is not None:
                yield f"{key}, header {name}", end, "put a new token where the old one is"


def _end_of(token: str) -> float | None:
    """When a JWT ends, as it says itself; None for what is no JWT, or has no end."""
    try:
        end = jwt.decode(token, options={"verify_signature": False}).get("exp")
    except jwt.PyJWTError:
        return None
    return float(end) if isinstance(end, int | float) and 0 < end < 1e11 else None


def _ends_of_keys(loaded: config.Config) -> Iterator[tuple[str, float, str]]:
    for name, key in loaded.clients.keys.items():
        if key.expires is not None:
            yield f"clients.keys.{name}", key.expires.timestamp(), f"sluice keys new {name} makes another"


def clock(examined: Examined, reached: dict[str, ReachedServer]) -> Iterator[Diagnosis]:
    """Compares this machine's clock with the `Date` (RFC 9110 6.6.1) of the servers that are reached by URL."""
    compared: list[str] = []
    for key, server in examined.loaded.servers.items():
        if not isinstance(server, config.HttpServer) or not server.enabled:
            continue
        skew = _skew(server, examined.loaded.network.proxy)
        if skew is not None and abs(skew) > _SKEW:
            message = f"this machine's clock is {abs(skew):.0f} seconds {'behind' if skew > 0 else 'ahead of'} {key}'s"
            yield Diagnosis(key, "warning", message, "let the system set its clock (NTP): tokens end by it")
        elif skew is not None:
            compared.append(key)
    if compared:
        yield Diagnosis(", ".join(compared), "ok", "clocks agree")


def _skew(server: config.HttpServer, proxy: str | None) -> float | None:
    try:
        context = ssl.create_default_context(cafile=str(server.ca)) if server.ca else True
        with httpx.Client(proxy=proxy, verify=context, trust_env=False, timeout=_DATE_WITHIN) as client:
            date = client.head(server.url).headers.get("date", "")
        return parsedate_to_datetime(date).timestamp() - time.time()
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, TypeError):
        return None  # whether it is reached, and why not, is another check


def sizes(examined: Examined, reached: dict[str, ReachedServer]) -> Iterator[Diagnosis]:
    """What the definitions of all tools cost a client that shows each of them to its model."""
    loaded = examined.loaded
    stored = stored_definitions(loaded)
    found = {key: [*stored.get(key, {}).values()] if one.tools is None else one.tools for key, one in reached.items()}
    shown = {key: [tool for tool in own if _is_shown(loaded.servers[key], tool)] for key, own in found.items()}
    tokens_of = {key: sum(len(json.dumps(tool)) for tool in own) // _CHARACTERS for key, own in shown.items()}
    total, number = sum(tokens_of.values()), sum(map(len, shown.values()))
    if total > MANY_TOKENS and loaded.search == "off":
        largest = max(tokens_of, key=lambda key: tokens_of[key])
        message = f"{count(number, 'tool')} cost about {total:,} tokens, {tokens_of[largest]:,} of them {largest}'s"
        hint = f"name the tools that you use in tools.allow of {largest}, or write search: auto"
        yield Diagnosis("definitions", "warning", message, hint)
    elif number:
        yield Diagnosis("definitions", "ok", f"{count(number, 'tool')}, about {total:,} tokens")
    if loaded.names.max > 64:
        hint = "write names: {max: 50}, or leave it out"
        yield Diagnosis("names.max", "warning", "some clients refuse names of more than 64 characters", hint)


def _is_shown(section: config.AnyServer, tool: Any) -> bool:
    name = str(tool.get("name")) if isinstance(tool, dict) else ""
    rules = section.tools
    is_allowed, is_denied = (any(fnmatchcase(name, one) for one in globs) for globs in (rules.allow, rules.deny))
    return is_allowed and not is_denied


def console(examined: Examined, get: Callable[[str], int] | None) -> Iterable[Diagnosis]:
    """Whether the console of the Sluice that runs can be opened. `get` returns the HTTP status of a path there."""
    if examined.config is None:
        return [Diagnosis("console", "skipped", "there is no config to look at")]
    if not examined.config.console.enabled:
        return [Diagnosis("console", "skipped", "it is off: console.enabled")]
    if get is None:
        hint = f"your desktop client starts it, or `{examined.command('serve')}`"
        return [Diagnosis("console", "skipped", "no Sluice runs with this config", hint)]
    status = get("/console")
    if status in (200, 404):  # 404: a desktop client's Sluice opens it when it is asked for a link
        return [Diagnosis("console", "ok", f"{examined.command('console')} opens it")]
    hint = f"restart Sluice, then run {examined.command('console')}"
    return [Diagnosis("console", "failed", f"it answers HTTP {status}", hint)]
