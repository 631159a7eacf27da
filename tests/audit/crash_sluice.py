"""Sluices to be killed: each is a process of its own that serves a config, forked off one that has imported the most.

    python crash_sluice.py CONFIG

For each line on stdin one is started; its pid is printed, and when it has ended its exit status. Importing, and not
serving, is most of a start, and need not be done fifty times.
"""

import importlib
import os
import sys
from functools import partial
from pathlib import Path

import anyio

import sluicegate.audit.log
import sluicegate.metrics
import sluicegate.policy.judge  # noqa: F401 - imported so that the forks need not
from sluicegate import config


def serve(file: Path) -> None:
    app = importlib.import_module("sluicegate.app.serve")  # what a process draws for itself at its start it draws here
    loaded = config.load(file)
    anyio.run(partial(app.serve, loaded, announce=lambda line: None, file=file), backend_options={"use_uvloop": True})


for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        serve(Path(sys.argv[1]))
        os._exit(0)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
