"""Resources that stand in an answer: links to them and their contents, which policy did not judge with the call.

One rule for content blocks, messages, contents and structured content: whatever has the form of a link or of an
embedded resource is one. A link is fine if its client may know of the resource; contents if it may read it without an
approval. Web pages are no resources: clients fetch those themselves (2026-07-28 server/resources#common-uri-schemes).
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sluicegate.catalog.uris import is_clean
from sluicegate.protocol.jsonrpc import Json, without
from sluicegate.protocol.model import Call, Decision, Target, Verdict
from sluicegate.runtime.loop_budget import STEP, budget_of

Decide = Callable[[Call, Target], Decision]
"""What a client may do with a resource, as for a read of it."""

FLAG: Final = "resources"
MAX_LINKS: Final = 1000
"""URIs of one answer that policy decides on. Its client may not read what the answer names beyond them."""
TAKEN_OUT: Final[Json] = {"type": "text", "text": "[Sluice took out a resource that this client may not read.]"}
MARK: Final = "resource"
"""Stands in every text of which a part has the form of a link or of an embedded resource."""
_WEB: Final = ("http:", "https:")  # 6 characters at most
_LINK: Final = frozenset({"type", "uri", "resource"})
_CONTENTS: Final = frozenset({"text", "blob"})
_MAX_READ: Final = 64 * 1024
"""Characters of a text that is read as JSON in one step; a longer one that begins like JSON is not read."""


def may_hold(text: bytes | None, value: Json) -> bool:
    """Whether a result, whose JSON is `text`, may hold a resource. False is certain. A search from the end skips what
    cannot match (CPython, stringlib/fastsearch.h): it takes 2 us for 28 KiB, and one from the beginning 12."""
    return text is None or "contents" in value or text.rfind(b'"resource') >= 0


def holds_any(value: Any) -> bool:
    """Whether anything in a JSON value has the form of a link, or of an embedded resource."""
    todo = [value]
    for one in todo:  # which grows meanwhile
        if isinstance(one, dict):
            if _embedded(one) is not None or (one.get("type") == "resource_link" and isinstance(one.get("uri"), str)):
                return True
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return False


def _embedded(item: Json) -> Json | None:
    """The contents in a block. In structured content any name may mean anything, so that they have a URI there, or the
    form of contents."""
    inner = item.get("resource")
    if not isinstance(inner, dict):
        return None
    is_block = item.get("type") == "resource" and not inner.keys().isdisjoint(_CONTENTS)
    return inner if is_block or isinstance(inner.get("uri"), str) else None


class Links:
    """Looks for what the client of one call may not read of one server. Others have their turn after each `STEP`.
    Policy decides on each URI once, so that what is taken out is what was found."""

    def __init__(self, call: Call, target: Target, decide: Decide) -> None:
        self._call = replace(call, method="resources/read")
        self._server = target.server
        self._asked = target.own if target.kind == "res" else None
        self._decide = decide
        self._verdicts: dict[str, Verdict] = {}
        self._budget = budget_of(target.server)
        self._since = self._budget.now()

    async def _let_others_run(self) -> None:
        if self._budget.now() - self._since >= STEP:
            await self._budget.charge_and_rest(self._since)
            self._since = self._budget.now()

    def _may(self, uri: Any, is_content: bool) -> bool:
        if not isinstance(uri, str):
            return not is_content  # without a URI nobody knows what it is
        if uri == self._asked or (not is_content and uri[:6].lower().startswith(_WEB)):
            return True
        verdict = self._verdicts.get(uri)
        if verdict is None:
            if len(self._verdicts) >= MAX_LINKS or not is_clean(uri):
                return False
            verdict = self._decide(self._call, Target(self._server, "res", uri, uri)).verdict
            self._verdicts[uri] = verdict
        return verdict is Verdict.ALLOW or (verdict is Verdict.ASK and not is_content)

    def _is_bad(self, item: Json) -> bool:
        if (inner := _embedded(item)) is not None and not self._may(inner.get("uri"), is_content=True):
            return True
        return item.get("type") == "resource_link" and not self._may(item.get("uri"), is_content=False)

    async def found(self, value: Any) -> bool:
        """Whether anything in a JSON value is such a link, or such contents."""
        todo = [value]
        for one in todo:  # which grows meanwhile
            await self._let_others_run()
            if isinstance(one, dict):
                if self._is_bad(one):
                    return True
                todo += one.values()
            elif isinstance(one, list):
                todo += one
        return False

    async def in_result(self, value: Json) -> bool:
        contents = _contents(value)
        return len(await self._readable(contents)) < len(contents) or await self.found(value)

    async def _readable(self, contents: list[Json]) -> list[Json]:
        readable = []
        for part in contents:
            await self._let_others_run()
            if self._may(part.get("uri", self._asked), is_content=True):
                readable.append(part)
        return readable

    async def without(self, value: Json) -> Json:
        """The result, or the data of an error, without them."""
        made = await self._cut_members(value)
        if "contents" in made:
            made["contents"] = await self._readable(_contents(value))
        return without(made, _LINK) if self._is_bad(value) else made

    async def cut(self, value: Any) -> Any:
        """Any JSON value without them."""
        await self._let_others_run()
        if isinstance(value, list):
            return [await self.cut(part) for part in value]
        if not isinstance(value, dict):
            return value
        return TAKEN_OUT if self._is_bad(value) else await self._cut_members(value)

    async def _cut_members(self, value: Json) -> Json:
        """Structured content goes as a whole, since what it says is one thing, and so do the texts that say it again
        (2025-11-25 server/tools#structured-content)."""
        structured = value.get("structuredContent")
        is_bad = structured is not None and await self.found(structured)
        made = {key: await self.cut(part) for key, part in value.items() if key != "structuredContent" or not is_bad}
        if is_bad and isinstance(made.get("content"), list):
            made["content"] = [TAKEN_OUT if await self._is_copy(block) else block for block in made["content"]]
        return made

    async def _is_copy(self, block: Any) -> bool:
        """Whether a block is a text that says in JSON what may not be read."""
        text = block.get("text") if isinstance(block, dict) else None
        if not isinstance(text, str) or text.lstrip()[:1] not in ("{", "["):
            return False
        await self._let_others_run()
        try:
            return len(text) > _MAX_READ or await self.found(json.loads(text))
        except RecursionError:
            return True
        except ValueError:
            return False


def _contents(value: Json) -> list[Json]:
    contents = value.get("contents")
    return [part for part in contents if isinstance(part, dict)] if isinstance(contents, list) else []
