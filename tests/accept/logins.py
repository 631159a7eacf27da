"""What a login costs: a call that sends its token beside one with a header of the config, and how long the first tools
take.

Bytecodes are counted, and hold the bar; CPU is the median of pairs that take turns, and is shown. The seconds have the
authorization server's and the browser's part in them. Run it with: make accept ARGS=--logins.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import bytecodes
import httpx
from e2e.sluice_process import clean_environment, settings_for, write_config
from e2e.test_logins import ROWS, command, log_in
from load import META, MODERN, Call, legacy_call, message, modern_call, plain_headers
from peers.login.misbehaving import Misbehaving, misbehaving
from policy_bed import bearer, bed, client_keys, reason
from subjects import SUBJECT_CORE, Subject, running
from waiting import until_so

PAIRS, CALLS = 9, 300
LOGINS: Final = 5
DEARER, WITHIN = 2.0, 3.0
ROW = ROWS + ROWS.replace("mail", "fixed")
EVERYTHING = ("initialize", "notifications/initialized", "server/discover", "tools/list", "tools/call")
Json = dict[str, Any]
Sites = tuple[Misbehaving, Misbehaving]


def main(words: list[str]) -> int:
    """The exit code: 0 if both bars are held."""
    with misbehaving() as site, misbehaving() as another:
        another.switches.open_methods = EVERYTHING  # it takes any token
        good = [calls((site, another), kind) for kind in ("legacy", "modern")]
    return 0 if all([*good, first_tools()]) else 1


def calls(sites: Sites, kind: str) -> bool:
    counted = {}
    for server in ("fixed", "mail"):
        with tempfile.TemporaryDirectory(prefix="sluice-logins-") as folder:
            counts = Path(folder) / "counts"
            os.environ[bytecodes.FILE] = str(counts)
            with serving(sites, Path(folder), [sys.executable, bytecodes.__file__]) as subject:
                bytecodes.count(call(subject, kind, server), subject.pid, counts)
            counted[server] = sum(row.codes for row in bytecodes.rows(counts))
            del os.environ[bytecodes.FILE]
    with tempfile.TemporaryDirectory(prefix="sluice-logins-") as folder:
        with serving(sites, Path(folder), [sys.executable, "-m", "sluicegate"]) as subject:
            ratios = cpu(subject, kind)
    more = (counted["mail"] / counted["fixed"] - 1) * 100
    print(f"{kind}: a call with a login's token {counted['mail']:.0f} bytecodes, with a header of the config "
          f"{counted['fixed']:.0f}: {more:+.1f} % (at most {DEARER:g}){'' if more <= DEARER else '   MISSED'}; "
          f"CPU {(median(ratios) - 1) * 100:+.1f} % of {PAIRS} pairs", flush=True)  # fmt: skip
    return more <= DEARER


def cpu(subject: Subject, kind: str) -> list[float]:
    askers = {server: bytecodes.Asker(call(subject, kind, server)) for server in ("fixed", "mail")}

    def used(server: str) -> float:
        before = subject.cpu()
        askers[server].ask(CALLS)
        subject.rest()
        return subject.cpu() - before

    for server in askers:
        used(server)
    ratios = []
    for number in range(PAIRS):
        taken = {server: used(server) for server in (("mail", "fixed") if number % 2 else ("fixed", "mail"))}
        ratios.append(taken["mail"] / taken["fixed"])
    return ratios


@contextmanager
def serving(sites: Sites, folder: Path, words: list[str]) -> Iterator[Subject]:
    """Ann's login is used for `mail`, a header of the config for `fixed`."""
    site, another = sites
    (folder / "policy.csv").write_text(ROW)
    header = {"headers": {"Authorization": "Bearer fixed"}}
    servers: Json = {"mail": {"url": site.mcp, "required": False},
                     "fixed": {"url": another.mcp, "required": False} | header}  # fmt: skip
    config: Json = {"servers": servers, "policy": {"files": ["policy.csv"]}, "clients": {"keys": client_keys(ann=[])}}
    settings = settings_for(config, folder)
    file, admin = write_config(settings, folder), settings["listen"]["admin"]
    with running(SUBJECT_CORE, [*words, "serve", "-c", str(file)], folder / "log", lambda: answers(admin)) as pid:
        log_in(folder, "--as", "ann")
        subject = Subject(pid, f"http://{settings['listen']['mcp']}/mcp", headers=tuple(bearer("ann").items()))
        until_so(lambda: all(f"{server}__test-tool" in listed(subject) for server in servers))
        yield subject


def listed(subject: Subject) -> str:
    routing = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/list"}
    body = message("tools/list", {"_meta": META})
    return httpx.post(subject.url, headers=plain_headers(subject) | routing, json=body, trust_env=False).text


def answers(admin: str) -> bool:
    try:
        return httpx.get(f"http://{admin}/readyz", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def call(subject: Subject, kind: str, server: str) -> Call:
    """Of a tool that says "test", once it does so."""
    made = {"legacy": legacy_call, "modern": modern_call}[kind]
    about = Subject(subject.pid, subject.url, f"{server}__test-tool", subject.headers)
    with httpx.Client(trust_env=False, timeout=60) as client:
        return made(about, client, text="test")


def first_tools() -> bool:
    """From `sluice login` to a list with the server's tools, the browser's part included."""
    seconds = []
    with tempfile.TemporaryDirectory(prefix="sluice-logins-") as name, misbehaving() as site:
        folder = Path(name)
        server: Json = {"url": site.mcp, "required": False}
        with bed(folder, ROWS, {"mail": server}, clients={"keys": client_keys(ann=[])}) as there:
            for _ in range(LOGINS):
                began = time.perf_counter()
                log_in(folder, "--as", "ann")
                there.until(lambda: "mail__echo" in there.names("ann"))
                seconds.append(time.perf_counter() - began)
                subprocess.run(command(folder, "logout", "mail", "--as", "ann"), check=True, capture_output=True,
                               env=clean_environment())  # fmt: skip
                there.until(lambda: reason(there.call("ann", "mail__echo")) == "login_required")
    slowest = max(seconds)
    print(f"from `sluice login` to listed tools: {', '.join(f'{one:.1f}' for one in seconds)} s (at most {WITHIN:g})"
          f"{'' if slowest <= WITHIN else '   MISSED'}")  # fmt: skip
    return slowest <= WITHIN
