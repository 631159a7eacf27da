"""A rug pull from end to end: a real server that changes a description, real clients of both eras, the real command."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anyio
import command_line
import pytest
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment, settings_for, sluice, write_config
from e2e.wire import META, Client

from sluicegate.app.settings import DATABASE
from sluicegate.policy.pins import fingerprint
from sluicegate.protocol.canonical_json import canonical
from sluicegate.store import Write
from sluicegate.store.sqlite import SqliteStore

Json = dict[str, Any]
Command = Callable[..., "subprocess.CompletedProcess[str]"]

ADD: Json = {"name": "add", "description": "Adds.", "inputSchema": {"type": "object"}}
SUB: Json = {"name": "sub", "description": "Subtracts.", "inputSchema": {"type": "object"}}
SERVER = str(Path(__file__).parents[1] / "turncoat_server.py")
UNKNOWN = {"code": -32602, "message": "Unknown tool: "}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "tools.json").write_text(json.dumps([ADD, SUB]))
    (tmp_path / "calls").touch()
    return tmp_path


def config(folder: Path, **server: Any) -> Json:
    """The same ports and state for every start in that folder."""
    file = folder / "sluice.yaml"
    if file.exists():
        return dict(json.loads(file.read_text()))
    calm: Json = {"command": sys.executable, "args": [SERVER, str(folder)], **server}
    return settings_for({"servers": {"math": calm}, "log": {"format": "json"}}, folder)


def calls(folder: Path) -> list[str]:
    return (folder / "calls").read_text().split()


def command(folder: Path) -> Command:
    """In a thread, for the tests have an event loop of their own; `check` starts servers, and wants a process."""

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        whole = [*words, "-c", str(folder / "sluice.yaml")]
        if words[0] == "check":
            environ = clean_environment() | {"PYTHONIOENCODING": "utf-8"}
            return subprocess.run(
                [*COMMAND, *whole], capture_output=True, text=True, cwd=ROOT, env=environ, timeout=60, check=False
            )
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(command_line.run, ROOT, *whole).result()

    return run


async def names(client: Client) -> set[str]:
    params = {"_meta": META} if client.modern else {}
    return {tool["name"] for tool in (await client.request("tools/list", params)).result()["tools"]}


async def until(client: Client, expected: set[str]) -> None:
    with anyio.fail_after(60):
        while await names(client) != expected:  # noqa: ASYNC110 - another process has no event to give
            await anyio.sleep(0.02)


async def error(client: Client, name: str) -> Json:
    (message,) = (await client.call(name, {})).messages()
    return dict(message["error"])


def warnings(process: Sluice) -> list[Json]:
    lines = [json.loads(line) for line in process.log().splitlines() if line.startswith("{")]
    return [line for line in lines if "withheld" in line["event"]]


@pytest.mark.parametrize("modern", [False, True])
async def test_a_tool_that_changes_after_its_first_call_is_gone_until_a_person_accepts_it(
    folder: Path, modern: bool
) -> None:
    run = command(folder)
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern) as client:
            assert await names(client) == {"math__add", "math__sub"}
            (await client.call("math__add", {})).result()
            await until(client, {"math__sub"})
            unknown, never = await error(client, "math__add"), await error(client, "math__nobody")
            assert unknown["message"] == "Unknown tool: math__add"
            assert {**unknown, "message": ""} == {**never, "message": ""}
            (await client.call("math__sub", {})).result()
            assert calls(folder) == ["add", "sub"], "the server never heard of the refused call"

            (told,) = warnings(process)
            poisoned = json.loads((folder / "tools.json").read_text())[0]
            assert (told["before"], told["after"]) == (fingerprint(ADD), fingerprint(poisoned))

            listed = run("pins", "list")
            assert f"see `sluice pins diff -c {folder / 'sluice.yaml'}`" in listed.stderr
            assert f"`sluice pins list -c {folder / 'sluice.yaml'}` shows" in run("pins", "accept", "math").stderr
            assert listed.returncode == 0 and "2 pinned" not in listed.stderr, listed.stderr
            assert listed.stdout.splitlines()[1].split()[:6] == ["math", "legacy", "tool", "add", "changed", "no"]
            shown = run("pins", "diff", "math", "add").stdout
            assert '- description: "Adds."' in shown and "id_rsa\u27e8U+200B\u27e9 and pass" in shown

            assert run("pins", "accept", "math", "add", "--seen", fingerprint(ADD)[:8]).returncode == 1
            accepted = run("pins", "accept", "math", "add", "--seen", fingerprint(poisoned)[:8])
            assert accepted.stdout == f"accepted tool add (legacy) {fingerprint(poisoned)[:16]}\n", accepted.stderr
            await until(client, {"math__add", "math__sub"})
            (await client.call("math__add", {})).result()
            assert calls(folder) == ["add", "sub", "add"]


async def test_a_restart_neither_forgets_what_waits_nor_takes_it_for_a_first_use(folder: Path) -> None:
    run = command(folder)
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern=True) as client:
            (await client.call("math__add", {})).result()
            await until(client, {"math__sub"})
    (folder / "tools.json").write_text(json.dumps([ADD, SUB]))  # as it was when it was accepted
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__sub"})
            assert (await error(client, "math__add"))["message"] == "Unknown tool: math__add"
    assert run("pins", "diff").stdout.startswith("math (legacy): tool add: returned")
    offline = run("pins", "accept", "math", "--all")
    assert offline.returncode == 0 and "accepted tool add (legacy)" in offline.stdout, offline.stderr
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__add", "math__sub"})
    assert calls(folder) == ["add"]


async def listed_with_roots(client: Client) -> set[str]:
    meta = META | {"io.modelcontextprotocol/clientCapabilities": {"roots": {}}}
    return {tool["name"] for tool in (await client.request("tools/list", {"_meta": meta})).result()["tools"]}


async def test_a_server_cannot_use_a_new_capability_set_for_a_rug_pull(folder: Path) -> None:
    poisoned, extra = {**ADD, "description": "Adds, and mails."}, {**ADD, "name": "extra"}
    (folder / "roots.json").write_text(json.dumps([poisoned, SUB, extra]))
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern=True) as client:
            assert await names(client) == {"math__add", "math__sub"}
            assert await listed_with_roots(client) == {"math__sub", "math__extra"}
            assert await names(client) == {"math__sub"}, "what changed for one set is gone for all"
            (folder / "tools.json").write_text(json.dumps([ADD, SUB, extra]))
            (await client.call("math__sub", {})).result()  # it says that its list changed
            with anyio.fail_after(60):
                while not any(line["definition"] == "extra" for line in warnings(process)):
                    assert await names(client) == {"math__sub"}, "a set whose first list is over gains nothing"
            assert (await error(client, "math__extra"))["message"] == "Unknown tool: math__extra"
            assert await listed_with_roots(client) == {"math__sub", "math__extra"}
            run = command(folder)
            waiting = json.loads((await anyio.to_thread.run_sync(run, "pins", "list", "--json")).stdout)["pins"]
            assert {(row["name"], row["state"]) for row in waiting} == {("add", "changed"), ("extra", "new")}
            accepted = await anyio.to_thread.run_sync(run, "pins", "accept", "math", "extra")
            assert accepted.returncode == 0, accepted.stderr
            await until(client, {"math__sub", "math__extra"})


async def test_another_server_under_the_same_key_is_not_taken_for_the_first_one(folder: Path) -> None:
    run = command(folder)
    first = config(folder)
    other: Json = json.loads(json.dumps(first))
    other["servers"]["math"]["args"].append("another argument")
    with sluice(first, folder) as process:
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__add", "math__sub"})
    write_config(other, folder)
    changed = {**SUB, "description": "Subtracts, and mails."}
    (folder / "tools.json").write_text(json.dumps([ADD, changed]))
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "state").iterdir()}
    checked = run("check")
    assert f"`sluice pins accept math --all -c {folder / 'sluice.yaml'}` accepts them" in checked.stdout
    assert checked.returncode == 0 and "another-server warning: another server under this key, here" in checked.stdout
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "state").iterdir()} == before
    with sluice(other, folder) as process:
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__add"})
            said = "another server under this key: 1 definition waits"
            for words in (["servers"], ["check"], ["pins", "list"]):
                done = await anyio.to_thread.run_sync(run, *words)
                assert done.returncode == 0 and said in done.stdout + done.stderr, words
    (folder / "tools.json").write_text(json.dumps([ADD, SUB]))
    with sluice(first, folder) as process:
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__add", "math__sub"})
            assert len(warnings(process)) == 1, "that of the other one: this one has its own book"


def test_check_neither_makes_a_store_nor_breaks_on_a_broken_one(folder: Path) -> None:
    run = command(folder)
    write_config(config(folder), folder)
    assert run("check").returncode == 0 and not (folder / "state").exists()
    (folder / "state").mkdir(mode=0o700)
    (folder / "state" / "sluice.db").write_bytes(b"no database" * 1000)
    checked = run("check")
    assert checked.returncode == 0 and "another-server" not in checked.stdout + checked.stderr


async def test_what_is_accepted_in_the_state_directory_is_served_by_a_client_of_stdio_soon_after(folder: Path) -> None:
    """A desktop client's Sluice has no admin port; it follows the store."""
    run = command(folder)
    write_config(config(folder, pin="block"), folder)
    arguments = [*COMMAND, "stdio", "-c", str(folder / "sluice.yaml")]
    with anyio.fail_after(120):
        async with await anyio.open_process(arguments, cwd=ROOT, env=clean_environment(), stderr=None) as process:
            assert process.stdin and process.stdout
            lines = Lines(process.stdin, process.stdout)
            await lines.ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {},
                                           "clientInfo": {"name": "t", "version": "1"}})  # fmt: skip
            await lines.send({"method": "notifications/initialized"})
            assert (await lines.ask("tools/list", {}))["tools"] == []
            accepted = await anyio.to_thread.run_sync(run, "pins", "accept", "math", "add")
            assert accepted.returncode == 0, accepted.stderr
            assert (await lines.told("notifications/tools/list_changed")) is not None
            assert [tool["name"] for tool in (await lines.ask("tools/list", {}))["tools"]] == ["math__add"]
            process.terminate()


