"""The audit log, wired: which keys it has, what is noted in it beside calls, and by whom."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from sluicegate.app import room_settings
from sluicegate.audit.log import AuditLog
from sluicegate.catalog_cache.definition_pins import PinEvent
from sluicegate.config import Config
from sluicegate.policy.judge import PolicyEngine
from sluicegate.protocol.jsonrpc import Json
from sluicegate.store.keys import KeyRing

KEYS: Final = "keys"


@asynccontextmanager
async def open_audit(
    config: Config, transport: str, judge: PolicyEngine | None = None
) -> AsyncIterator[AuditLog | None]:
    """The log, open until everything else has ended; None where the config wants none. Without a judge it is for the
    notes of a command, which is over before a sink is reached: whoever serves next sends them."""
    if not config.audit.enabled:
        yield None
        return
    keys = Path(config.state.dir) / KEYS
    digest, sign = KeyRing.load(keys, "digest"), KeyRing.load(keys, "sign")
    settings, seeds = room_settings.audit(config, transport), sign.keys.values()
    if judge is None:
        audit = AuditLog(replace(settings, sinks=()), digest.newest, seeds)
    else:
        audit = AuditLog(settings, digest.newest, seeds, judge.classify, judge.revision)
    try:
        await audit.start()
        yield audit
    finally:
        await audit.stop()


class Notes:
    """What is written down beside calls; nowhere, where there is no log."""

    def __init__(self, audit: AuditLog | None, judge: PolicyEngine, config: Config) -> None:
        self._audit, self._judge, self._config = audit, judge, config
        self._last: Json = {}

    def __repr__(self) -> str:
        return f"Notes({self._audit!r})"

    def policy(self) -> None:
        """Which policy decides from now on, and how, if that is another one than before."""
        judge = self._judge
        mode = "shadow" if judge.law.is_shadow else "enforce"
        now: Json = {"what": "in_force", "revision": judge.revision(), "mode": mode}
        if judge.problem:
            now |= {"what": "cannot_decide"}
        if now != self._last:
            self._last = now
            self._note("policy", now)

    def reloaded(self, now: Config) -> None:
        """A changed config is in force, as far as it can be without a restart, or a key was taken back."""
        before, self._config = self._config, now
        changed = [name for name in Config.model_fields if getattr(before, name) != getattr(now, name)]
        if changed:
            self._note("policy", {"what": "reloaded", "revision": self._judge.revision(), "changed": changed})
        for act, name in _keys(before, now):
            self.act(act, name=name)

    def rejected(self, problems: int) -> None:
        """A changed config cannot be used; what is wrong with it stands in the log for operators."""
        self._note("policy", {"what": "rejected", "revision": self._judge.revision(), "problems": problems})

    def act(self, act: str, **fields: str) -> None:
        """What an operator did to Sluice itself."""
        self._note("admin", {"act": act, **fields})

    def pin(self, event: PinEvent) -> None:
        """What became of a definition."""
        note_pin(self._audit, event)

    def denied(self, principal: str, area: str, act: str) -> None:
        """Somebody has no right on Sluice itself."""
        decision = {"verdict": "deny", "rule": "no row allows it", "policy": self._judge.revision()}
        about = {"principal": principal, "server": "sluice", "object": f"admin:{area}", "act": act}
        self._note("decision", {**about, "decision": decision})

    def _note(self, type: str, fields: Json) -> None:
        if self._audit is not None:
            self._audit.note(type, fields)


def note_pin(audit: AuditLog | None, event: PinEvent) -> None:
    if audit is not None:
        audit.note("pin", asdict(event))


def _keys(before: Config, now: Config) -> Iterator[tuple[str, str]]:
    """Client keys that came and went: one with another hash is another key."""
    old, new = before.clients.keys, now.clients.keys
    for name in sorted({*old, *new}):
        is_same = name in old and name in new and old[name].hash == new[name].hash
        if name in old and not is_same:
            yield "key_revoked", name
        if name in new and not is_same:
            yield "key_added", name
