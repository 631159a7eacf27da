"""inspect: what a server answered, before anybody else acts on it.

It stands innermost, so that every other guard sees what it leaves. Terminal orders and hidden text are taken out of
results, questions, errors, progress and log messages; what was found is named in `_meta`, together with a result that
breaks the schema its tool promised. Under `block` whatever would be marked is withheld. Definitions are not touched
here: lists show what was accepted.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal

from sluicegate.guards import links
from sluicegate.guards.links import Decide, Links
from sluicegate.policy.hidden_text import (
    FLAGS,
    clean,
    clean_in_pieces,
    is_plain,
    is_plain_in_pieces,
    is_plain_json,
    text_of,
)
from sluicegate.protocol import reserved_keys, union_members
from sluicegate.protocol.jsonrpc import Json, Malformed, Notification
from sluicegate.protocol.model import (
    Call,
    Failure,
    Guard,
    Handler,
    InputRequired,
    Outcome,
    Result,
    Target,
    TaskStarted,
    refuse,
)
from sluicegate.runtime.loop_budget import VALUES, LoopBudget, budget_of, is_large

Mode = Literal["off", "warn", "block"]
Check = Callable[[str, str, Any, Json], tuple[str, str] | None]
"""(server, own tool name, its outputSchema, result) -> (flag, why), or None where there is nothing to say."""
Prepare = Callable[[str, str, Any], Callable[[], object] | None]
"""(server, own tool name, its outputSchema) -> what a thread does before such a check, or None."""
InspectParams = Callable[[str, Json], Json | None]
"""(server, params) -> what a server sent without an answer, cleaned and marked; None where it is withheld."""

WORDS: Final = {
    "terminal": "characters that a terminal obeys",
    "tags": "hidden text",
    "bidi": "characters that turn the order of text around",
    "invisible": "invisible characters",
    links.FLAG: "a resource that this client may not read",
    "output_schema": "structuredContent that is not what the tool promised",
}
# A schema that may not be used is the server's own affair: the result is as good as one that promised nothing.
_HARMLESS: Final = frozenset({"output_schema_unused"})
# What a client needs of a task: its state is not withheld as a whole, for the client could not follow the task.
TASK_STATE: Final = frozenset({"taskId", "status", "createdAt", "lastUpdatedAt", "ttlMs", "pollIntervalMs"})
_MAX_CLEANED: Final = 64 * 1024
"""Characters of a notification that has hidden ones: all of it is cleaned in one step of the event loop."""
_MAX_AT_ONCE: Final = 1024 * 1024
"""Characters of a notification that belongs to no call: all of it is looked at in one step."""
_LONG: Final = 64 * 1024
"""Bytes of a result: to encode and to read more takes a step each of the event loop."""
_EXECUTED: Final = "This was executed, but its answer"
_FAILED: Final = "The server answered with an error, which"
_PARTS: Final = ("result", "inputRequests", "error")

log = logging.getLogger(__name__)


def inspect(
    modes: Mapping[str, Mode], check: Check, decide: Decide, prepare: Prepare = lambda server, tool, schema: None
) -> Guard:
    """`modes` says how strict to be with each server; `decide` what a client may read."""
    inspected, checking = inspect_params(modes), asyncio.Lock()

    async def guard(call: Call, inner: Handler) -> Outcome:
        # Step 12 of docs/explanation/performance.md
        target = call.target
        mode = "off" if target is None else modes[target.server]
        if target is None or mode == "off":
            return await inner(call)
        outcome = await inner(_with_inspected_emit(call, target, mode, decide))
        if isinstance(outcome, Result):
            if target.item is not None and "outputSchema" in target.item:
                await _prepared(target, target.item["outputSchema"], prepare, checking)
            text, strict = _encoded(outcome), mode == "block"
            is_long = text is not None and len(text) > VALUES and is_large(text)
            if text is None or is_long or call.method == "tasks/get":
                judged = await _inspect_in_turns(call, target, outcome, text, strict, check, inspected, checking)
            else:
                found: set[str] = set()
                value = outcome.value if is_plain_json(text) else await _clean_in_turns(outcome.value, found, None)
                judged = _inspect_result(_as_answered(call), target, outcome, value, found, strict, check)
            if (
                isinstance(judged, Result)
                and judged.reason is None
                and links.may_hold(text if judged is outcome else _encoded(judged), judged.value)
                and call.trail.parts is None  # else the URIs are Sluice's own
            ):
                judged = await _judge_links(judged, Links(call, target, decide), strict)
            if is_long and (text is None or len(text) > _LONG):
                await asyncio.sleep(0)  # it was read once more, and will be encoded
            return judged
        if isinstance(outcome, InputRequired):
            return await _inspect_asks(call, outcome, mode == "block", Links(call, target, decide))
        return await _cleaned(outcome, inspected, target.server, Links(call, target, decide), mode == "block")

    return guard


async def _prepared(target: Target, schema: Any, prepare: Prepare, checking: asyncio.Lock) -> None:
    if (preparing := prepare(target.server, target.own, schema)) is not None:
        await budget_of(target.server).apart(checking, preparing)


async def _inspect_in_turns(
    call: Call, target: Target, outcome: Result, text: bytes | None, strict: bool, check: Check,
    inspected: InspectParams, checking: asyncio.Lock,
) -> Outcome:  # fmt: skip
    """A result that may be large: a megabyte takes each of us a millisecond, and small calls have a turn between."""
    budget = budget_of(target.server) if text is None or (len(text) > VALUES and is_large(text)) else None
    if budget is None:
        return await _inspect_task(call, target, outcome.value, strict, check, inspected, None, checking)
    if text is None or len(text) > _LONG:
        await asyncio.sleep(0)
    since = budget.now()
    is_plain = text is not None and is_plain_json(text)
    budget.charge_since(since)
    if call.method == "tasks/get":
        judged = await _inspect_task(call, target, outcome.value, strict, check, inspected, budget, checking)
    else:
        found: set[str] = set()
        value = outcome.value if is_plain else await _clean_in_turns(outcome.value, found, budget)
        inspecting = partial(_inspect_result, _as_answered(call), target, outcome, value, found, strict, check)
        judged = await _inspect_large(budget, checking, inspecting, target)
    return judged


def inspect_params(modes: Mapping[str, Mode]) -> InspectParams:
    """For the notifications of servers, and for their questions outside of calls. There policy has no client that it
    could decide for, so that under `block` no resource passes."""

    def inspected(server: str, params: Json) -> Json | None:
        mode = modes.get(server, "off")
        text = "" if mode == "off" else text_of(params)
        if mode == "block" and links.MARK in text and len(text) <= _MAX_AT_ONCE and links.holds_any(params):
            log.info("withheld a notification or question of %s: a resource", server)
            return None
        return params if len(text) <= _MAX_AT_ONCE and is_plain(text) else _inspect_notice(server, mode, params, text)

    return inspected


def _inspect_notice(server: str, mode: Mode, params: Json, text: str) -> Json | None:
    """What has to be cleaned, or is too long for that."""
    if len(text) > _MAX_CLEANED:
        log.info("withheld a notification or question of %s: too long to be cleaned", server)
        return None
    found: set[str] = set()
    value: Json = _clean(params, found)
    if found and mode == "block":
        log.info("withheld a notification or question of %s: %s", server, ", ".join(sorted(found)))
        return None
    return _marked(value, found) if found else value


def inspect_task_state(inspected: InspectParams, server: str, task: Json) -> Json:
    """A task as its client may see it, without its result. Under `block` only harmless members of its state stay."""
    shown = inspected(server, task)
    if shown is not None:
        return shown
    return {key: part for key, part in task.items() if key in TASK_STATE and inspected(server, {key: part}) is not None}


def _clean(value: Any, found: set[str]) -> Any:
    """Cleaned; what is changed may have become a name that only Sluice may use."""
    cleaned = clean(value, found)
    return value if cleaned is value else reserved_keys.strip(cleaned)


async def _clean_in_turns(value: Any, found: set[str], budget: LoopBudget | None) -> Any:
    """The same. With a budget the value is large, and others have their turn meanwhile; nobody else has the value."""
    if budget is None:
        return _clean(value, found)
    cleaned = await budget.in_pieces(clean_in_pieces(value, found))
    return value if cleaned is value else reserved_keys.strip(cleaned)


async def _judge_links(outcome: Result, found: Links, strict: bool) -> Result:
    if not await found.in_result(outcome.value):
        return outcome
    value = await found.without(outcome.value) if strict else outcome.value
    return Result(_marked(value, {*_marks(outcome.value), links.FLAG}))


def _encoded(outcome: Result) -> bytes | None:
    """As it will be sent, where nothing changes it; none where JSON cannot say it: who sends it will say so."""
    try:
        return outcome.text
    except Malformed:
        return None


def _as_answered(call: Call) -> Call:
    """The result of a task is that of the call which it was made of (2025-11-25 basic/utilities/tasks)."""
    return replace(call, method="tools/call") if call.method == "tasks/result" else call


async def _inspect_task(
    call: Call, target: Target, task: Json, strict: bool, check: Check, inspected: InspectParams,
    budget: LoopBudget | None, checking: asyncio.Lock,
) -> Outcome:  # fmt: skip
    """The extension tells the result together with the task (SEP-2663), and the questions."""
    found: set[str] = set()
    reason = None
    shown: Json = await _clean_in_turns({key: part for key, part in task.items() if key not in _PARTS}, found, budget)
    if found and strict:
        needed = {key: part for key, part in task.items() if key in TASK_STATE}
        shown = inspect_task_state(inspected, target.server, needed)
    elif found:
        shown = _marked(shown, found)
    if isinstance(result := task.get("result"), dict):
        answered = replace(call, method="tools/call")
        found = set()
        cleaned = await _clean_in_turns(result, found, budget)
        inspecting = partial(_inspect_result, answered, target, Result(result), cleaned, found, strict, check)
        judged = inspecting() if budget is None else await _inspect_large(budget, checking, inspecting, target)
        assert isinstance(judged, Result)  # what is withheld from a call of a tool is a result, too
        shown, reason = {**shown, "result": judged.value}, judged.reason
    if isinstance(requests := task.get("inputRequests"), dict):
        asks = await _inspect_asks(call, InputRequired(requests), strict)
        if not isinstance(asks, InputRequired):
            return asks
        shown = {**shown, "inputRequests": asks.requests}
    if "error" in task:
        shown |= await _clean_in_turns({"error": task["error"]}, set(), budget)
    return Result(shown, reason=reason)


def _inspect_result(
    call: Call, target: Target, outcome: Result, value: Json, found: set[str], strict: bool, check: Check
) -> Outcome:
    """`value` is the outcome's, cleaned, and `found` what was in it."""
    if value is not outcome.value:
        value = union_members.result(call.method, value)
    if call.method == "tools/call" and target.item is not None and "outputSchema" in target.item:
        judged = check(target.server, target.own, target.item["outputSchema"], value)
        if judged is not None:
            found.add(judged[0])
            log.debug("%s of %s: %s: %r", target.own, target.server, *judged)
    if strict and found - _HARMLESS:
        what = _FAILED if value.get("isError") is True else _EXECUTED
        return _withhold(call, target, found - _HARMLESS, what)
    if found:
        return Result(_marked(value, found), reason=outcome.reason)
    return outcome


