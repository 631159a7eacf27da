"""`python -m sluicegate` and the installed command `sluice`."""

import sys

# They come with typer, and structlog, httpx and pydantic import them because they are there: 4 MiB and 80 ms, for
# colours that nothing here shows. To them they are not there.
for name in ("rich", "pygments"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: cannot be imported

from sluicegate.cli import main  # noqa: E402 - after the lines above, which decide what it imports

if __name__ == "__main__":
    main()
