"""Debian's faketime: another clock for a program that a test starts."""

from pathlib import Path

from peers.debian import provide

SHARED = Path("/dev/shm")


def shifted(seconds: int) -> list[str]:
    """The words before a command whose clock is ahead by so many seconds. What a program leaves that was ended by a
    signal bears its number, and the next one of that number could not start."""
    program = provide("faketime", "faketime")
    for left in SHARED.glob("*faketime_s*"):
        if not Path("/proc", left.name.rpartition("_")[2]).exists():
            left.unlink(missing_ok=True)
    return [program, "-f", f"{seconds:+}s"]
