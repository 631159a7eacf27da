"""`shim.c`, made and preloaded: what a Sluice's disk and clock do from now on. Knows no fault and no Sluice."""

import mmap
import os
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Final

LACKS_GCC: Final = "it makes the library that is preloaded"
HOLD: Final = -1  # a sync that takes until another is said


class Shim:
    """Raises `FileNotFoundError` where there is no gcc."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("gcc") is None:
            raise FileNotFoundError(LACKS_GCC)
        library, control = folder / "shim.so", folder / "control"
        source = Path(__file__).with_name("shim.c")
        command = ["gcc", "-shared", "-fPIC", "-O2", "-o", library, source, "-ldl"]
        subprocess.run(command, check=True, capture_output=True)
        self.environment = {"LD_PRELOAD": str(library), "CHAOS_CONTROL": str(control)}
        control.write_bytes(bytes(32))
        self._control = mmap.mmap(os.open(control, os.O_RDWR), 32)

    def set(self, ahead: int = 0, slow: int = 0, full: int = 0, broken: int = 0) -> None:
        """Seconds, milliseconds (or `HOLD`), and 1 for what is to fail."""
        self._control[:] = struct.pack("qqqq", ahead, slow, full, broken)

    def is_hit(self) -> bool:
        """Whether a write of the log was cut short."""
        return struct.unpack("qqqq", self._control[:])[2] == 2
