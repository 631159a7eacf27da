"""Several workers are one Sluice: whoever calls is answered right, whichever of them a connection reaches first."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import COMMAND, ROOT, Sluice, clean_environment
from policy_bed import client_keys, key_of
from waiting import until_so as until
from workers_kit import (
    Bare,
    Talker,
    connections,
    modern_body,
    modern_headers,
    names,
    open_files,
    owner,
    rendered,
    sluice,
    workers,
)

Json = dict[str, Any]
PATIENT = str(ROOT / "tests" / "metrics" / "patient_server.py")
SERVER = str(Path(__file__).with_name("echo_server.py"))


def config(folder: Path, keys: list[str], **more: Any) -> Json:
    server = {"command": sys.executable, "args": [SERVER, str(folder)], "concurrency": 64}
    return {
        "servers": {"echo": server}, "clients": {"keys": client_keys(**{name: [] for name in keys})},
        "audit": {"durability": "write"}, "log": {"format": "json"}, **more,
    }  # fmt: skip


def said(result: Json) -> str:
    assert not result.get("isError"), result
    return str(result["content"][0]["text"])


def call(text: str) -> Json:
    return {"name": "echo__say", "arguments": {"text": text}}


@pytest.fixture(scope="module", params=[2, 3])
def many(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Sluice, int]]:
    folder = tmp_path_factory.mktemp(f"of-{request.param}")
    keys = names(request.param, 3)
    with sluice(config(folder, keys), folder, request.param) as process:
        yield process, request.param


def test_keys_are_served_over_one_connection_each_and_over_new_ones(many: tuple[Sluice, int]) -> None:
    process, count = many
    for who in names(count, 3):
        talker = Talker(process.url, who)
        with httpx.Client() as http:
            for number in range(5):
                assert said(talker.modern(http, "tools/call", **call(f"{who}-{number}"))) == f"{who}-{number}"
        for number in range(5):
            assert said(talker.modern(None, "tools/call", **call(f"{who}+{number}"))) == f"{who}+{number}"


def test_a_legacy_session_is_found_on_whichever_connection_it_comes_by(many: tuple[Sluice, int]) -> None:
    process, count = many
    for who in names(count, 2):
        session = Talker(process.url, who).session(None)
        for number in range(6):
            answer = session.ask(None, "tools/call", **call(f"legacy-{number}"))
            assert said(answer.json()["result"]) == f"legacy-{number}"
        other = next(name for name in names(count, 1) if owner(name, count) != owner(who, count))
        foreign = {**session.headers, "Authorization": f"Bearer {key_of(other)}"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert httpx.post(process.url, json=body, headers=foreign, timeout=30).status_code == 404


def test_an_answer_that_is_asked_for_comes_back_to_the_call_that_waits(many: tuple[Sluice, int]) -> None:
    process, count = many
    for who in names(count, 2):
        talker = Talker(process.url, who)
        asked = talker.modern(None, "tools/call", name="echo__whom", arguments={})
        assert asked["resultType"] == "input_required", asked
        (key,) = asked["inputRequests"]
        answers = {key: {"action": "accept", "content": {"name": who}}}
        again = {"requestState": asked["requestState"], "inputResponses": answers}
        result = talker.modern(None, "tools/call", name="echo__whom", arguments={}, **again)
        assert json.loads(said(result))["content"] == {"name": who}


def test_two_credentials_take_turns_on_one_connection(many: tuple[Sluice, int]) -> None:
    process, count = many
    bare = Bare(process.url)
    for number in range(20):
        who = names(count, 1)[number % count]
        bare.send(rendered(process.url, who, "tools/call", **call(f"{number} by {who}")))
        status, body = bare.answer()
        assert status == 200 and said(json.loads(body)["result"]) == f"{number} by {who}"
    bare.close()


def test_requests_that_do_not_wait_for_answers_are_answered_in_turn(many: tuple[Sluice, int]) -> None:
    process, count = many
    whose = [names(count, 1)[number % count] for number in range(6)]
    requests = [rendered(process.url, who, "tools/call", **call(f"{n} {who}")) for n, who in enumerate(whose)]
    together, bare = b"".join(requests), Bare(process.url)
    bare.send(together[: len(together) - 100])
    for number, who in enumerate(whose[:-1]):
        status, body = bare.answer()
        assert status == 200 and said(json.loads(body)["result"]) == f"{number} {who}"
    bare.send(together[len(together) - 100 :])
    assert bare.answer()[0] == 200
    bare.close()


def test_a_body_that_comes_later_goes_to_whom_the_head_belongs(many: tuple[Sluice, int]) -> None:
    process, count = many
    for who in names(count, 1):
        text = "x" * 300_000
        data, bare = rendered(process.url, who, "tools/call", **call(text)), Bare(process.url)
        head = data.index(b"\r\n\r\n") + 4
        for part in (data[:head], data[head : head + 10], data[head + 10 : head + 200_000], data[head + 200_000 :]):
            bare.send(part)
            time.sleep(0.05)  # so that each part is read by itself
        status, body = bare.answer()
        assert status == 200 and said(json.loads(body)["result"]) == text
        bare.close()


def test_who_shows_nothing_or_something_wrong_is_refused(many: tuple[Sluice, int]) -> None:
    process, _ = many
    body = modern_body("tools/list", {})
    for headers in ({}, {"Authorization": "Bearer nobody"}):
        headers = {**modern_headers("", "tools/list", {}), **headers}
        answer = httpx.post(process.url, json=body, headers=headers, timeout=30)
        assert answer.status_code == 401 and answer.headers["www-authenticate"].startswith("Bearer")


def test_metrics_are_those_of_all(many: tuple[Sluice, int]) -> None:
    process, count = many

    def calls(who: str) -> float:
        series = f'sluice_client_calls_total{{client="key:{who}",outcome="ok"}} '
        return sum(float(line.removeprefix(series)) for line in lines(process) if line.startswith(series))

    before = {who: calls(who) for who in names(count, 1)}
    for who in names(count, 1):
        for _ in range(3):
            Talker(process.url, who).modern(None, "tools/list")
    assert {who: calls(who) - before[who] for who in before} == dict.fromkeys(before, 3.0)
    assert 'sluice_server_up{server="echo"} 1.0' in lines(process)
    assert 'sluice_server_concurrency_limit{server="echo"} 64.0' in lines(process), "shared out, and exactly"
    assert sum(line.startswith("sluice_policy_info") for line in lines(process)) == 1


def lines(process: Sluice) -> list[str]:
    status, text = process.get("/metrics")
    assert status == 200
    return text.splitlines()


def test_the_audit_log_of_all_is_whole(many: tuple[Sluice, int], tmp_path: Path) -> None:
    process, count = many
    for who in names(count, 1):
        Talker(process.url, who).modern(None, "tools/call", **call("audited"))

    def verified(*arguments: str) -> Json:
        command = [*COMMAND, "audit", "verify", "-c", str(process.config), "--json", *arguments]
        done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return dict(json.loads(done.stdout))

    assert len(verified()["writers"]) == count
    until(lambda: len(heads(process)) == count)
    kept = tmp_path / "kept"
    kept.write_text("\n".join(heads(process)) + "\n")
    assert all(writer["signed"] for writer in verified("--checkpoint", str(kept))["writers"])


def heads(process: Sluice) -> list[str]:
    token = (process.config.parent / "state" / "operator.token").read_text()
    head = {"Authorization": f"Bearer {token}"}
    return httpx.get(f"{process.admin}/api/v1/audit/head", headers=head, timeout=30).text.splitlines()


def test_a_connection_stays_where_its_client_belongs(many: tuple[Sluice, int]) -> None:
    process, count = many
    port = int(process.url.split("/")[2].split(":")[1])
    for who in names(count, 1):
        with httpx.Client() as http:
            Talker(process.url, who).modern(http, "tools/list")
            until(lambda: sum(connections(pid, port) for pid in workers(process)) == 1)  # handed over, and let go
            there = [connections(pid, port) for pid in workers(process)]
            Talker(process.url, who).modern(http, "tools/list")
            assert sum(there) == 1 and there == [connections(pid, port) for pid in workers(process)]


# ---------------------------------------------------------------- limits, ends and beginnings


def test_a_rate_is_exact_whichever_connection_is_used(tmp_path: Path) -> None:
    keys = names(2, 2)
    with sluice(config(tmp_path, keys, limits={"per_client": "20/h"}), tmp_path, 2) as process:
        for who in keys:
            talker = Talker(process.url, who)
            results = [talker.modern(None, "tools/call", **call("x")) for _ in range(25)]
            assert [bool(result.get("isError")) for result in results] == [False] * 20 + [True] * 5
        counted = 'sluice_ratelimit_decisions_total{result="limited",scope="client"} 20.0'
        assert counted in lines(process)


def test_a_worker_that_is_killed_comes_back_and_the_others_go_on(tmp_path: Path) -> None:
    keys = names(2, 2)
    with sluice(config(tmp_path, keys), tmp_path, 2) as process:
        session = Talker(process.url, keys[0]).session(None)
        before = {who: said(Talker(process.url, who).modern(None, "tools/call", **call("x"))) for who in keys}
        assert set(before.values()) == {"x"}
        calls = "sluice_client_calls_total"
        counted = sum(float(line.rpartition(" ")[2]) for line in lines(process) if line.startswith(calls))
        victims = workers(process)
        victim = next(pid for pid in victims if b"0.taking" in sockets(pid))
        good = process.config.read_text()
        process.config.write_text("no config")  # so that no worker is started
        os.kill(victim, signal.SIGKILL)
        for _ in range(10):  # of the other worker, and nothing of it waits for one that is not there
            assert said(Talker(process.url, keys[1]).modern(None, "tools/call", **call("y"))) == "y"
        until(lambda: "worker 1 is not started" in process.get("/readyz")[1])
        assert set(workers(process)) == set(victims) - {victim}
        process.config.write_text(good)
        # Whoever was its own waits until it is back, and then begins anew.
        assert said(Talker(process.url, keys[0]).modern(None, "tools/call", **call("z"))) == "z"
        assert session.ask(None, "tools/list").status_code == 404
        until(lambda: process.get("/readyz")[0] == 200)
        after = sum(float(line.rpartition(" ")[2]) for line in lines(process) if line.startswith(calls))
        assert after >= counted + 11, "what was counted before stays counted"
        assert process.interrupt(30) == 0
        verify = [*COMMAND, "audit", "verify", "-c", str(process.config)]
        done = subprocess.run(verify, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list((tmp_path / "state").glob("workers-*")), "nothing is left behind"


def test_a_call_that_was_passed_on_to_a_worker_that_is_killed_may_have_been_executed(tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [PATIENT, str(tmp_path)]}
    first, second = names(2, 1)
    with sluice(config(tmp_path, [first, second], servers={"slow": server}), tmp_path, 2) as process:
        bare = Bare(process.url)
        bare.send(rendered(process.url, first, "tools/list"))  # the connection belongs to the first worker
        assert bare.answer()[0] == 200
        bare.send(rendered(process.url, second, "tools/call", name="slow__wait", arguments={"n": 1}))
        until(lambda: (tmp_path / "waiting-1").exists())
        os.kill(next(pid for pid in workers(process) if b"1.taking" in sockets(pid)), signal.SIGKILL)
        status, body = bare.answer()
        assert status == 200 and json.loads(body)["error"]["data"]["reason"] == "outcome_unknown"
        bare.send(rendered(process.url, first, "tools/list"))
        assert bare.answer()[0] == 200
        bare.close()
        assert 'sluice_forwarded_total{result="broken"} 1.0' in lines(process)


def sockets(pid: int) -> bytes:
    """The names of Unix sockets that a process listens on."""
    inodes = set(open_files(pid))
    rows = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return " ".join(row[7] for row in rows if len(row) > 7 and f"socket:[{row[6]}]" in inodes).encode()


@pytest.mark.parametrize("to_all", [False, True], ids=["to the first process", "to all, as service managers do"])
def test_at_sigterm_no_call_is_lost(to_all: bool, tmp_path: Path) -> None:
    keys, answered, wrong = names(2, 3), set[str](), list[Any]()
    with sluice(config(tmp_path, keys, drain="20s"), tmp_path, 2) as process:

        def load(who: str) -> None:
            talker = Talker(process.url, who)
            with httpx.Client() as http:
                for number in range(100_000):
                    text = f"{who}-{number}"
                    try:  # every third on a connection of its own, which has to be handed over first
                        result = talker.modern(http if number % 3 else None, "tools/call", **call(text))
                    except httpx.TransportError:
                        return
                    if result.get("isError"):
                        wrong.append(result)
                    answered.add(text)

        threads = [threading.Thread(target=load, args=(who,)) for who in keys]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 300)
        for pid in (*(workers(process) if to_all else ()), process.process.pid):
            os.kill(pid, signal.SIGTERM)
        for thread in threads:
            thread.join(30)
        assert process.process.wait(30) == 0 and not wrong
        done = set((tmp_path / "said").read_text().split())
        assert done == answered, "what the server did, its client heard of"
        assert "Traceback" not in process.log()


@pytest.mark.parametrize(("first", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_second_signal_cuts_what_is_open(first: signal.Signals, code: int, tmp_path: Path) -> None:
    server = {"command": sys.executable, "args": [PATIENT, str(tmp_path)]}
    keys = names(2, 1)
    with sluice(config(tmp_path, keys, servers={"slow": server}, drain="60s"), tmp_path, 2) as process:

        def wait(who: str) -> None:
            with pytest.raises(httpx.TransportError):
                Talker(process.url, who).modern(None, "tools/call", name="slow__wait", arguments={"n": who})

        threads = [threading.Thread(target=wait, args=(who,)) for who in keys]
        for thread in threads:
            thread.start()
        until(lambda: all((tmp_path / f"waiting-{who}").exists() for who in keys))
        process.process.send_signal(first)
        until(lambda: "Sluice is stopping" in process.get("/readyz")[1])
        process.process.send_signal(first)
        assert process.process.wait(30) == code
        for thread in threads:
            thread.join(30)
        assert "Traceback" not in process.log()


def test_workers_end_when_whoever_started_them_is_killed(tmp_path: Path) -> None:
    with sluice(config(tmp_path, names(2, 1)), tmp_path, 2) as process:
        there = workers(process)
        process.process.kill()
        process.process.wait()
        until(lambda: not [pid for pid in there if Path(f"/proc/{pid}/fd").exists() and is_alive(pid)])


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    ("change", "words", "code"),
    [
        ({"servers": {"echo": {"command": "x", "concurrency": 1}}}, "cannot be shared by 2 workers", 3),
        ({"listen": {"mcp": "192.0.2.1:7410"}}, "cannot listen", 3),
    ],
)
def test_what_cannot_be_started_is_said_once(change: Json, words: str, code: int, tmp_path: Path) -> None:
    settings = {"version": 1, "policy": {"use": "personal"}, "servers": {}, "state": {"dir": str(tmp_path / "state")}}
    file = tmp_path / "sluice.yaml"
    file.write_text(json.dumps(settings | change))
    command = [*COMMAND, "serve", "-c", str(file), "--workers", "2"]
    done = subprocess.run(command, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code and done.stderr.count(words) == 1, done.stderr


def test_workers_share_the_processes_that_a_server_may_have(tmp_path: Path) -> None:
    child = ROOT / "tests" / "downstream" / "scripted_child.py"
    server = {"command": sys.executable, "args": ["-I", "-S", str(child)], "era": "legacy", "processes": 3}
    keys = names(2, 3)
    with sluice(config(tmp_path, keys) | {"servers": {"pipe": server}}, tmp_path, 2) as process, ExitStack() as open_:
        answers: dict[str, Json] = {}
        for key in keys:
            session = Talker(process.url, key).session(None)
            # A session whose stream is open is in use, so that its process is not given to another one
            stream = httpx.stream("GET", process.url, headers=session.headers, timeout=30)
            assert open_.enter_context(stream).status_code == 200
            answer = session.ask(None, "tools/call", name="pipe__echo", arguments={})
            answers[key] = json.loads(answer.text.rpartition("data:")[2] or answer.text)["result"]
        refused = {key: answer for key, answer in answers.items() if answer.get("isError")}
        # The first worker has two of the three, the other one has one
        assert sorted(owner(key, 2) for key in refused) == [0, 1, 1]
        for key, answer in refused.items():
            assert answer["_meta"]["dev.sluice/reason"] == "server_unavailable", key
            assert "that it may have" in answer["content"][0]["text"], key
        token = (tmp_path / "state" / "operator.token").read_text().strip()
        headers = {"Authorization": f"Bearer {token}"}
        (row,) = httpx.get(f"{process.admin}/api/v1/servers", headers=headers, timeout=60).json()["servers"]
        assert len(set(row["pids"])) == row["processes"] == 3 and row["memory"] > 3 << 20
