"""Resources that stand in an answer: links to them and their contents, which policy did not judge with the call.

One rule for content blocks, messages, contents and structured content: whatever has the form of a link or of an
embedded resource is one. A link is fine if its client may know of the resource; contents if it may read it without an
approval. Web pages are no resources: clients fetch those themselves (2026-07-28 server/resources#common-uri-schemes).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from sluicegate.catalog.uris import is_clean
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Call, Decision, Target, Verdict
from sluicegate.runtime.loop_budget import STEP, budget_of

Decide = Callable[[Call, Target], Decision]
"""What a client may do with a resource, as for a read of it."""

FLAG: Final = "resources"
MAX_LINKS: Final = 1000
"""URIs of one answer that policy decides on. Its client may not read what the answer names beyond them."""
TAKEN_OUT: Final[Json] = {"type": "text", "text": "[Sluice took out a resource that this client may not read.]"}
_WEB: Final = ("http:", "https:")  # 6 characters at most
_MARKS: Final = (b'"resource', b'"contents"')


def may_hold(text: bytes | None) -> bool:
    """Whether a resource may stand in a result, given as JSON. A no is sure."""
    return text is None or any(mark in text for mark in _MARKS)


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
            await self._budget.spend(self._since)
            self._since = self._budget.now()

    def _may(self, uri: Any, is_content: bool) -> bool:
        if not isinstance(uri, str) or uri == self._asked or (not is_content and uri[:6].lower().startswith(_WEB)):
            return True
        verdict = self._verdicts.get(uri)
        if verdict is None:
            if len(self._verdicts) >= MAX_LINKS or not is_clean(uri):
                return False
            verdict = self._decide(self._call, Target(self._server, "res", uri, uri)).verdict
            self._verdicts[uri] = verdict
        return verdict is Verdict.ALLOW or (verdict is Verdict.ASK and not is_content)

    def _is_bad(self, item: Json) -> bool:
        if isinstance(inner := item.get("resource"), dict) and not self._may(inner.get("uri"), is_content=True):
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
            if self._may(part.get("uri"), is_content=True):
                readable.append(part)
        return readable

    async def without(self, value: Json) -> Json:
        """The result without them; structured content goes as a whole, since what it says is one thing."""
        made = {key: await self._cut(part) for key, part in value.items() if key != "structuredContent"}
        if "contents" in made:
            made["contents"] = await self._readable(_contents(value))
        if "structuredContent" in value and not await self.found(value["structuredContent"]):
            made["structuredContent"] = value["structuredContent"]
        return made

    async def _cut(self, value: Any) -> Any:
        await self._let_others_run()
        if isinstance(value, list):
            return [await self._cut(part) for part in value]
        if not isinstance(value, dict):
            return value
        return TAKEN_OUT if self._is_bad(value) else {key: await self._cut(part) for key, part in value.items()}


def _contents(value: Json) -> list[Json]:
    contents = value.get("contents")
    return [part for part in contents if isinstance(part, dict)] if isinstance(contents, list) else []
