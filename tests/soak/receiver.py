"""Where Sluice sends things, in the runner's own event loop: questions of hooks, notifications, records for the audit
sink, checkpoints, spans.

    /hook/NAME  /notify  /audit  /checkpoints  /v1/traces
"""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

Json = dict[str, Any]
VERDICTS: Final[list[Json]] = [
    *[{"verdict": "allow"}] * 5, {"verdict": "deny", "reason": "the soak says no"}, {"verdict": "allow"},
]  # fmt: skip
WORDS: Final[list[Json]] = [
    *[{"verdict": "allow"}] * 4, {"verdict": "redact", "redact": ["/content/0/text"]},
    {"verdict": "withhold", "reason": "the soak keeps it"},
]  # fmt: skip


class SoakReceiver:
    """`audit` is given the lines of the audit log."""

    def __init__(self, audit: Callable[[bytes], None]) -> None:
        self.counts: Counter[str] = Counter()
        self._audit = audit
        self._server: asyncio.Server | None = None

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                lines = head.split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                said, more = await self._answer(lines[0].split()[1], body)
                data = json.dumps(said).encode()
                writer.write(f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n{more}"
                             f"content-length: {len(data)}\r\n\r\n".encode() + data)  # fmt: skip
        except (asyncio.IncompleteReadError, OSError):
            writer.close()

    async def _answer(self, path: str, body: bytes) -> tuple[Json, str]:
        count = self.counts[path] = self.counts[path] + 1
        if path == "/audit":
            self._audit(body)
        if path != "/hook/gate":
            return {}, ""
        asked = json.loads(body)["on"]
        if count % 97 == 0:
            await asyncio.sleep(3)  # longer than its timeout: no verdict
        words = VERDICTS if asked == "call" else WORDS
        return words[count % len(words)], "cache-control: max-age=60\r\n" if count % 3 == 0 else ""
