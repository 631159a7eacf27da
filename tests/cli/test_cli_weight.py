"""What a process that serves carries with it from the start: libraries that most configs never need stay out."""

import subprocess
import sys

import pytest

# Each takes 2 to 4 MiB, of the 80 that an idle Sluice may take.
HEAVY = ("rich", "pygments", "jwt", "opentelemetry.sdk", "requests")


@pytest.fixture(scope="module")
def modules() -> set[str]:
    code = "import sluicegate.__main__, sys; print(*(name for name, module in sys.modules.items() if module))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize("library", HEAVY)
def test_what_starts_has_not_imported(library: str, modules: set[str]) -> None:
    assert "sluicegate.app.serve" in modules
    assert library not in modules
