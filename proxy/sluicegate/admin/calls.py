"""What is read from the newest end of the audit log: calls, the story of one call, and records of every type."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

from sluicegate.audit import newest
from sluicegate.audit.checkpoint import PublicKeys
from sluicegate.audit.newest import CallFilter, LogPage, Story
from sluicegate.audit.read import Filter, read_time
from sluicegate.audit.record import TYPES
from sluicegate.audit.record_templates import seconds as moment
from sluicegate.outcomes import ENDINGS
from sluicegate.protocol.jsonrpc import Json
from sluicegate.runtime.reader_threads import in_reader_thread

PAGE: Final = 100
_CHOICES: Final = {"verdict": ("allow", "deny", "ask", "would_deny"), "type": TYPES, "outcome": sorted(ENDINGS)}
_TERMS: Final = {"who": "principal", "server": "server", "tool": "tool", "method": "method", "verdict": "verdict",
                 "outcome": "outcome", "q": "text"}  # fmt: skip
_RECORD_TERMS: Final = {name: name for name in ("type", "principal", "tool", "outcome", "call")}
_TIMES: Final = ("since", "until")


class CallsApi:
    """Reads `directory`, where the log is. What is signed is judged by `keys` and what `state` has."""

    def __init__(self, directory: Path, state: Path, keys: Callable[[], PublicKeys]) -> None:
        self._directory, self._state, self._keys = directory, state, keys

    async def page(self, query: Mapping[str, Sequence[str]]) -> tuple[int, Json]:
        return await self._page("calls", newest.calls, query, _TERMS, CallFilter)

    async def records(self, query: Mapping[str, Sequence[str]]) -> tuple[int, Json]:
        return await self._page("records", newest.records, query, _RECORD_TERMS, Filter)

    async def show(self, id: str) -> tuple[int, Json]:
        if not 0 < len(id) <= 128:
            return 404, {"error": "no such call"}
        found = await in_reader_thread(lambda: newest.story(self._directory, self._state, self._keys(), id))
        if not found.own:
            far = f": the log was searched back to {found.searched_to}" if found.is_partial else ""
            return 404, {"error": f"no such call{far}"}
        return 200, _story(found)

    async def _page(
        self, name: str, search: Callable[..., LogPage], query: Mapping[str, Sequence[str]], terms: Mapping[str, str],
        filter_of: Callable[..., CallFilter | Filter],
    ) -> tuple[int, Json]:  # fmt: skip
        read = _read(query, terms)
        if isinstance(read, str):
            return 400, {"error": read}
        given, limit, before = read
        wanted = filter_of(**given)
        found = await in_reader_thread(partial(search, self._directory, wanted=wanted, limit=limit, before=before))
        answer: Json = {name: found.rows, "searched_to": found.searched_to, "partial": found.is_partial}
        return 200, answer | ({"next": found.next} if found.next else {})


def _read(
    query: Mapping[str, Sequence[str]], terms: Mapping[str, str]
) -> tuple[dict[str, str], int, newest.Position | None] | str:
    """The fields of a filter, the limit and the cursor, or what is wrong with the query. `terms` has the filter's
    field for each parameter."""
    members = {*terms, *_TIMES, "before", "limit"}
    if set(query) - members or any(len(values) != 1 for values in query.values()):
        return f"the query is of {', '.join(sorted(members))}, each at most once"
    given = {name: values[0] for name, values in query.items()}
    for name, words in _CHOICES.items():
        if name in given and given[name] not in words:
            return f"{name} is one of {', '.join(words)}"
    try:
        now = datetime.now(UTC)
        times = {name: given[name] and read_time(given[name], now) for name in _TIMES if name in given}
    except ValueError as error:
        return str(error)
    limit = given.get("limit", str(PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= len(str(PAGE)) and 1 <= int(limit) <= PAGE):
        return f"limit is a number from 1 to {PAGE}"
    before = newest.read_position(given["before"]) if "before" in given else None
    if before is None and "before" in given:
        return "before is `next` of another answer"
    return {field: given[name] for name, field in terms.items() if name in given} | times, int(limit), before


def _story(found: Story) -> Json:
    own, records = found.own, found.records
    intent = next((one for one in own if one["type"] == "intent"), None)
    outcome = next((one for one in own if one["type"] == "outcome"), None)
    first = intent or own[0]
    named = ("arguments", "arguments_digest", "result", "result_cut", "result_digest", "definition", "roles", "groups",
             "revision", "session", "transport", "approval", "hooks")  # fmt: skip
    answer = newest.summary(outcome or first)
    for record in own:
        answer |= {name: record[name] for name in named if name in record}
    answer["is_open"] = outcome is None
    answer["decision"] = newest.as_record(first.get("decision")) or newest.as_record(own[-1].get("decision"))
    answer["approvals"] = [_approval(one) for one in records if one["type"] == "approval"]
    answer["rounds"] = [newest.summary(one) for one in records if one.get("call") != found.call and "call" in one]
    answer["timing"] = timing(records)
    return {
        "call": answer,
        "records": records,
        "proof": {"state": newest.worst(found.proofs), "records": found.proofs},
        "partial": found.is_partial,
    }


def timing(records: Sequence[Json]) -> list[Json]:
    """When each stage of a call ended, and how long `after` the one before: the first after the call came, which its
    outcome tells. What is older than the call, such as the approval that it uses, has no `after`."""
    ends = [one for one in records if one["type"] == "outcome" and "seconds" in one]
    last = moment(ends[-1]["time"]) - ends[-1]["seconds"] if ends else None
    rows: list[Json] = []
    for one in records:
        if one["type"] not in ("intent", "outcome", "approval"):
            continue
        row, at = {"stage": _stage(one), "time": one["time"]}, moment(one["time"])
        row |= {"seconds": one["seconds"]} if "seconds" in one else {}
        if last is not None and at >= last:
            row["after"] = round(at - last, 6)
        last = at if last is None else max(last, at)
        rows.append(row)
    return rows


def _stage(record: Json) -> str:
    kind: str = record["type"]
    if kind != "approval":
        return kind
    approval = record["approval"]
    return f"approval not {approval['void']}" if "void" in approval else f"approval {approval.get('state', '')}"


def _approval(record: Json) -> Json:
    names = ("id", "state", "profile", "approver", "channel", "comment", "scope", "grant", "digest", "void")
    approval = record["approval"]
    return {"time": record["time"], **{name: approval[name] for name in names if name in approval}}
