"""Real servers from npm and PyPI, each run direct, through `sluice stdio` and through `sluice serve`: what they define
has to be the same but for names and URIs, and Sluice's first list has to be whole.

    python tests/compat/run.py                    every server of servers.txt, then a table
    python tests/compat/run.py time memory        those whose package has one of these words
    python tests/compat/run.py --hosts            programs that people use, through `sluice stdio`: see hosts.py

What a server is, `servers.txt` says: its kind, its package and version, then variables, `bin=`, `with=` (what is
installed beside it) and, after `--`, its arguments; `{folder}` is an empty one. A run that was stopped goes on where it
was (`build/compat/results.json`); `--fresh` forgets it. Packages are installed into `.peers/compat/`, once. Knows the
command line and MCP, no code of Sluice. Exit code: 0 all equal (or different from themselves, too), 1 otherwise.
"""

import argparse
import json
import os
import queue
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from e2e.sluice_process import sluice, stdio_command  # noqa: E402
from peers import install as peers  # noqa: E402

Json = dict[str, Any]
HOME = peers.ROOT / "compat"
RESULTS = ROOT / "build" / "compat"
KINDS = {"tools": "tools/list", "prompts": "prompts/list", "resources": "resources/list",
         "resourceTemplates": "resources/templates/list"}  # fmt: skip
CAPABILITY = {"resourceTemplates": "resources"}
START = 150.0  # seconds for an answer; machines that compare many servers at once are busy
REVISION = "2025-11-25"
HELLO = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": {"name": "compat", "version": "1"}}


@dataclass(frozen=True, slots=True)
class Server:
    kind: str
    package: str
    version: str
    env: dict[str, str]
    bin: str
    args: list[str]
    beside: str = ""  # what it needs that its package does not say

    @property
    def name(self) -> str:
        return f"{self.package}@{self.version}"

    @property
    def folder(self) -> Path:
        return HOME / re.sub(r"[^\w.-]", "-", f"{self.kind}-{self.package}-{self.version}")


def listed() -> Iterator[Server]:
    for line in (HERE / "servers.txt").read_text().splitlines():
        kind, package, *rest = shlex.split(line)
        name, _, version = package.rpartition("@") if kind == "npm" else package.partition("==")
        words, args = (rest[: rest.index("--")], rest[rest.index("--") + 1 :]) if "--" in rest else (rest, [])
        env = dict(word.split("=", 1) for word in words)
        yield Server(kind, name, version, env, env.pop("bin", ""), args, env.pop("with", ""))


# ---------------------------------------------------------------- installed


def command_of(server: Server) -> list[str]:
    """Installs it where it is missing. Install scripts do not run: some download what no registry has."""
    folder = server.folder
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if server.kind == "npm":
            (folder / "package.json").write_text('{"private": true}')
            checked([*map(str, peers.npm()), "install", "--no-save", server.name], folder)
        else:
            checked([str(peers.UV), "venv", "--quiet", "--clear", "--python", sys.executable, "env"], folder)
            package = f"{server.package}=={server.version}"
            checked(
                [
                    str(peers.UV),
                    "pip",
                    "install",
                    "--quiet",
                    "--python",
                    "env/bin/python",
                    package,
                    *server.beside.split(),
                ],
                folder,
            )
        (folder / "complete").touch()
    if server.kind == "pypi":
        return [str(folder / "env" / "bin" / (server.bin or server.package))]
    package = folder / "node_modules" / server.package
    bins = json.loads((package / "package.json").read_text()).get("bin", {})
    bins = {"": bins} if isinstance(bins, str) else bins
    short = server.package.rpartition("/")[2]
    program = bins.get(server.bin) or bins.get(short) or next(iter(bins.values()), None)
    if program is None:
        raise Failed("it has no program")
    return [str(peers.NODE), str(package / program)]


def checked(command: list[str], folder: Path) -> None:
    done = subprocess.run(
        command, cwd=folder, env=peers.environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=900
    )
    if done.returncode:
        raise Failed(f"not installed: {last_line(done.stderr.decode(errors='replace'))}")


class Failed(Exception):
    """In a sentence, what went wrong."""


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:160] if lines else "no word"


# ---------------------------------------------------------------- clients, as plain as can be

Ask = Callable[[str, Json], Json]


