"""What of a server is shown to clients that have no login there: definitions that a person has accepted, from whichever
list they are known. Instructions are not among them. Knows pins and stored lists; no client."""

import asyncio
from collections.abc import Mapping

from sluicegate.catalog.snapshot import KINDS, Entry, ListSection, ServerNaming, Snapshot, assemble
from sluicegate.catalog_cache.definition_pins import DefinitionPins
from sluicegate.catalog_cache.snapshot_store import SnapshotStore
from sluicegate.protocol.model import Era


class LentLists:
    """Found once a server, until something changes."""

    def __init__(self, stored: SnapshotStore, pins: DefinitionPins) -> None:
        self._stored, self._pins = stored, pins
        self._found: dict[str, asyncio.Task[tuple[Snapshot, Era] | None]] = {}

    def forget(self, server: str) -> None:
        self._found.pop(server, None)

    async def find(self, naming: ServerNaming, identity: str) -> tuple[Snapshot, Era] | None:
        """None where nothing was accepted, or no list has it."""
        task = self._found.get(naming.server)
        if task is None:
            task = self._found[naming.server] = asyncio.create_task(self._find(naming, identity))
        return await asyncio.shield(task)

    async def _find(self, naming: ServerNaming, identity: str) -> tuple[Snapshot, Era] | None:
        accepted = self._pins.accepted(naming.server)
        stored = await self._stored.all(naming, identity) if accepted else []
        found: dict[str, dict[str, Entry]] = {method: {} for method in KINDS}
        first: tuple[Mapping[str, object], Era] | None = None
        for era, snapshot in stored:
            for method, known in found.items():
                for entry in snapshot.entries(method):
                    target = entry.target
                    if (target.kind, target.own, entry.fingerprint) in accepted:
                        known.setdefault(target.public, entry)
                        first = first or (snapshot.about, era)
            await asyncio.sleep(0)
        if first is None:
            return None
        about = {name: value for name, value in first[0].items() if name != "instructions"}
        listings = {method: ListSection(method, tuple(known.values())) for method, known in found.items()}
        return assemble(naming.server, about, listings), first[1]
