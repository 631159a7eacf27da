"""What a command carries with it from the start: what most configs or commands never need stays out."""

import subprocess
import sys

import pytest

# Each takes 2 to 4 MiB, of the 80 that an idle Sluice may take.
HEAVY = ("rich", "pygments", "jwt", "opentelemetry.sdk", "requests")
# What serves takes half a second to import: nobody who asks a Sluice that runs waits for it.
SERVING = ("sluicegate.app.core", "sluicegate.policy.engine", "sluicegate.listen.server", "uvicorn", "casbin")
ASKING = ("servers", "logs", "call", "console", "resources")


def imported_by(*words: str) -> set[str]:
    code = (
        f"import sluicegate.__main__, sluicegate.cli, sys; sluicegate.cli.application({words!r});"
        "print(*(name for name, module in sys.modules.items() if module))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("command", ["serve", "stdio"])
def test_what_serves_has_not_imported_what_most_configs_never_need(command: str) -> None:
    modules = imported_by(command)
    assert "sluicegate.app.serve" in modules
    assert not modules & set(HEAVY)


@pytest.mark.parametrize("command", ASKING)
def test_a_command_that_asks_has_not_imported_what_serves(command: str) -> None:
    modules = imported_by(command)
    assert "sluicegate.cli.admin" in modules
    assert not modules & set(SERVING)