class Process:
    """A started program that speaks MCP on its pipes."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self.log = folder / "stderr.log"
        with self.log.open("w") as stderr:
            self.popen = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=env, cwd=folder
            )
        self.lines: queue.Queue[bytes] = queue.Queue()
        self.ids = count(1)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in self.popen.stdout or ():
            self.lines.put(line)
        self.lines.put(b"")

    def failed(self, what: str) -> Failed:
        return Failed(f"{what}: {last_line(self.log.read_text(errors='replace'))}")

    def send(self, message: Json) -> None:
        assert self.popen.stdin
        try:
            self.popen.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.popen.stdin.flush()
        except OSError:
            raise self.failed("ended") from None

    def ask(self, method: str, params: Json) -> Json:
        number = next(self.ids)
        self.send({"id": number, "method": method, "params": params})
        give_up = time.monotonic() + START
        while True:
            try:
                line = self.lines.get(timeout=max(0, give_up - time.monotonic()))
            except queue.Empty:
                raise self.failed(f"{method} is not answered") from None
            if not line:
                raise self.failed("ended")
            try:
                message = json.loads(line)
            except ValueError:
                continue  # some servers print to stdout
            if "method" not in message and message.get("id") == number:
                return result_of(method, message)
            if "method" in message and "id" in message:
                refusal: Json = {"error": {"code": -32601, "message": "Method not found"}}
                self.send({"id": message["id"], **({"result": {}} if message["method"] == "ping" else refusal)})

    def end(self) -> None:
        assert self.popen.stdin
        with suppress(OSError):
            self.popen.stdin.close()
        try:
            self.popen.wait(10)
        except subprocess.TimeoutExpired:
            self.popen.kill()
            self.popen.wait()


@contextmanager
def over_stdio(command: list[str], env: dict[str, str], folder: Path, params: Json = HELLO) -> Iterator[Ask]:
    """`params` are those of `initialize`: some servers define more for a client that can do more."""
    process = Process(command, env, folder)
    try:
        hello = process.ask("initialize", params)
        process.send({"method": "notifications/initialized"})
        yield lambda method, params: hello if method == "initialize" else process.ask(method, params)
    finally:
        process.end()


def result_of(method: str, message: Json) -> Json:
    if "error" in message:
        raise Failed(f"{method}: {message['error'].get('message')}")
    result: Json = message["result"]
    return result


@contextmanager
def over_http(url: str) -> Iterator[Ask]:
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}

    def post(message: Json) -> tuple[Any, Json]:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=START) as answer:
            text = answer.read().decode()
            if answer.headers.get_content_type() == "text/event-stream":
                text = [line[5:] for line in text.splitlines() if line.startswith("data:") and len(line) > 6][-1]
            return answer.headers, json.loads(text or "{}")

    got, hello = post({"id": 0, "method": "initialize", "params": HELLO})
    headers |= {"Mcp-Session-Id": got["Mcp-Session-Id"], "MCP-Protocol-Version": REVISION}
    post({"method": "notifications/initialized"})
    ids = count(1)

    def ask(method: str, params: Json) -> Json:
        if method == "initialize":
            return result_of(method, hello)
        return result_of(method, post({"id": next(ids), "method": method, "params": params})[1])

    yield ask


# ---------------------------------------------------------------- what is compared


def definitions(ask: Ask) -> dict[str, list[Json]]:
    """Each list whole, of the kinds that the peer declares, as its client first gets it."""
    declared = ask("initialize", {})["capabilities"]
    found: dict[str, list[Json]] = {}
    for kind, method in KINDS.items():
        found[kind] = []
        if CAPABILITY.get(kind, kind) not in declared:
            continue
        cursor: Json = {}
        while True:
            try:
                page = ask(method, cursor)
            except Failed as failure:
                if "method not found" in str(failure).lower():
                    break  # some servers declare what they do not have
                raise
            found[kind] += page[kind]
            if not page.get("nextCursor"):
                break
            cursor = {"cursor": page["nextCursor"]}
    return found


def differences(direct: dict[str, list[Json]], ours: dict[str, list[Json]]) -> list[str]:
    said = []
    for kind in KINDS:
        one, other = direct[kind], ours[kind]
        if len(one) != len(other):
            said.append(f"{kind}: {len(other)} of {len(one)}")
            continue
        for left, right in zip(one, other, strict=True):
            a, b = json.dumps(bare(left), sort_keys=True), json.dumps(bare(right), sort_keys=True)
            if a != b:
                fields = [key for key in {*left, *right} if bare(left).get(key) != bare(right).get(key)]
                said.append(f"{kind} {left.get('name')}: {', '.join(sorted(fields))} differ")
            if "name" in right and kind in ("tools", "prompts") and not right["name"].startswith("x__"):
                said.append(f"{kind} {left['name']}: called {right['name']}")
            uri = str(right.get("uri") or right.get("uriTemplate") or "x+")
            if not uri.startswith(("x+", "ui://x+", "http://", "https://")):
                said.append(f"{kind} {left.get('name')}: has the URI {uri}")
    return said


def bare(item: Json) -> Json:
    """Without what Sluice renames (a resource's `name` stays), and without `execution`: whether a tool runs as a task
    is between two peers, and Sluice waits for the tasks of clients that have none."""
    gone = {"uri", "uriTemplate"} if "uri" in item or "uriTemplate" in item else {"name", "execution"}
    text = json.dumps({key: value for key, value in item.items() if key not in gone})
    return json.loads(text.replace('"ui://x+', '"ui://'))  # type: ignore[no-any-return]


def compared(server: Server) -> Json:
    """A row of the table."""
    with tempfile.TemporaryDirectory() as place:
        home, folder, state = (Path(place, name) for name in ("home", "folder", "state"))
        for each in (home, folder, state):
            each.mkdir()
        args = [word.replace("{folder}", str(folder)) for word in server.args]
        env = {key: value.replace("{folder}", str(folder)) for key, value in server.env.items()}
        env |= {"HOME": str(home), "PATH": peers.environment()["PATH"]}
        command = [*command_of(server), *args]
        with over_stdio(command, env, folder) as ask:
            direct = definitions(ask)
            revision = ask("initialize", {})["protocolVersion"]
        entry: Json = {"command": command[0], "args": command[1:], "env": env, "cwd": str(folder)}
        row: Json = {"counts": [len(direct[kind]) for kind in KINDS], "revision": revision}
        config = {"servers": {"x": entry}}
        with over_stdio(stdio_command(config, state), {**os.environ, "HOME": str(home)}, state) as ask:
            row["stdio"] = differences(direct, definitions(ask))
        with sluice(config, state) as process, over_http(process.url) as ask:
            row["http"] = differences(direct, definitions(ask))
        if row["stdio"] or row["http"]:
            with over_stdio(command, env, folder) as ask:
                row["itself"] = differences(direct, as_ours(definitions(ask)))
        return row


def as_ours(lists: dict[str, list[Json]]) -> dict[str, list[Json]]:
    """A second direct answer in the form that `differences` takes for Sluice's."""
    return {
        kind: [
            {**item, **({"name": f"x__{item['name']}"} if kind in ("tools", "prompts") else {})}
            | {key: f"x+{item[key]}" for key in ("uri", "uriTemplate") if key in item}
            for item in items
        ]
        for kind, items in lists.items()
    }


# ---------------------------------------------------------------- the table


def verdict(row: Json) -> str:
    if "failed" in row:
        return f"not run: {row['failed']}"
    if not row["stdio"] and not row["http"]:
        return "equal"
    if row.get("itself"):
        return f"differs from itself: {row['itself'][0]}"
    return f"DIFFERS: stdio {row['stdio'][:2]}, HTTP {row['http'][:2]} ({len(row['stdio'])}, {len(row['http'])})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="parts of the packages' names (default: all)")
    parser.add_argument("--jobs", type=int, default=2, help="servers at once (2)")
    parser.add_argument("--fresh", action="store_true", help="forgets the results of earlier runs")
    parser.add_argument("--hosts", action="store_true", help="the hosts, not the servers")
    options = parser.parse_args()
    peers.install(lambda text: None)
    if options.hosts:
        from compat.hosts import main as hosts

        return hosts()
    servers = [one for one in listed() if not options.words or any(word in one.package for word in options.words)]
    RESULTS.mkdir(parents=True, exist_ok=True)
    file = RESULTS / "results.json"
    results: dict[str, Json] = json.loads(file.read_text()) if file.is_file() and not options.fresh else {}
    one_at_a_time = threading.Lock()

    def work(server: Server) -> None:
        try:
            row = compared(server)
        except (Failed, OSError, AssertionError, subprocess.SubprocessError, KeyError) as error:
            row = {"failed": f"{type(error).__name__} {error}".removeprefix("Failed ")[:300]}
        with one_at_a_time:
            results[server.name] = row
            file.write_text(json.dumps(results, indent=1))
            print(f"{server.name}: {verdict(row)}", flush=True)

    with ThreadPoolExecutor(options.jobs) as pool:
        for _ in pool.map(work, [one for one in servers if verdict(results.get(one.name, {"failed": ""})) != "equal"]):
            pass
    width = max(len(one.name) for one in servers)
    print(f"\n{'server':{width}}  kind  revision    tools prompts resources templates  outcome")
    for one in servers:
        row = results[one.name]
        counts = row.get("counts", ["", "", "", ""])
        print(
            f"{one.name:{width}}  {one.kind}  {row.get('revision', ''):10}  "
            f"{counts[0]:>5} {counts[1]:>7} {counts[2]:>9} {counts[3]:>9}  {verdict(row)}"
        )
    equal = sum(verdict(results[one.name]).startswith(("equal", "differs from itself")) for one in servers)
    print(f"{equal} passed, {len(servers) - equal} failed")
    return 0 if equal == len(servers) else 1


if __name__ == "__main__":
    raise SystemExit(main())
