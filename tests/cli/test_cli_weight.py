"""What a command carries with it from the start: what most configs or commands never need stays out."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluicegate.cli.output import Code

# Each takes 1 to 4 MiB. What is deferred stands in `sys.modules`, but has none of its own modules.
HEAVY = (
    "rich", "pygments", "greenlet", "jwt", "opentelemetry", "requests", "httpx._client", "idna", "sluicegate.demo",
    "jsonschema_rs.jsonschema_rs", "regex._regex_core", "wcmatch._wcparse", "http.server", "importlib.metadata",
    "casbin.async_enforcer", "cryptography.hazmat.bindings._rust",
)  # fmt: skip
OVER_HTTP = (
    "sluicegate.admin", "sluicegate.console", "starlette", "uvicorn", "multiprocessing", "sluicegate.app.serve",
    "sluicegate.app.admin_app", "sluicegate.app.desktop_admin", "sluicegate.app.workers",
    "sluicegate.listen.listener", "sluicegate.listen.http1", "sluicegate.listen.server",
)  # fmt: skip
# What serves takes half a second to import: nobody who asks a Sluice that runs waits for it.
SERVING = (
    "sluicegate.app.core", "sluicegate.policy.engine", "sluicegate.listen.server", "uvicorn",
    "casbin.core_enforcer",
)  # fmt: skip
EMPTY = "version: 1\npolicy: {use: open}\nstate: {dir: state}\nservers: {}\n"
INITIALIZE = (
    '{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18",'
    ' "capabilities": {}, "clientInfo": {"name": "weight", "version": "1"}}}\n'
)
ASKING = ("servers", "logs", "call", "console", "resources")


def imported_by(*words: str) -> set[str]:
    code = (
        f"import sluicegate.__main__, sluicegate.cli.commands, sys; sluicegate.cli.commands.application({words!r});"
        "print(*(name for name, module in sys.modules.items() if module))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(("command", "module"), [("serve", "sluicegate.app.serve"), ("stdio", "sluicegate.app.stdio")])
def test_what_serves_has_not_imported_what_most_configs_never_need(command: str, module: str) -> None:
    modules = imported_by(command)
    assert module in modules
    assert not modules & set(HEAVY)


def test_stdio_has_not_imported_what_serves_over_http() -> None:
    """A client waits for these imports, and each desktop client's Sluice would hold them."""
    assert not imported_by("stdio") & set(OVER_HTTP)


@pytest.mark.parametrize("option", ["-c", "--config"])
def test_what_a_desktop_client_starts_imports_nothing_for_people_and_for_http(tmp_path: Path, option: str) -> None:
    (file := tmp_path / "sluice.yaml").write_text(EMPTY)
    command = [sys.executable, "-X", "importtime", "-m", "sluicegate", "stdio", option, str(file)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "sluicegate.app.stdio" in imported
    assert not imported & {"typer", "difflib", "standardwebhooks", "email.utils", "sluicegate.listen.http_request"}


def test_and_nothing_of_it_until_its_client_has_gone(tmp_path: Path) -> None:
    """`importtime` does not see what is imported by its name."""
    (file := tmp_path / "sluice.yaml").write_text(EMPTY)
    code = (
        "import atexit, sys; from sluicegate.__main__ import main;"
        "loaded = lambda: [name for name, one in sys.modules.items() if type(one).__name__ == 'module'];"
        "atexit.register(lambda: print(*loaded(), file=sys.stderr)); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "stdio", "-c", str(file)], input=INITIALIZE, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert '"serverInfo"' in done.stdout
    loaded = set(done.stderr.splitlines()[-1].split())
    assert "sluicegate.app.stdio" in loaded
    unused = {"difflib", "httptools.parser", "shutil", "structlog.stdlib", "pickle", "zlib"}
    assert not loaded & {*HEAVY, *OVER_HTTP, *unused}


def test_who_interrupts_a_start_sees_no_trace_of_an_import(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "sluicegate", "stdio", "-c", str(tmp_path / "none.yaml")]
    for moment in ("sluicegate.deferred", "asyncio", "pydantic"):
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            seen = next(line for line in process.stderr if line.rpartition("|")[2].strip() == moment)
            process.send_signal(signal.SIGINT)
            assert "Traceback" not in process.stderr.read(), seen
        assert process.returncode in (-signal.SIGINT, 130)


def test_and_says_the_same_of_a_file_that_is_not_there(tmp_path: Path) -> None:
    file = str(tmp_path / "none.yaml")
    command = [sys.executable, "-m", "sluicegate", "stdio"]
    said = [
        subprocess.run([*command, *words], stdin=subprocess.DEVNULL, capture_output=True)
        for words in (["-c", file], ["--config", file], [f"--config={file}"])
    ]
    assert {one.returncode for one in said} == {Code.CONFIG}
    assert said[0].stderr
    assert {one.stderr for one in said} == {said[0].stderr}


def test_what_is_imported_to_serve_is_walked_by_no_collector_on_its_way() -> None:
    code = "import gc, sluicegate.__main__; print(gc.isenabled(), gc.get_stats()[2]['collections'])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "0"]


@pytest.mark.parametrize("command", ASKING)
def test_a_command_that_asks_has_not_imported_what_serves(command: str) -> None:
    modules = imported_by(command)
    assert "sluicegate.cli.admin" in modules
    assert not modules & set(SERVING)