async def _inspect_large(
    budget: LoopBudget, checking: asyncio.Lock, inspecting: Callable[[], Outcome], target: Target
) -> Outcome:
    """In a thread where the server has a schema for results: to check a megabyte against it takes long."""
    if target.item is not None and "outputSchema" in target.item:
        return await budget.apart(checking, inspecting)
    since = budget.now()
    judged = inspecting()
    await budget.charge_and_yield(since)
    return judged


async def _inspect_asks(call: Call, outcome: InputRequired, strict: bool, look: Links | None = None) -> Outcome:
    """A question is for a person or for a model at the client, and each carries its own marks."""
    requests = {}
    for key, ask in outcome.requests.items():
        found: set[str] = set()
        ask = await _clean_in_turns(ask, found, None if call.target is None else budget_of(call.target.server))
        if look is not None and await look.found(ask):
            found.add(links.FLAG)
        if found and strict and call.target is not None:
            return _withhold(call, call.target, found, "The server began this, but its question")
        params = ask.get("params") if isinstance(ask, dict) else None
        requests[key] = {**ask, "params": _marked(params, found)} if found and isinstance(params, dict) else ask
    return replace(outcome, requests=requests)


def _withhold(call: Call, target: Target, found: set[str], what: str) -> Outcome:
    """Says nothing in the server's words: they may be what the result is withheld for."""
    log.info("withheld an answer of %s to %s: %s", target.server, call.client.principal, ", ".join(sorted(found)))
    things = " and ".join(WORDS[flag] for flag in sorted(found))
    text = f"{what} is withheld: it has {things} (servers.{target.server}.results: block)."
    return refuse(call.method, "result_withheld", text)


