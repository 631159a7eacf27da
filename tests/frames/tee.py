"""`python tee.py RECORD COMMAND...`: runs COMMAND, hands its stdin and stdout on line by line, and keeps the lines.

RECORD gets one JSON array a line, `["in" or "out", text]`, written before the line is handed on. Several processes
may write to one RECORD's neighbours: each has a file of its own, RECORD.PID.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from typing import IO

record, *command = sys.argv[1:]
signal.signal(signal.SIGTERM, lambda *_: child.terminate())
child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
assert child.stdin and child.stdout
kept = open(f"{record}.{os.getpid()}", "a", buffering=1)
lock = threading.Lock()


def pump(name: str, source: IO[bytes], target: IO[bytes]) -> None:
    try:
        for line in iter(source.readline, b""):
            with lock:
                kept.write(json.dumps([name, line.decode("utf-8", "replace")]) + "\n")
            target.write(line)
            target.flush()
    except (BrokenPipeError, ValueError):
        pass  # one side is gone
    finally:
        if name == "in":
            target.close()


threading.Thread(target=pump, args=("in", sys.stdin.buffer, child.stdin), daemon=True).start()
pump("out", child.stdout, sys.stdout.buffer)
code = child.wait()
sys.stdout.flush()
os._exit(code if code >= 0 else 128 - code)
