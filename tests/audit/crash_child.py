"""A process that is killed: eight connections call, a recording server writes down what reached it.

Arguments: the directory, the file of the recording server. A call reaches the server only when its intent is kept.
"""

import os
import sys
from itertools import count
from pathlib import Path

import anyio
import anyio.lowlevel
from audit_kit import OK, make_call, open_audit

from proxy.audit.settings import Checkpointing, Rotation


async def main(directory: Path, seen: Path) -> None:
    fd = os.open(seen, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    numbers = count()
    async with open_audit(directory, checkpoints=Checkpointing(records=50), rotate=Rotation(size=60_000)) as audit:

        async def connection() -> None:
            while True:
                call = make_call(f"{os.getpid()}-{next(numbers)}")
                if await audit.intent(call):
                    os.write(fd, f"{call.trail.id}\n".encode())
                    await anyio.lowlevel.checkpoint()
                    audit.outcome(call, OK, 0.0)

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(connection)
            print("ready", flush=True)


anyio.run(main, Path(sys.argv[1]), Path(sys.argv[2]))
