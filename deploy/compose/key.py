"""Makes the client key of the example, once: the key for `traffic`, its hash for the config of Sluice."""

import json
import os
import subprocess
import sys
from pathlib import Path

SLUICE_USER = 10001


def main(directory: Path) -> None:
    if (directory / "demo.hash").exists():
        return
    made = json.loads(subprocess.check_output(["sluice", "keys", "new", "demo", "--json"]))
    for name, text in (("demo.key", made["key"]), ("demo.hash", made["hash"])):
        with open(os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400), "w") as file:
            file.write(text)
            if os.geteuid() == 0:
                os.fchown(file.fileno(), SLUICE_USER, SLUICE_USER)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/keys"))
