"""Messages that are kept in files: bounded each and in all, whatever the disk does."""

import gc
import resource
import subprocess
import sys

import pytest

from sluicegate.runtime.spool import EDGE, SpoolFull, Spools


def test_it_has_what_was_written_and_both_ends_at_hand() -> None:
    spool = Spools(10_000, 10_000).spool()
    written = [b"a" * 100, b"b" * 300, b"c" * 5]
    for data in written:
        spool.write(data)
    whole = b"".join(written)
    spool.file.seek(0)
    assert (len(spool), spool.file.read()) == (len(whole), whole)
    assert spool.edges == whole[:EDGE] + whole[-EDGE:]


def test_each_has_a_bound_and_all_together_have_one() -> None:
    spools = Spools(100, 150)
    first = spools.spool()
    first.write(b"x" * 100)
    with pytest.raises(SpoolFull, match="100 bytes"):
        first.write(b"x")
    assert spools.used == 0, "what is of no use takes no room"
    first, second = spools.spool(), spools.spool()
    first.write(b"x" * 100)
    with pytest.raises(SpoolFull):
        second.write(b"x" * 51)
    del first
    gc.collect()
    assert spools.used == 0, "a message that everybody has forgotten takes none either"


def test_a_full_disk_is_a_message_that_cannot_be_kept() -> None:
    program = (
        "import resource, signal; from sluicegate.runtime.spool import *\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "spool = Spools(10**6, 10**6).spool(); spool.write(b'x' * 900)\n"
        "try: spool.write(b'x' * 900)\n"
        "except SpoolFull as full: print('full', spool.file.closed, len(spool))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["full", "True", "0"] and resource.RLIMIT_FSIZE
