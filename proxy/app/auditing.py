"""The audit log, wired: which keys it has, what it is told, and who is told of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Final

from proxy.app import slices
from proxy.audit.log import Audit
from proxy.config import Config
from proxy.lists.pinboard import PinEvent
from proxy.policy.judge import Judge
from proxy.store.keys import KeyRing

KEYS: Final = "keys"


@asynccontextmanager
async def open_audit(config: Config, transport: str, judge: Judge) -> AsyncIterator[Audit | None]:
    """The log, open until everything else has ended; None where the config wants none."""
    if not config.audit.enabled:
        yield None
        return
    keys = Path(config.state.dir) / KEYS
    digest, sign = KeyRing.load(keys, "digest"), KeyRing.load(keys, "sign")
    settings = slices.audit(config, transport)
    audit = Audit(settings, digest.newest, sign.keys.values(), judge.classify, judge.revision)
    await audit.start()
    try:
        yield audit
    finally:
        await audit.stop()


def note_policy(audit: Audit | None, judge: Judge) -> None:
    """Which policy decides from now on."""
    if audit is not None:
        mode = "shadow" if judge.law.is_shadow else "enforce"
        audit.note("policy", {"what": "in_force", "revision": judge.revision(), "mode": mode})


def pin_notes(audit: Audit | None) -> Callable[[PinEvent], None]:
    """What becomes of definitions, as records."""

    def note(event: PinEvent) -> None:
        if audit is not None:
            audit.note("pin", asdict(event))

    return note
