"""`python -m sluicegate` and the installed command `sluice`."""

import gc
import os
import sys

from sluicegate.deferred import defer

gc.disable()  # walking all that imports make takes a tenth of a start; `main` enables it again

# They come with typer, and structlog, httpx and pydantic import them because they are there: 4 MiB and 80 ms, for
# colours that nothing here shows. To them they are not there.
for name in ("rich", "pygments", "greenlet"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: cannot be imported

# Nobody extends the checks of the config, and looking for plugins reads the metadata of every installed package.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")

# Needed by who has servers with a URL, by who has rules for arguments, by texts that are long, and by a matcher of
# casbin that no policy here uses.
for name in ("httpx", "httpx_sse", "jsonschema_rs", "regex", "wcmatch.glob"):
    defer(name)

from sluicegate.cli import main  # noqa: E402 - after the lines above, which decide what it imports

if __name__ == "__main__":
    main()