def _marks(value: Json) -> list[str]:
    meta = value.get("_meta")
    return list(meta.get(FLAGS, [])) if isinstance(meta, dict) else []


def _marked(value: Json, found: set[str]) -> Json:
    meta = value.get("_meta")
    return {**value, "_meta": {**(meta if isinstance(meta, dict) else {}), FLAGS: sorted(found)}}


async def _cleaned(
    outcome: Failure | TaskStarted, inspected: InspectParams, server: str, look: Links, strict: bool
) -> Outcome:  # fmt: skip
    if isinstance(outcome, TaskStarted):
        shown = Result(inspect_task_state(inspected, server, outcome.task))
        return TaskStarted((await _judge_links(shown, look, strict)).value)
    found: set[str] = set()
    message, data = await budget_of(server).in_pieces(clean_in_pieces([outcome.message, outcome.data], found))
    reserved_keys.strip({"error": {"data": data}} if found else None)
    if await look.found(data):
        found.add(links.FLAG)
        data = (await look.without(data) if isinstance(data, dict) else await look.cut(data)) if strict else data
        data = {**data, FLAGS: [links.FLAG]} if isinstance(data, dict) else data
    return Failure(outcome.code, message, data, outcome.reason) if found else outcome


def _with_inspected_emit(call: Call, target: Target, mode: Mode, decide: Decide) -> Call:
    emit = partial(_emit_inspected, call, target, mode, decide)
    # Spelled out, for every call comes through here and `replace` takes twice as long.
    return Call(call.client, call.method, call.params, call.meta, call.target, call.mirrored, emit, call.trail)


async def _emit_inspected(call: Call, target: Target, mode: Mode, decide: Decide, notification: Notification) -> None:
    params: Json | None = notification.params
    text = text_of(params)
    if len(text) > _MAX_CLEANED:
        is_clean = await budget_of(target.server).in_pieces(is_plain_in_pieces(text))
    else:
        is_clean = is_plain(text)
    if not is_clean:
        params = _inspect_notice(target.server, mode, notification.params, text)
        text = text_of(params)
    if params is not None and links.MARK in text and await Links(call, target, decide).found(params):
        is_clean = False
        params = _with_links(target.server, mode, params)
    if params is not None:
        await call.emit(notification if is_clean else Notification(notification.method, params))


def _with_links(server: str, mode: Mode, params: Json) -> Json | None:
    if mode == "block":
        log.info("withheld a notification of %s: %s", server, WORDS[links.FLAG])
        return None
    return _marked(params, {*_marks(params), links.FLAG})