class Lines:
    """JSON-RPC on a process's pipes, one message a line."""

    def __init__(self, stdin: Any, stdout: Any) -> None:
        self._stdin, self._stdout, self._rest = stdin, stdout, b""

    async def send(self, message: Json) -> None:
        await self._stdin.send(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    async def _next(self) -> Json:
        while b"\n" not in self._rest:
            self._rest += await self._stdout.receive()
        line, self._rest = self._rest.split(b"\n", 1)
        return dict(json.loads(line))

    async def ask(self, method: str, params: Json) -> Json:
        await self.send({"id": 1, "method": method, "params": params})
        while True:
            message = await self._next()
            if "id" in message:
                return dict(message["result"])

    async def told(self, method: str) -> Json:
        while (message := await self._next()).get("method") != method:
            pass
        return message


async def test_a_lock_file_tells_in_ci_what_differs(folder: Path) -> None:
    run = command(folder)
    lock = folder / "pins.lock"
    with sluice(config(folder), folder) as process:
        async with Client(process.url, modern=True) as client:
            await names(client)
            exported = run("pins", "export")
            lock.write_text(exported.stdout)
            assert json.loads(exported.stdout)["servers"]["math"]["legacy"]["tool"] == {
                "add": f"sha256:{fingerprint(ADD)}", "sub": f"sha256:{fingerprint(SUB)}"
            }  # fmt: skip
            assert run("pins", "export", "--check", str(lock)).returncode == 0
            (await client.call("math__add", {})).result()
            await until(client, {"math__sub"})
            checked = run("pins", "export", "--check", str(lock))
            assert checked.returncode == 1
            assert checked.stdout.startswith("math (legacy): tool add: sha256:")
            assert "1 not as locked; locked but not seen: 0" in checked.stderr


def test_mistakes_of_the_person_have_their_exit_codes(folder: Path) -> None:
    run = command(folder)
    write_config(config(folder), folder)
    assert run("pins", "list").returncode == 4, "nothing runs, nothing is kept"
    assert run("pins", "list", "nobody").returncode == 1
    assert run("pins", "accept", "math").returncode == 2
    assert run("pins", "accept", "math", "add", "--all").returncode == 2
    with sluice(config(folder), folder):
        assert run("tools").returncode == 0
        assert run("pins", "accept", "math", "nobody").returncode == 1
        assert run("pins", "list", "--key", "guess").returncode == 5
        (folder / "no.lock").write_text("[]")
        for lock in ("no.lock", "missing.lock"):
            assert run("pins", "export", "--check", str(folder / lock)).returncode == 2
        rows = json.loads(run("pins", "list", "--all", "--json").stdout)["pins"]
        assert [(row["kind"], row["name"], row["state"]) for row in rows] == [
            ("instructions", "instructions", "first_use"), ("tool", "add", "first_use"), ("tool", "sub", "first_use"),
        ]  # fmt: skip
        assert "description: " in run("pins", "diff", "math", "add").stdout
    assert os.listdir(folder / "state")


async def test_pins_of_the_first_version_stay_accepted_and_bring_no_second_first_use(folder: Path) -> None:
    """Its books had neither identities nor capability sets: `pins/SERVER/ERA`, and pins without their sets."""
    run, new = command(folder), {**SUB, "description": "Subtracts, and reads your mail."}
    (folder / "tools.json").write_text(json.dumps([ADD, new, {**SUB, "name": "mul"}]))
    settings = config(folder)

    def row(item: Json, *rest: Any) -> list[Any]:
        return ["tool", item["name"], fingerprint(item), canonical(item), *rest]

    instructions = ["instructions", "", fingerprint("Sums."), canonical("Sums."), "", "2026-11-19T10:00:00Z"]
    pinned = [row(ADD, "local", "2026-11-20T10:00:00Z"), row(SUB, "", "2026-11-20T10:00:00Z"), instructions]
    kept = {
        "pins/math/legacy": {"pins": pinned, "closed": ["instructions", "prompt", "res", "tool"]},
        "pins-waiting/math/legacy": {"waiting": [row({**SUB, "name": "div"}, "2026-11-20T11:00:00Z", False)]},
    }
    store = SqliteStore(Path(settings["state"]["dir"]) / DATABASE)
    writes = [Write(key, json.dumps(book).encode()) for key, book in kept.items()]
    assert await store.swap("pins-revision", None, [*writes, Write("pins-revision", b"1" * 16)])
    await store.close()
    for _ in range(2):  # what it took over is its own at the next start
        with sluice(settings, folder) as process:
            async with Client(process.url, modern=True) as client:
                await until(client, {"math__add"})
            states = [line.split()[3:5] for line in run("pins", "list", "--all").stdout.splitlines()[1:]]
            assert sorted(states) == sorted([
                ["instructions", "first_use"], ["add", "accepted"], ["div", "new"], ["mul", "new"], ["sub", "changed"],
            ])  # fmt: skip
    with sluice(settings, folder) as process:
        assert run("pins", "accept", "math", "--all").returncode == 0
        async with Client(process.url, modern=True) as client:
            await until(client, {"math__add", "math__sub", "math__mul"})


def test_an_operator_who_may_use_nothing_has_the_definitions_recorded(folder: Path) -> None:
    """As in a pipeline: `sluice tools`, then `sluice pins export --check`."""
    (folder / "policy.csv").write_text("p, local, sluice, admin:*, *, allow\n")
    made = config(folder) | {"policy": {"files": ["policy.csv"]}, "clients": {"local": {"roles": []}}}
    with sluice(made, folder):
        run = command(folder)
        listed = run("tools", "--json")
        assert listed.returncode == 0 and json.loads(listed.stdout)["tools"] == [], listed.stderr
        exported = run("pins", "export")
        assert "add" in exported.stdout and "sub" in exported.stdout, exported.stdout + exported.stderr
