"""A config that changes while Sluice runs: taken whole or not at all."""

import json
import pickle
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from waiting import until

from sluicegate import config
from sluicegate.app import policy_loading
from sluicegate.app import reload as reloading
from sluicegate.app.reload import InForce, Reload, ToldReload, joining, unprepared
from sluicegate.config import Config, HttpServer
from sluicegate.policy.files import LoadedPolicy
from sluicegate.policy.target import read_target
from sluicegate.protocol.model import Client

ROWS = "p, role:reader, a, *, read, allow\n"
SETTINGS: dict[str, Any] = {
    "policy": {"files": ["policy.csv"], "tests": "tests.yaml", "arguments": "arguments"},
    "servers": {"a": {"command": "x"}, "b": {"url": "https://b.test/mcp", "headers": {"A": "${file:token}"}}},
    "clients": {"local": {"roles": ["role:reader"]}},
    "listen": {"mcp": "127.0.0.1:0"},
}


@dataclass
class Bed:
    folder: Path
    applied: list[tuple[Config, LoadedPolicy]] = field(default_factory=list)
    news: anyio.Event = field(default_factory=anyio.Event)
    rejections: list[int] = field(default_factory=list)

    def write(self, name: str, text: str) -> None:
        (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(text)

    def settings(self, **changes: Any) -> None:
        self.write("sluice.yaml", json.dumps(SETTINGS | changes))

    def apply(self, new: Config, loaded: LoadedPolicy) -> None:
        self.applied.append((new, loaded))
        self.news.set()

    async def next(self) -> Config:
        with anyio.fail_after(20):
            await self.news.wait()
        self.news = anyio.Event()
        return self.applied[-1][0]


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bed:
    """Its files are looked at often, so that nobody waits for the next look."""
    monkeypatch.setattr(reloading, "POLL", 0.05)
    made = Bed(tmp_path)
    made.write("policy.csv", ROWS)
    made.write("token", "secret")
    made.write("tests.yaml", "- {as: {id: x, roles: [reader]}, call: a/get, class: read, expect: allow}\n")
    (tmp_path / "arguments").mkdir()
    made.settings()
    return made


@asynccontextmanager
async def watching(bed: Bed, transport: str = "http") -> AsyncIterator[Reload]:
    started = config.load(bed.folder / "sluice.yaml")
    revision = policy_loading.load(started).policy.revision
    reload = Reload(started, revision, bed.folder / "sluice.yaml", transport, bed.apply)
    async with anyio.create_task_group() as group:
        group.start_soon(reload.run)
        yield reload
        group.cancel_scope.cancel()


async def rejected(reload: Reload, words: str) -> None:
    reload.ask()
    await until(lambda: any(words in problem for problem in reload.problems))


async def test_every_file_that_a_decision_depends_on_is_watched(bed: Bed) -> None:
    async with watching(bed) as reload:
        for name, text in (
            ("policy.csv", ROWS + "p, role:reader, a, *, write, deny\n"),
            ("tests.yaml", "- {as: {id: y}, call: a/get, class: read, expect: deny}\n"),
            ("arguments/a/get.json", '{"type": "object"}'),
            ("token", "another secret"),
            ("sluice.yaml", json.dumps(SETTINGS | {"policy": SETTINGS["policy"] | {"on_deny": "explain"}})),
        ):
            bed.write(name, text)
            assert await bed.next() is not None, name
        assert reload.problems == () and reload.config.policy.on_deny == "explain"
        assert bed.applied[2][1].arguments.digest("a", "get")


async def test_what_is_in_force_already_is_not_applied_again(bed: Bed) -> None:
    async with watching(bed) as reload:
        await rejected_and_back(bed, reload)
        assert bed.applied == []


async def rejected_and_back(bed: Bed, reload: Reload) -> None:
    bed.write("policy.csv", "p, *, *, *, *, Allow\n")
    await rejected(reload, "wrong-effect")
    bed.write("policy.csv", ROWS)
    reload.ask()
    await until(lambda: not reload.problems)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("sluice.yaml", "policy: [", "bad-yaml"),
        ("sluice.yaml", None, "unreadable-file"),
        ("policy.csv", "p, *, *, *\n", "column-count"),
        ("policy.csv", None, "sluice.yaml:1:23 unreadable-file there is no such file"),
        ("policy.csv", "# nobody may do anything\n", "tests.yaml:1:1 test-failed"),
        ("tests.yaml", "- call me\n", "bad-test"),
        ("arguments/a/get.json", '{"pattern": "("}', "a/get.json:1:1 schema-"),
    ],
)
async def test_whatever_is_wrong_keeps_what_is_in_force(bed: Bed, name: str, text: str | None, words: str) -> None:
    async with watching(bed) as reload:
        before = reload.config
        if text is None:
            (bed.folder / name).unlink()
        else:
            bed.write(name, text)
        await rejected(reload, words)
        assert bed.applied == [] and reload.config is before


