"""What the desktop client runs: `sluice stdio`. The first start writes a config file without servers."""

import os
import sys

from sluicegate.__main__ import main
from sluicegate.cli.template import new_file
from sluicegate.config import ConfigError, find_config, places
from sluicegate.store import private


def write_first_config() -> None:
    """Where there is none, in the user's config directory."""
    try:
        find_config()
    except ConfigError:
        path = places(os.environ)[-1]
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        private.write(path, new_file({}, use="personal").encode(), replace=False)
        print(f"sluice: wrote {path}: add servers there", file=sys.stderr)


if __name__ == "__main__":
    write_first_config()
    sys.argv[1:] = ["stdio"]
    main()
