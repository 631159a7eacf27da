"""`/api/v1/audit/verify`: the proof of the whole log, as `sluice audit verify` makes it.

A log may take minutes. One proof runs at a time, in a thread that the end of the process does not wait for.
"""

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from sluicegate.audit.checkpoint import PublicKeys
from sluicegate.audit.recover import list_files
from sluicegate.audit.settings import AuditSettings
from sluicegate.audit.verify import read_published, verify
from sluicegate.protocol.jsonrpc import Json

RUNNING: Final = "running"


class Verification:
    """`start` and `status` belong to the event loop."""

    def __init__(self, settings: AuditSettings, keys: Callable[[], PublicKeys]) -> None:
        self._settings, self._keys = settings, keys
        self._status: Json = {"state": "none"}
        self._records = self._bytes = self._total = 0

    def start(self) -> Json:
        """One that runs already is what whoever asks gets."""
        if self._status["state"] != RUNNING:
            self._records = self._bytes = self._total = 0
            self._status = {"state": RUNNING, "started_at": _now()}
            threading.Thread(target=self._run, name="audit verification", daemon=True).start()
        return self.status()

    def status(self) -> Json:
        return {**self._status, "records": self._records, "bytes": self._bytes, "of_bytes": self._total}

    def _run(self) -> None:
        found: Json = {"state": "failed", "error": "the log could not be read to its end"}
        try:
            # Checkpoints are read before the files are listed, so that every record that they cover is in one of these.
            outside = list(read_published(self._settings))
            folder = self._settings.path.parent
            self._total = sum(file.size for file in list_files(folder))
            reports = verify([folder], self._keys(), outside, self._add)
            writers = [report.to_json() for report in reports]
            found = {"state": "done", "ok": all(report.ok for report in reports), "writers": writers}
        except OSError as error:  # a segment that retention deletes meanwhile
            found["error"] = f"a file of the log could not be read: {error.strerror}"
        except ValueError as error:
            found["error"] = str(error)
        finally:
            self._status = {**self._status, **found, "ended_at": _now()}

    def _add(self, size: int) -> None:
        self._records += 1
        self._bytes += size


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