async def test_a_server_that_lacks_a_value_stays_as_it_was_and_the_rest_is_taken_into_use(bed: Bed) -> None:
    servers = SETTINGS["servers"]
    async with watching(bed) as reload:
        before = reload.config
        bed.settings(servers={**servers, "a": {"command": "${env:SLUICE_NOT_SET}"}}, log={"level": "debug"})
        assert (await bed.next()).log.level == "debug"
        assert bed.applied[-1][0].servers == before.servers
        assert bed.applied[-1][0].disabled == {}
        assert reload.retained == ("server a stays as it was: variable SLUICE_NOT_SET is not set",)
        (bed.folder / "token").unlink()
        with anyio.fail_after(20):
            while len(reload.retained) < 2:
                reload.ask()
                await anyio.sleep(0.01)
        assert reload.problems == () and reload.retained[1] == "server b stays as it was: cannot read the file token"
        bed.write("token", "another")
        bed.settings()
        changed = (await bed.next()).servers["b"]
        assert isinstance(changed, HttpServer) and changed.headers["A"].get_secret_value() == "another"
        await until(lambda: not reload.retained)


async def test_a_server_that_lacked_a_value_at_the_start_is_enabled_once_the_value_is_there(bed: Bed) -> None:
    (bed.folder / "token").unlink()
    async with watching(bed) as reload:
        assert reload.config.disabled == {"b": "cannot read the file token"}
        bed.settings(log={"level": "debug"})
        assert (await bed.next()).disabled == {"b": "cannot read the file token"}
        assert reload.retained == ()
        bed.write("token", "there now")
        taken = await bed.next()
        assert taken.disabled == {} and taken.servers["b"].enabled
        assert reload.restart == ()


async def test_a_policy_file_that_was_away_is_noticed_when_it_is_back(bed: Bed) -> None:
    async with watching(bed) as reload:
        (bed.folder / "policy.csv").unlink()
        await rejected(reload, "there is no such file")
        bed.write("policy.csv", ROWS + "p, role:reader, a, *, write, deny\n")
        assert await bed.next() is not None


async def test_a_mistake_in_the_code_is_told_and_keeps_what_is_in_force(bed: Bed) -> None:
    def fail(new: Config, loaded: LoadedPolicy) -> None:
        raise ZeroDivisionError

    started = config.load(bed.folder / "sluice.yaml")
    reload = Reload(started, "another", bed.folder / "sluice.yaml", "http", fail)
    with anyio.fail_after(20), pytest.raises(ZeroDivisionError):
        await reload.run()
    assert reload.problems == ("the last reload did not end",) and reload.config is started


