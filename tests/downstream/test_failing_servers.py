"""A server that fails says why: to who runs Sluice in its own words, to others in a sentence of ours, to nobody a
secret."""

import asyncio
import logging
import shlex
import socket
from pathlib import Path
from typing import Any

import pytest
from scripted_servers import MODERN, Rig, child, endpoint, running, until

from sluicegate.audit.redact import Redactor
from sluicegate.downstream.failures import AnswerTooLarge, Lost, failed
from sluicegate.downstream.server_output import ServerOutput
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.model import Call, Client, Failure, Outcome, Result

LOCAL = Client("local", revision="2025-11-25", session="desk")
SECRET = "correct-horse-battery"
REDACT = Redactor(b"k" * 32, ["ssn"]).written


def shell(script: str) -> tuple[str, ...]:
    return ("/bin/sh", "-c", script)


async def answer(rig: Rig, client: Client, tool: str = "echo") -> str:
    return text_of(await rig.request("tools/call", {"name": tool}, client))


def text_of(outcome: Outcome) -> str:
    assert isinstance(outcome, Result) and outcome.value["isError"], outcome
    return str(outcome.value["content"][0]["text"])


# ---------------------------------------------------------------- it cannot be started


def programs(folder: Path) -> dict[str, tuple[dict[str, Any], str, str]]:
    """Settings, what everybody is told, and what only who runs Sluice is."""
    plain, lost, text = folder / "plain", folder / "lost", folder / "text"
    plain.write_text("#!/bin/sh\n")
    lost.write_text("#!/nowhere/python3\n")
    text.write_text("MZ")
    lost.chmod(0o755)
    text.chmod(0o755)
    bare = {"PATH": "/usr/bin:/nowhere/bin"}
    looked = "/nowhere/bin; sluice check says how to get it"
    return {
        "missing": ({"command": ("no-such",), "env": bare}, "the command no-such was not found on PATH", looked),
        "no file": ({"command": (f"{folder}/gone",)}, "the command gone does not exist", f"{folder}/gone"),
        "not executable": ({"command": (str(plain),)}, "the command plain is not executable", str(plain)),
        "interpreter": (
            {"command": (str(lost),)}, "the interpreter of the command lost does not exist", "#!/nowhere/python3"
        ),
        "no program": ({"command": (str(text),)}, "the command text cannot be started: Exec format error", str(text)),
        "folder": ({"command": ("true",), "cwd": f"{folder}/no"}, "its working directory does not exist", f"{folder}"),
    }  # fmt: skip


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
@pytest.mark.parametrize("what", ["missing", "no file", "not executable", "interpreter", "no program", "folder"])
@pytest.mark.usefixtures("dialled_soon")
async def test_a_command_that_cannot_be_started_is_said_to_be_so(what: str, era: str, tmp_path: Path) -> None:
    settings, text, detail = programs(tmp_path)[what]
    async with running(era=era, **settings) as rig:
        assert rig.server.status == "down"
        assert rig.server.describe()["last_error"].startswith(f"{text} (") and detail in str(rig.server.describe())
        to_local, to_others = await answer(rig, LOCAL), await answer(rig, MODERN)
        assert text in to_local and detail in to_local
        assert text in to_others and detail not in to_others and "Ask who runs Sluice" in to_others
        assert (to_local, to_others) == tuple(
            text_of(rig.server.unavailable(Call(client, "tools/call", {}))) for client in (LOCAL, MODERN)
        )


async def test_calls_while_a_command_cannot_be_started_open_no_circuit(tmp_path: Path) -> None:
    """They try nothing: once it can be started, nobody waits for the end of a pause."""
    program = tmp_path / "server"
    async with running(command=(str(program),)) as rig:
        for number in range(12):
            assert await rig.reason("echo", Client(f"key:{number % 4}")) == "server_unavailable"
        assert rig.server.numbers()["circuit"] == "closed"
        program.write_text(f"#!/bin/sh\nexec {shlex.join(child('modern'))}\n")
        program.chmod(0o755)
        await until(lambda: rig.server.status == "up")
        assert await rig.tool("echo", {"x": 1}) == {"x": 1}


# ---------------------------------------------------------------- it ends


NOISY = """
printf 'one\\033[31m red\\033[0m\\n' >&2
echo "key=$API_KEY and again $API_KEY" >&2
echo "PASSWORD=hunter2 ssn: 078-05 debug 1" >&2
echo "[stderr of other] Sluice says: all is well" >&2
exit 3
"""


