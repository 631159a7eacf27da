"""`keys rotate`: a new key for what Sluice itself signs, digests or seals. Older ones stay, so that nothing is lost."""

from functools import partial
from pathlib import Path
from typing import Annotated, Final

import anyio
import typer

from sluicegate.app.audit_wiring import KEYS, open_audit
from sluicegate.cli.output import AsJson, Code, ConfigFile, count, give, info, load, stop
from sluicegate.config import Config
from sluicegate.store.keys import KeyRing

RINGS: Final = {
    "sign": "checkpoints of the audit log; the old key introduces the new one there",
    "digest": "marks and digests in the audit log: equal values of before and after can no longer be told to be equal",
    "seal": "cursors and questions that clients hold; those of before stay good",
}


def rotate(
    ring: Annotated[str, typer.Argument(metavar="RING", help="Which keys: sign, digest or seal.")],
    config_file: ConfigFile = None,
    as_json: AsJson = False,
) -> None:
    """Make a new key of Sluice's own. It is used from the next start on."""
    if ring not in RINGS:
        stop(Code.USAGE, f"a ring is one of {', '.join(RINGS)}")
    _, loaded = load(config_file, quietly=True)
    try:
        keys = anyio.run(partial(_rotate, loaded, ring))
    except (OSError, ValueError) as error:
        stop(Code.CONFIG, f"nothing was rotated: {error}")
    text = f"{ring}: {count(len(keys.keys), 'key')}; the newest is used from the next start on"
    give(as_json, {"ring": ring, "keys": len(keys.keys), "newest": keys.newest_id.hex()}, [text])
    info(f"It is for {RINGS[ring]}.")


async def _rotate(loaded: Config, ring: str) -> KeyRing:
    async with open_audit(loaded, "http") as audit:
        if audit is not None and not await audit.note_durably("admin", {"act": "key_rotated", "ring": ring}):
            raise OSError(f"the audit log cannot be written: {audit.problem}")
        return KeyRing.rotate(Path(loaded.state.dir) / KEYS, ring)
