"""Makes the rings that all replicas have, and the password of their database, once. For compose.yaml.

python rings.py FOLDER: a file for each, which nobody but the replicas can read.
"""

import os
import sys
from base64 import b64encode
from pathlib import Path

SLUICE_USER = 10001


def main(directory: Path) -> None:
    for name in ("seal", "digest", "sign", "database"):
        path = directory / name
        if path.exists():
            continue
        new = path.with_suffix(".new")  # a start that was cut short leaves no half of a key
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o400), "wb") as file:
            file.write(b64encode(os.urandom(32)))
            if os.geteuid() == 0:
                os.fchown(file.fileno(), SLUICE_USER, SLUICE_USER)
        new.rename(path)


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "/keys"))