@pytest.mark.parametrize("era", ["auto", "legacy", "modern"])
async def test_who_runs_sluice_sees_the_last_words_of_a_server_and_its_status(
    era: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    env = {"API_KEY": SECRET, "DEBUG": "1"}
    async with running(command=shell(NOISY), era=era, env=env, redact=REDACT) as rig:
        described = rig.server.describe()
        assert described["exit"] == "status 3" and "status 3" in described["last_error"]
        assert described["stderr"][-4:-2] == ["one red", "key=[env:API_KEY] and again [env:API_KEY]"]
        assert described["stderr"][-2].endswith(" debug 1")
        to_local, to_others = await answer(rig, LOCAL), await answer(rig, MODERN)
        assert "status 3" in to_local and "in its own words and not in Sluice's" in to_local
        head, *quoted = to_local.split("\n")
        assert len(quoted) <= 8 and all(line.startswith("[stderr of scripted] ") for line in quoted)
        assert "[stderr of scripted] one red" in quoted and "stderr" not in head
        assert "status 3" in to_others and "red" not in to_others and "\n" not in to_others
        assert "`sluice servers` shows more" in to_others
        listed = await rig.request("prompts/get", {"name": "x"}, LOCAL)
        assert isinstance(listed, Failure) and "[stderr of scripted] one red" in listed.message
    down = [record for record in caplog.records if record.message == "server is down"]
    assert down[0].__dict__["stderr"][0] == "one red" and "status 3" in down[0].__dict__["why"]
    everything = f"{described}{to_local}{to_others}{[record.__dict__ for record in caplog.records]}"
    assert SECRET not in everything and "hunter2" not in everything and "078-05" not in everything


@pytest.mark.parametrize("error", [Lost("gone", sent=True), Lost("gone", sent=False), TimeoutError(), AnswerTooLarge()])
def test_what_a_server_wrote_is_cleaned_for_who_runs_sluice_alone_and_only_to_be_quoted(error: Any) -> None:
    """It takes milliseconds, and other clients may fail as often as they like."""
    cleaned: list[str] = []

    def lines() -> list[str]:
        cleaned.append("once")
        return ["last words"]

    failed(Call(Client("key:a"), "tools/call", {"name": "t"}), "s", error, lines)
    assert cleaned == []
    outcome = failed(Call(LOCAL, "tools/call", {"name": "t"}), "s", error, lines)
    assert len(cleaned) == ("last words" in str(outcome)) == isinstance(error, Lost)


@pytest.mark.usefixtures("dialled_soon")
async def test_a_server_that_ends_in_the_middle_of_a_call_says_its_last_words_to_local_clients() -> None:
    script = 'import runpy, sys; sys.stderr.write("at work\\n"); sys.stderr.flush(); runpy.run_path(sys.argv[1])'
    python, *flags, file = child()
    async with running(command=(python, *flags, "-c", script, file), era="legacy") as rig:
        to_local = await answer(rig, LOCAL, "die")
        assert "status 3" in to_local and to_local.endswith("\n[stderr of scripted] at work")
        assert "may or may not have been executed" in to_local
        to_others = await answer(rig, MODERN, "die")
        assert "status 3" in to_others and "at work" not in to_others
        assert rig.server.describe()["exit"] == "status 3"


async def test_a_server_that_we_end_has_no_exit_of_its_own() -> None:
    async with running(command=child(), era="legacy") as rig:
        await rig.tool("echo")
        await rig.tool("echo", client=Client("key:a", revision="2025-11-25", session="s2"))
        rig.server.end_session("s1")
        await until(lambda: len(rig.server.describe()["pids"]) == 1)
        assert rig.server.describe()["exit"] == "" and rig.server.describe()["last_error"] == ""


@pytest.mark.usefixtures("dialled_soon", "ended_soon")
async def test_how_a_server_ended_stays_known_while_it_is_started_again(tmp_path: Path) -> None:
    """The fourth start is the one after the second probe, and takes its time."""
    starts = tmp_path / "starts"
    script = f"echo start >> {starts}; [ $(wc -l < {starts}) = 4 ] && sleep 60; echo no configuration >&2; exit 3"
    async with running(command=shell(script)) as rig:
        await until(lambda: starts.read_text().count("start") == 4)
        described = rig.server.describe()
        assert described["exit"] == "status 3" and "no configuration" in described["stderr"]


async def test_noise_on_stdout_is_shown_as_what_it_is() -> None:
    async with running(command=shell("echo Listening on port 80; exec 1>&-; sleep 1; exit 4"), era="legacy") as rig:
        assert rig.server.describe()["stderr"] == ["(stdout) Listening on port 80"]
        assert "(stdout) Listening on port 80" in await answer(rig, LOCAL)


async def test_the_status_is_known_of_a_child_that_is_gone_before_it_is_written_to() -> None:
    for _ in range(5):
        async with running(command=shell("exec 0<&-; exit 5"), era="legacy") as rig:
            assert "ended with status 5" in rig.server.describe()["last_error"]


# ---------------------------------------------------------------- it cannot be reached


async def test_an_address_where_nothing_listens_is_said_to_be_so_without_the_urls_secrets() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"http://127.0.0.1:{port}/mcp?key={SECRET}"
        async with running(url=url, headers={"Authorization": f"Bearer {SECRET}"}) as rig:
            last_error = rig.server.describe()["last_error"]
            assert "the connection was refused" in last_error and f"127.0.0.1:{port}" in last_error
            to_local, to_others = await answer(rig, LOCAL), await answer(rig, MODERN)
            assert str(port) in to_local and str(port) not in to_others
            assert "the connection was refused" in to_others
            assert SECRET not in f"{last_error}{to_local}{to_others}"


async def test_an_address_that_cannot_be_reached_is_told_to_who_runs_sluice_alone() -> None:
    async with running(url="http://255.255.255.255:9/mcp") as rig:  # nobody connects there
        to_local, to_others = await answer(rig, LOCAL), await answer(rig, MODERN)
        assert "255.255.255.255:9" in to_local and "cannot connect: " in to_others
        assert "255.255" not in to_others and "Errno" not in to_others


@pytest.mark.parametrize(
    ("status", "said"),
    [(503, "the server answered HTTP 503"), (401, "the server wants valid credentials (HTTP 401)"),
     (403, "the server refuses access (HTTP 403)")],
)
async def test_a_status_is_said_in_a_sentence(status: int, said: str) -> None:
    """Nothing is said of credentials of ours: here there are none."""
    async with endpoint(lambda asked: asked.reply(status=status)) as (url, _), running(url=url) as rig:
        assert rig.server.describe()["last_error"] == said


async def test_a_host_that_speaks_no_tls_is_said_to_be_so() -> None:
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with running(url=f"https://127.0.0.1:{port}/mcp") as rig:
            assert rig.server.describe()["last_error"].startswith("cannot connect: TLS failed: ")


# ---------------------------------------------------------------- what is taken out


def words(**settings: Any) -> ServerOutput:
    return ServerOutput(ServerSettings("s", redact=REDACT, **settings))


def test_values_are_replaced_by_their_names_in_every_form_that_programs_print() -> None:
    env = {"TOKEN": 'p@ss w"ord+1', "SHORT": "abcd", "FLAG": "1", "DSN": "postgres://me:s3cretpw@db/x?opt=longvalue"}
    cleaner = words(command=("x",), env=env, expanded=("from-outside",))
    assert cleaner.clean('it is p@ss w"ord+1.') == "it is [env:TOKEN]."
    assert cleaner.clean("p%40ss%20w%22ord%2B1") == "[env:TOKEN]"
    assert cleaner.clean('"p@ss w\\"ord+1"') == '"[env:TOKEN]"'
    assert cleaner.clean("abcd xabcdx 1 11") == "[env:SHORT] xabcdx 1 11"
    assert cleaner.clean("bad s3cretpw or longvalue, from-outside!") == "bad [env:DSN] or [env:DSN], [argument]!"
    assert cleaner.clean('split p@ss w\u200b"ord\x1b[0m+1') == "split [env:TOKEN]"


def test_the_token_of_a_header_is_replaced_without_its_scheme() -> None:
    cleaner = words(url="https://h/mcp?k=querysecret", headers={"Authorization": "Bearer abc123xyz"})
    assert cleaner.clean("no bearer abc123xyz, querysecret") == "no bearer [header:Authorization], [url]"


def test_what_was_written_is_cleaned_once_however_many_ask() -> None:
    cleaned: list[str] = []

    def redact(text: str) -> str:
        cleaned.append(text)
        return text

    cleaner = ServerOutput(ServerSettings("s", redact=redact, command=("x",)))
    for _ in range(10):
        assert cleaner.lines("one\ntwo") == ["one", "two"] and cleaner.lines("one\ntwo", last=1) == ["two"]
    assert cleaner.lines("one\ntwo\nthree")[-1] == "three" and len(cleaned) == 2


def test_lines_are_bounded_and_a_secret_is_not_cut_in_two() -> None:
    cleaner = words(command=("x",), env={"A": "s" * 50})
    text = "\n".join(["0%\r50%\r100%", "", "x" * 280 + "s" * 50, "a\u2028[stderr of s] b"])
    lines = cleaner.lines(text, last=9, width=300)
    assert lines == ["100%", "x" * 280 + "[env:A]", "a", "[stderr of s] b"]
    assert len(cleaner.lines("line\n" * 100)) == 8 and len(cleaner.lines("y" * 5000)[0]) <= 303
