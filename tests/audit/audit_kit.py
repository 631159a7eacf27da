"""What the audit tests share: calls as guards see them, a log in a directory, and its records."""

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import jsonschema_rs
from ocsf_json_schema import OcsfJsonSchemaEmbedded, get_ocsf_schema

from sluicegate.audit import chain, export, record
from sluicegate.audit.checkpoint import read_publics
from sluicegate.audit.log import AuditLog
from sluicegate.audit.recover import load
from sluicegate.audit.settings import AuditSettings
from sluicegate.audit.verify import VerifyReport, read_kept, verify
from sluicegate.protocol.model import Call, Client, Decision, Outcome, Result, Target, Trail, Verdict

SEED, DIGEST_KEY = b"s" * 32, b"d" * 32
ITEM = {"name": "create_issue", "description": "Makes an issue", "inputSchema": {"type": "object"}}
TARGET = Target("github", "tool", "create_issue", "gh__create_issue", ITEM)
CLIENT = Client("key:ci-bot", ("role:ci", "group:dev"), "team-ci", info={"name": "probe", "version": "1"})
OK = Result({"content": []})
SCHEMA = json.loads(Path(record.__file__).with_name("record.schema.json").read_text("utf-8"))
RECORD = jsonschema_rs.validator_for(SCHEMA)
# Nothing that the class and these profiles have not is taken, and what they require must be there.
OCSF_SCHEMA = OcsfJsonSchemaEmbedded(get_ocsf_schema(export.OCSF_VERSION)).get_class_schema(
    "api_activity", ["security_control", "trace"]
)
OCSF = jsonschema_rs.validator_for(OCSF_SCHEMA)


def fits_schema(record: dict[str, Any]) -> None:
    """What the published schema says of a record is so, and what OCSF's says of the event that it becomes."""
    fits_ocsf(export.ocsf(record))
    errors = [f"{list(error.instance_path)}: {error.message}"[:300] for error in RECORD.iter_errors(record)]
    assert not errors, (errors, record)


def fits_ocsf(event: dict[str, Any]) -> None:
    assert not [f"{list(error.instance_path)}: {error.message}"[:300] for error in OCSF.iter_errors(event)], event
    assert event["type_uid"] == 100 * event["class_uid"] + event["activity_id"]


def make_call(id: str = "c1", arguments: dict[str, Any] | None = None, **changes: Any) -> Call:
    """A decided `tools/call` on its way to a server."""
    trail, target = Trail(id), changes.pop("target", TARGET)
    params: dict[str, Any] = {}
    if target is not None:
        trail.set_target(target)
        trail.add(Decision(changes.pop("verdict", Verdict.ALLOW), "policy.csv:17", "because"))
        params = {"name": target.own, "arguments": arguments or {"title": "x"}}
    call = Call(CLIENT, "tools/call", params, {}, target, trail=trail)
    return replace(call, **changes)


def settings(directory: Path, **changes: Any) -> AuditSettings:
    return AuditSettings(directory / "audit" / "sluice.jsonl", directory / "state", **changes)


@asynccontextmanager
async def open_audit(directory: Path, seeds: tuple[bytes, ...] = (SEED,), **changes: Any) -> AsyncIterator[AuditLog]:
    try:
        async with unchecked_audit(directory, seeds, **changes) as audit:
            yield audit
    finally:
        for line in lines(directory):
            if chain.read(line) is not None and (record := load(line)):  # not what a test put there itself
                fits_schema(record)


@asynccontextmanager
async def unchecked_audit(
    directory: Path, seeds: tuple[bytes, ...] = (SEED,), **changes: Any
) -> AsyncIterator[AuditLog]:
    """For logs too large to hold each record against the schema."""
    audit = AuditLog(settings(directory, **changes), DIGEST_KEY, seeds)
    await audit.start()
    try:
        yield audit
    finally:
        await audit.stop()


async def one_call(audit: AuditLog, id: str, outcome: Outcome = OK, **changes: Any) -> bool:
    call = make_call(id, **changes)
    kept = await audit.intent(call)
    audit.outcome(call, outcome, 0.25)
    return kept


async def settled(audit: AuditLog) -> None:
    """Returns when all that was handed over is in the file: an outcome is written behind its call."""
    with anyio.fail_after(60):
        while audit.tally().waiting or audit.tally().lag["file"]:  # noqa: ASYNC110 - of another thread
            await anyio.sleep(0.01)


def copy_log(directory: Path, to: Path) -> None:
    """With what its state directory has of it, as if it had always been there."""
    for part in ("audit", "state"):
        shutil.copytree(directory / part, to / part)
    (to / settings(directory).own_state.relative_to(directory)).rename(settings(to).own_state)


def segments(directory: Path) -> list[Path]:
    """Oldest first."""
    found = [path for path in (directory / "audit").iterdir() if ".jsonl" in path.name]
    return sorted(found, key=lambda path: int(path.suffix[1:]) if path.suffix[1:].isdigit() else 10**12)


def lines(directory: Path) -> list[bytes]:
    """Whole ones: behind them another may just be written."""
    return [line for path in segments(directory) for line in path.read_bytes().split(b"\n")[:-1]]


def records(directory: Path, type: str = "") -> list[dict[str, Any]]:
    found = [json.loads(line) for line in lines(directory)]
    return [record for record in found if not type or record["type"] == type]


def check(directory: Path, *, kept: bool = True) -> list[VerifyReport]:
    """What the verifier says, with the public keys and, if asked for, the checkpoint in the state directory."""
    keys = read_publics((directory / "state" / "sign.pub").read_text())
    files = sorted((directory / "state").glob("*/*.checkpoint")) if kept else []
    return verify(segments(directory), keys, [one for path in files for one in read_kept(path)])


def check_one(directory: Path, **how: Any) -> VerifyReport:
    reports = check(directory, **how)
    assert len(reports) == 1
    return reports[0]
