"""SIGKILL at random moments under load: nothing reached a server unrecorded, and the log can be believed.

A real Sluice over HTTP, eight connections, a server that writes down what reaches it. SLUICE_CRASH_ROUNDS says how
often (200 in a soak).
"""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketStream
from anyio.streams.buffered import BufferedByteReceiveStream
from audit_kit import fits_schema
from peers.fleet import free_port, running

from sluicegate.audit.checkpoint import read_publics
from sluicegate.audit.recover import list_files
from sluicegate.audit.settings import is_segment
from sluicegate.audit.verify import read_kept, verify

ROUNDS = int(os.environ.get("SLUICE_CRASH_ROUNDS", "50"))
CONNECTIONS = 8
HERE = Path(__file__).parent
ENVIRONMENT = {"PATH": os.environ["PATH"], "PYTHONPATH": str(HERE.parent.parent / "proxy")}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientInfo": {"name": "crash", "version": "1"},
    "io.modelcontextprotocol/clientCapabilities": {},
}
HEAD = (
    "POST /mcp HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json, text/event-stream\r\n"
    "content-type: application/json\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: tools/call\r\n"
    "mcp-name: web__note\r\ncontent-length: {}\r\n\r\n"
)


class Bed:
    """A folder with a config and a log, the server behind it, and whoever starts Sluices there."""

    def __init__(self, folder: Path, launcher: "subprocess.Popen[str]", port: int) -> None:
        self.folder, self.launcher, self.port = folder, launcher, port
        self.numbers = count()
        self.answered: set[str] = set()
        self.answering = anyio.Event()

    def start(self) -> int:
        assert self.launcher.stdin is not None
        self.launcher.stdin.write("\n")
        self.launcher.stdin.flush()
        return int(self.read())

    def read(self) -> str:
        assert self.launcher.stdout is not None
        line: str = self.launcher.stdout.readline()
        assert line, (self.folder / "sluice.log").read_text()
        return line

    async def connection(self) -> None:
        """One connection, one call after the other, until Sluice is gone."""
        async with await self._connect() as stream:
            reader = BufferedByteReceiveStream(stream)
            with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
                while True:
                    await self._call(stream, reader)

    async def _call(self, stream: SocketStream, reader: BufferedByteReceiveStream) -> None:
        number = str(next(self.numbers))
        params = {"name": "web__note", "arguments": {"n": number}, "_meta": META}
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
        await stream.send(HEAD.format(len(body)).encode() + body)
        head = (await reader.receive_until(b"\r\n\r\n", 8_192)).lower()
        answer = await reader.receive_exactly(int(head.partition(b"content-length:")[2].split()[0]))
        assert b'"isError":true' not in answer and b'"content":[]' in answer, (head, answer)
        self.answered.add(number)
        self.answering.set()

    async def _connect(self) -> SocketStream:
        while True:
            try:
                return await anyio.connect_tcp("127.0.0.1", self.port)
            except OSError:  # it has not come so far
                await anyio.sleep(0.002)

    async def round(self, after: float, serving: bool) -> None:
        """Load from the first moment on, death that many seconds after the start, or after the first answer."""
        pid = self.start()
        self.answering = anyio.Event()
        async with anyio.create_task_group() as group:
            for _ in range(CONNECTIONS):
                group.start_soon(self.connection)
            if serving:
                with anyio.fail_after(60):
                    await self.answering.wait()
            await anyio.sleep(after)
            os.kill(pid, signal.SIGKILL)
            assert await anyio.to_thread.run_sync(self.read) == f"{-signal.SIGKILL}\n"
            group.cancel_scope.cancel()

    async def end(self) -> None:
        """A last start, which closes what is open, and an end in good order."""
        pid = self.start()
        await (await self._connect()).aclose()
        os.kill(pid, signal.SIGTERM)
        assert await anyio.to_thread.run_sync(self.read) == "0\n", (self.folder / "sluice.log").read_text()


@pytest.fixture
def bed(tmp_path: Path) -> Iterator[Bed]:
    port, config = free_port(), tmp_path / "sluice.yaml"
    recorder = [sys.executable, str(HERE / "recording_web.py"), str(tmp_path / "seen")]
    with running(recorder, tmp_path / "web.log", stdout=subprocess.PIPE) as web:
        assert web.stdout is not None
        settings = {
            "policy": {"use": "open"}, "clients": {"anonymous": {"roles": []}}, "state": {"dir": "state"},
            "listen": {"mcp": f"127.0.0.1:{port}", "admin": f"127.0.0.1:{free_port()}"},
            "servers": {"web": {"url": f"http://127.0.0.1:{int(web.stdout.readline())}/mcp", "pin": "off"}},
            "audit": {"rotate": {"size": "100KiB"}, "checkpoints": {"every": "0.1s"}}, "log": {"level": "warning"},
        }  # fmt: skip
        config.write_text(json.dumps(settings))
        with (tmp_path / "sluice.log").open("w") as stderr:
            launcher = subprocess.Popen(
                [sys.executable, str(HERE / "crash_sluice.py"), str(config)], env=ENVIRONMENT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, start_new_session=True,
            )  # fmt: skip
        try:
            yield Bed(tmp_path, launcher, port)
        finally:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.communicate()


async def test_what_reached_a_server_is_in_the_log_whenever_it_was_killed(bed: Bed) -> None:
    moments = random.Random(ROUNDS)
    for number in range(ROUNDS):
        await bed.round(moments.uniform(0.0, 0.3), serving=number % 5 != 4)
    await bed.end()
    state, audit = bed.folder / "state" / "audit", bed.folder / "audit"
    kept = list(read_kept(next(state.glob("*/sluice.checkpoint"))))
    paths = [path for path in audit.iterdir() if is_segment(path)]
    (report,) = verify(paths, read_publics((state / "sign.pub").read_text()), kept)
    assert report.ok, report.findings

    found = believed(audit)
    for record in found:
        fits_schema(record)
    intents = {record["call"]: record["arguments"]["n"] for record in found if record["type"] == "intent"}
    reached = set((bed.folder / "seen").read_text().split())
    assert len(bed.answered) > ROUNDS and bed.answered <= reached <= set(intents.values())
    outcomes = Counter(record["call"] for record in found if record["type"] == "outcome")
    assert set(outcomes) == set(intents) and set(outcomes.values()) == {1}
    interrupted = [intents[record["call"]] for record in found if record.get("reason") == "interrupted"]
    assert interrupted and not set(intents.values()) - set(interrupted) - reached
    seqs = [record["seq"] for record in found]
    assert seqs == sorted(set(seqs)) and {record["epoch"] for record in found} <= set(range(1, ROUNDS + 2))
    print(f"{ROUNDS} kills, {len(reached)} calls, {len(interrupted)} interrupted, {len(paths)} segments")


def believed(directory: Path) -> list[dict[str, Any]]:
    """Every whole line, in order: a torn one is no record, and the next segment says that it is there."""
    found = []
    for file in list_files(directory):
        for line in file.path.read_bytes().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found