async def test_without_watch_nobody_looks_at_files_until_somebody_asks(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[object] = []

    async def look(marks: object) -> bool:
        looked.append(marks)
        return False

    monkeypatch.setattr(reloading, "POLL", 0.01)
    monkeypatch.setattr(reloading, "_quieted", look)
    bed.settings(policy={"files": ["policy.csv"], "watch": False})
    async with watching(bed) as reload:
        for rows in ("p, role:reader, b, *, read, allow\n", ROWS):
            bed.write("policy.csv", rows)
            reload.ask()
            await bed.next()
    assert looked == []


async def test_without_watch_a_change_since_the_start_waits_until_somebody_asks(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reloading, "POLL", 0.01)
    bed.settings(policy={"files": ["policy.csv"], "watch": False})
    started = config.load(bed.folder / "sluice.yaml")
    revision = policy_loading.load(started).policy.revision
    bed.settings(policy={"files": ["policy.csv"], "watch": False}, log={"level": "debug"})
    reload = Reload(started, revision, bed.folder / "sluice.yaml", "http", bed.apply)
    async with anyio.create_task_group() as group:
        group.start_soon(reload.run)
        with anyio.fail_after(20):
            await reload.looked.wait()
        assert bed.applied == []
        reload.ask()
        assert (await bed.next()).log.level == "debug"
        group.cancel_scope.cancel()


async def test_files_that_keep_changing_are_left_until_they_are_quiet(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = iter(range(1000))
    load = policy_loading.load

    def restless(wanted: Config) -> LoadedPolicy:
        bed.write("policy.csv", ROWS + "#" * next(turns) + "\n")
        return load(wanted)

    monkeypatch.setattr(reloading, "POLL", 0.01)
    async with watching(bed) as reload:
        monkeypatch.setattr(reloading.policy_loading, "load", restless)
        await rejected(reload, "keep changing")
        assert bed.applied == []
        monkeypatch.setattr(reloading.policy_loading, "load", load)
        await bed.next()


async def test_what_only_a_restart_changes_is_told_until_it_is_taken_back(
    bed: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    servers = SETTINGS["servers"]
    async with watching(bed) as reload:
        started = reload.config
        for changes, restart in (
            ({"listen": {"mcp": "127.0.0.1:1"}}, ("listen",)),
            ({"servers": {**servers, "a": {"command": "y"}}}, ()),
            ({"servers": {**servers, "c": {"command": "y"}}}, ()),
            ({"servers": {"a": servers["a"]}}, ()),
            ({"servers": {"b": servers["b"], "a": servers["a"]}}, ()),
            ({"servers": {**servers, "a": {"command": "x", "tools": {"classes": {"*": "read"}}}}}, ()),
            ({"clients": {"local": {"roles": []}}, "policy": {"use": "team"}, "log": {"level": "debug"}}, ()),
            ({"limits": {"page": 5}, "names": {"max": 40}}, ("limits", "names")),
            ({}, ()),
        ):
            bed.settings(**changes)
            reload.ask()
            await bed.next()
            await until(lambda: reload.config is bed.applied[-1][0])
            assert set(reload.restart) == set(restart), changes
            assert all(getattr(reload.config, part) == getattr(started, part) for part in restart), "it came into force"
            warned = [vars(one) for one in caplog.records if "needs_a_restart" in vars(one)]
            assert [(one["levelname"], set(one["needs_a_restart"])) for one in warned] == (
                [("WARNING", set(restart))] if restart else []
            )
            caplog.clear()


async def test_the_one_client_of_stdio_keeps_its_roles_until_a_restart(bed: Bed) -> None:
    async with watching(bed, "stdio") as reload:
        bed.settings(clients={"local": {"roles": []}})
        reload.ask()
        await bed.next()
        await anyio.wait_all_tasks_blocked()
        assert reload.restart == ("clients.local",)


async def test_without_a_file_nothing_is_watched() -> None:
    made = config.make({"policy": {"use": "open"}}, Path())
    with anyio.fail_after(20):
        await Reload(made, "r", None, "http", lambda new, loaded: None).run()


# ---------------------------------------------------------------- several processes, of which one reads


@asynccontextmanager
async def told(bed: Bed) -> AsyncIterator[ToldReload]:
    started = config.load(bed.folder / "sluice.yaml")
    revision = policy_loading.load(started).policy.revision
    reload = ToldReload(
        started, revision, bed.folder / "sluice.yaml", "http", bed.apply, bed.rejections.append, unprepared
    )
    async with anyio.create_task_group() as group:
        group.start_soon(reload.run)
        yield reload
        group.cancel_scope.cancel()


def elsewhere(bed: Bed, **more: Any) -> InForce:
    """What another process has in force, as it comes from there."""
    made = config.load(bed.folder / "sluice.yaml")
    sent = InForce(made, policy_loading.load(made), 12.0, **more)
    received = pickle.loads(pickle.dumps(sent))
    assert isinstance(received, InForce) and received.config == made
    return received


async def test_a_process_that_is_told_takes_nothing_else_into_use(bed: Bed) -> None:
    async with told(bed) as reload:
        bed.settings(log={"level": "debug"})
        newest = elsewhere(bed)
        bed.settings(log={"level": "error"})  # nobody has said so
        reload.tell(newest)
        assert (await bed.next()).log.level == "debug"
        await until(lambda: reload.at == 12.0)
        assert reload.config.log.level == "debug" and len(bed.applied) == 1


async def test_a_process_that_is_told_says_what_is_wrong_as_the_one_that_reads(bed: Bed) -> None:
    async with told(bed) as reload:
        about = elsewhere(bed, problems=("policy.csv: wrong",), found=30, retained=("server a stays as it was",))
        for state in (about, replace(about)):
            reload.tell(state)
            await until(lambda: bool(reload.problems))
            assert reload.retained == about.retained
        reload.tell(elsewhere(bed))
        await until(lambda: not reload.problems)
        assert bed.applied == [] and bed.rejections == [30], "told once"


async def test_whoever_asks_in_a_process_that_is_told_asks_the_one_that_reads(bed: Bed) -> None:
    async with told(bed) as reload:
        reload.ask_reader.set(lambda: reload.tell(elsewhere(bed)))
        bed.settings(log={"level": "debug"})
        with anyio.fail_after(20):
            await reload.renew()
        assert reload.config.log.level == "debug"


async def test_a_process_that_joins_others_has_their_servers_and_the_limits_that_all_began_with(bed: Bed) -> None:
    (bed.folder / "token").unlink()
    bed.settings(limits={"page": 5})
    started = config.load(bed.folder / "sluice.yaml")
    bed.settings(limits={"page": 6}, servers=SETTINGS["servers"] | {"c": {"command": "y"}})
    now = config.load(bed.folder / "sluice.yaml")
    made = joining(started, now)
    assert made.limits.page == 5 and made.servers == now.servers and made.base == now.base
    assert made.disabled == now.disabled == {"b": "cannot read the file token"}


async def test_files_that_could_not_come_into_force_are_known_and_nothing_is_taken(bed: Bed) -> None:
    made = config.load(bed.folder / "sluice.yaml")
    reload = Reload(made, "r", bed.folder / "sluice.yaml", "http", bed.apply)
    assert await reload.unusable() == ()
    bed.write("policy.csv", "p, *, *, *, *, Allow\n")
    assert "wrong-effect" in (await reload.unusable())[0]
    assert bed.applied == [] and reload.problems == ()


@pytest.mark.parametrize("name", ["open", "personal", "team"])
async def test_policies_that_come_with_sluice_can_be_told(bed: Bed, name: str) -> None:
    bed.settings(policy={"use": name})
    own, sent = policy_loading.load(config.load(bed.folder / "sluice.yaml")), elsewhere(bed).loaded
    assert sent.policy.rows == own.policy.rows and sent.policy.profiles == own.policy.profiles
    assert sent.arguments.digests == own.arguments.digests and sent.warnings == own.warnings


async def test_a_policy_from_another_process_decides_as_there(bed: Bed) -> None:
    bed.write("arguments/a/get.json", '{"type": "object", "required": ["x"]}')
    own, sent = policy_loading.load(config.load(bed.folder / "sluice.yaml")), elsewhere(bed).loaded
    client, target = Client("key:x", ("role:reader",)), read_target("call", "a/get")
    assert sent.policy.revision == own.policy.revision and sent.cases == own.cases
    assert [sent.policy.decide(client, target, act) for act in ("read", "write")] == [
        own.policy.decide(client, target, act) for act in ("read", "write")
    ]
    assert sent.arguments.check("a", "get", {"x": 1}) is None
    assert sent.arguments.check("a", "get", {}) == own.arguments.check("a", "get", {}) is not None


@pytest.mark.parametrize("careless", [{"policy": {"use": "open"}}, {"clients": {"anonymous": {"roles": []}}}])
async def test_what_is_for_loopback_alone_waits_until_sluice_listens_there_alone(bed: Bed, careless: Any) -> None:
    """`listen` needs a restart: until then a reload would open what everybody reaches."""
    key = {"hash": f"sha256:{'0' * 64}"}
    bed.settings(listen={"mcp": "0.0.0.0:0"}, clients={"keys": {"ann": key}})
    async with watching(bed) as reload:
        before = reload.config
        bed.settings(listen={"mcp": "127.0.0.1:0"}, **careless)
        await rejected(reload, "`listen` is as it was until a restart")
        assert bed.applied == [] and reload.config is before and await reload.unusable() == reload.problems
    async with watching(bed) as reload:  # which is one
        bed.settings(listen={"mcp": "127.0.0.1:0"}, log={"level": "error"}, **careless)
        assert (await bed.next()).log.level == "error"
