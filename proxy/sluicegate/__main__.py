"""`python -m sluicegate` and the installed command `sluice`."""

import signal

interrupted = signal.getsignal(signal.SIGINT)
if interrupted is signal.default_int_handler:  # it would show the trace of an import, of any that follows
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import gc
import os
import sys
from types import ModuleType

from sluicegate.deferred import defer, defer_annotations, defer_methods

gc.disable()  # walking all that imports make takes a tenth of a start; `main` enables it again

# They come with typer, and structlog, httpx and pydantic import them because they are there: 4 MiB and 80 ms, for
# colours that nothing here shows. To them they are not there.
for name in ("rich", "pygments", "greenlet"):
    sys.modules.setdefault(name, None)  # type: ignore[arg-type]  # None: cannot be imported

# Nobody extends the checks of the config, and looking for plugins reads the metadata of every installed package. The
# module that would look imports readers of mail and of zip files for it, also where it is told not to.
os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
vars(no_plugins := ModuleType("pydantic.plugin._loader"))["get_plugins"] = tuple
sys.modules.setdefault(no_plugins.__name__, no_plugins)

# Needed by who has servers with a URL, by who has rules for arguments, by texts that are long, by a matcher of casbin
# that no policy here uses, and by its log; by hints on a wrong word, by webhooks, and by who looks for a command; by
# several workers, by logs at a terminal, and by who seals or opens something.
# Packages, whose modules are imported one by one: their own files import servers of HTTP, and enforcers that nobody
# asks.
for name in (
    "difflib", "httptools", "httpx", "httpx_sse", "jsonschema_rs", "logging.config", "regex", "shutil",
    "standardwebhooks", "wcmatch", "wcmatch.glob", "zlib",
    "casbin", "prometheus_client", "structlog", "cryptography.exceptions", "cryptography.hazmat.primitives",
    "cryptography.hazmat.primitives.ciphers", "cryptography.hazmat.primitives.ciphers.aead",
):  # fmt: skip
    defer(name)
defer_annotations()
defer_methods()

from sluicegate.cli import main

if interrupted is signal.default_int_handler:
    signal.signal(signal.SIGINT, interrupted)

if __name__ == "__main__":
    main()
