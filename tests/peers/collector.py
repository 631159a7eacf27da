"""A collector of audit records: a process that has what it was sent on its disk before it says so.

with collector(folder) as kept: kept.url, kept.lines(), kept.pause(), kept.resume(), kept.kill(), kept.start()
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from peers.fleet import Json, free_port, running, wait_for_port


class Collector:
    def __init__(self, folder: Path) -> None:
        self._file, self._log, self._port = folder / "collected.jsonl", folder / "collector.log", free_port()
        self.url = f"http://127.0.0.1:{self._port}/audit"
        self._stack = ExitStack()
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, __file__, str(self._file), str(self._port)]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        self._process = self._stack.enter_context(running(command, self._log, env=environment))
        wait_for_port(self._port, self._process, self._log)

    def lines(self, writer: str) -> dict[int, bytes]:
        """The records of one log by their numbers; one may have come twice."""
        found = {}
        for line in self._file.read_bytes().splitlines(keepends=True):
            record: Json = json.loads(line)
            if record["writer"] == writer:
                found[int(record["seq"])] = line
        return found

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._stack.close()

    def _signal(self, received: signal.Signals) -> None:
        assert self._process is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, received)


@contextmanager
def collector(folder: Path) -> Iterator[Collector]:
    made = Collector(folder)
    made.start()
    try:
        yield made
    finally:
        made.kill()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        os.write(kept, body)
        os.fsync(kept)
        self.send_response(204)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    kept = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), _Handler) as server:
        server.serve_forever()
