"""`SLUICE_SLOW_TURNS`: a step that held up the event loop is told of with its place."""

import os
import subprocess
import sys
from pathlib import Path

SCRIPT = """
import asyncio, time
from sluicegate.cli import run

async def slow():
    await asyncio.sleep(0)
    time.sleep(0.02)
    await asyncio.sleep(0)

def called():
    time.sleep(0.02)

async def main():
    asyncio.get_running_loop().call_soon(called)
    await asyncio.create_task(slow())

print(run.watch())
asyncio.run(main())
"""


def run(tmp_path: Path, value: str) -> str:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "SLUICE_SLOW_TURNS": value}
    done = subprocess.run([sys.executable, script], env=env, capture_output=True, text=True, timeout=30, check=True)
    return done.stdout.strip() + done.stderr


def test_each_slow_step_is_told_of_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "turns"
    assert run(tmp_path, str(file)) == "True"
    turns = [line.split(" ", 1) for line in file.read_text().splitlines()]
    places = {where.rpartition("/")[2] for took, where in turns if float(took) >= 20}
    assert {"script.py:8", "script.py:10"} <= places
    assert "a slow step of the event loop" in run(tmp_path, "1")


def test_unless_it_is_set_nothing_is_watched(tmp_path: Path) -> None:
    assert run(tmp_path, "") == "False"
