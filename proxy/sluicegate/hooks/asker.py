"""Asks hooks about a call, all that are due at once, each within its time and over connections that stay open.

What a hook is shown is masked as in the audit log, unless it `sees_whole`; no credential is among it. A hook that is
slow, down or wrong has no verdict, which refuses the call unless the operator chose to let it pass. An answer is
remembered as long as its Cache-Control says (RFC 9111 section 5.2.2.1), for the same question alone.
"""

from __future__ import annotations  # httpx is imported at its first use

import asyncio
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from sys import getsizeof
from typing import Any, Final

import anyio
import anyio.to_thread
import httpx
import standardwebhooks

from sluicegate.audit.record import is_small
from sluicegate.audit.redact import MAX_TEXT, Redactor
from sluicegate.audit.redact import dump as redacted_json
from sluicegate.hooks import messages
from sluicegate.hooks.messages import MAX_ANSWER, NoVerdict
from sluicegate.hooks.settings import HookSettings
from sluicegate.http.client.pool import HttpClient
from sluicegate.policy.hooked import HookVerdict, On
from sluicegate.policy.profiles import ApprovalProfile
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.jsonrpc import Json, dump
from sluicegate.protocol.model import Call, Client, Target
from sluicegate.runtime.concurrency_limit import ConcurrencyLimit
from sluicegate.runtime.deadline import AnswerDeadline
from sluicegate.runtime.loop_budget import budget_of, client_budgets

AT_ONCE: Final = 64
"""Questions to one hook. More wait for their turn, and clients have equal shares of both."""
MAX_WAITING: Final = 32 * AT_ONCE
NO_TURN: Final = "it has too many questions"
SILENT: Final = "it answers nobody"
_NEARLY: Final = 0.9  # of the time to wait for a turn: timers ring a little early
MAX_CACHED: Final = 16 * 1024 * 1024
"""Bytes of one hook's answers. Each counts with the size of its texts and `_ENTRY`."""
_ENTRY: Final = 1024
MAX_AGE: Final = 300.0
_MAX_DUE: Final = 10_000
_MAX_TEXT, _MAX_NODES, _MAX_CHARS = 64 * 1024, 20_000, 256 * 1024  # of what is masked
_SMALL: Final = 4 * 1024  # bytes that are masked, signed and copied in the event loop
_HEADERS: Final = ((b"content-type", b"application/json"), (b"accept", b"application/json"), (b"user-agent", b"sluice"))
_AGE: Final = re.compile(r"(?:^|[\s,])max-age=([0-9]{1,9})(?:$|[\s,])", re.IGNORECASE)
_FLAGS: Final = (b"false", b"true")
_NONE: Final[tuple[HookSettings, ...]] = ()

_Value = tuple[bytes, Json, bytes | None]
"""A value with its name, and its JSON where somebody has made that already."""
Told = Callable[[HookVerdict], object]


class Hook:
    """One of them, with its connections and what it said that still counts."""

    def __init__(self, settings: HookSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self.settings = settings
        self._clock = clock
        self._turns = ConcurrencyLimit(AT_ONCE, MAX_WAITING, clock)
        self._client: HttpClient | None = None
        self._url: httpx.URL | None = None
        self._lock = anyio.Lock()
        self._cached: OrderedDict[bytes, tuple[float, HookVerdict, int]] = OrderedDict()  # until when, what, how large
        self._size = self._answers = 0
        self._unanswered: dict[str, float] = {}  # when questions of the last two clients had no answer in their time

    async def ask(self, on: On, body: bytes, key: bytes, id: str, principal: str) -> HookVerdict:
        """`key` is the digest of the body, `id` that of the call, and `principal` its client. Never raises: without an
        answer the verdict is `failed`."""
        settings, began = self.settings, self._clock()
        cached = self._cached.get(key)
        if cached is not None and cached[0] > began:
            return replace(cached[1], seconds=0.0, is_cached=True)
        answers = self._answers
        if not await self._turns.enter(principal, settings.timeout):
            # Clients that call too much get past no hook that answers, had no time to, or is slow on what they ask.
            others = any(one != principal and at >= began for one, at in self._unanswered.items())
            is_silent = self._answers == answers and self._clock() - began > _NEARLY * settings.timeout and others
            failed = self._failed(on, SILENT if is_silent else NO_TURN, began)
            return replace(failed, passes=settings.passes and is_silent)
        try:
            with AnswerDeadline(settings.timeout, settings.timeout):
                verdict, age = await self._exchange(on, body, id)
        except TimeoutError:
            self._unanswered.pop(principal, None)
            self._unanswered[principal] = self._clock()
            if len(self._unanswered) > 2:
                del self._unanswered[next(iter(self._unanswered))]
            return self._failed(on, f"no answer within {settings.timeout:g} s", began)
        except NoVerdict as error:
            return self._failed(on, str(error), began)
        except (httpx.HTTPError, OSError) as error:
            return self._failed(on, type(error).__name__, began)
        finally:
            self._turns.leave(principal)
        self._answers += 1
        verdict = verdict.took(self._clock() - began)
        if age > 0:
            self._remember(key, verdict, age)
        return verdict

    def _remember(self, key: bytes, verdict: HookVerdict, age: float) -> None:
        size = _ENTRY + sum(map(getsizeof, (verdict.reason, verdict.profile, *verdict.pointers)))
        if (before := self._cached.pop(key, None)) is not None:
            self._size -= before[2]
        self._cached[key] = (self._clock() + age, verdict, size)
        self._size += size
        while self._size > MAX_CACHED:
            self._size -= self._cached.popitem(last=False)[1][2]

    def _failed(self, on: On, why: str, began: float) -> HookVerdict:
        settings = self.settings
        return HookVerdict(settings.name, on, "failed", why, seconds=self._clock() - began, passes=settings.passes)

    async def _exchange(self, on: On, body: bytes, id: str) -> tuple[HookVerdict, float]:
        settings = self.settings
        headers: tuple[tuple[bytes, bytes], ...] = _HEADERS
        if settings.secret:
            signed = partial(_signed, settings.secret, f"{id}-{on}", body)
            headers = (*_HEADERS, *(signed() if len(body) <= _SMALL else await anyio.to_thread.run_sync(signed)))
        client = self._client or await self._open()
        assert self._url is not None
        reply = await client.exchange(self._url, headers, body)
        try:
            if reply.status != 200:
                raise NoVerdict(f"HTTP {reply.status}")
            data = reply.content
            if data is None:
                read = bytearray()
                async for chunk in reply:
                    read += chunk
                    if len(read) > MAX_ANSWER:
                        break
                data = bytes(read)
            if len(data) > MAX_ANSWER:
                raise NoVerdict(f"more than {MAX_ANSWER} bytes")
            verdict = messages.read(on, settings.form, settings.name, data)
            control = reply.headers.get(b"cache-control")
            return verdict, 0.0 if control is None else _age(control)
        finally:
            reply.close()

    async def _open(self) -> HttpClient:
        async with self._lock:
            if self._client is None:
                url = httpx.URL(self.settings.url)
                # A thread reads the system's certificates, which takes 20 ms.
                context = await anyio.to_thread.run_sync(httpx.create_ssl_context) if url.scheme == "https" else None
                self._url = url
                self._client = HttpClient(
                    ssl_context=context, connect_timeout=self.settings.timeout, max_idle=AT_ONCE
                )  # fmt: skip
        return self._client

    async def aclose(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class Hooks:
    """`classify` gives a target's class; `profiles` are those that a hook may name; `told` hears of each verdict.
    `roles_of` gives the roles of a client by the policy of that `revision`."""

    def __init__(
        self, settings: Sequence[HookSettings], redactor: Redactor, classify: Callable[[Target], str],
        profiles: Callable[[], Mapping[str, ApprovalProfile]], told: Told = lambda verdict: None,
        roles_of: Callable[[Client], frozenset[str]] = lambda client: frozenset(), revision: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        self._hooks = {one.name: Hook(one) for one in settings}
        self._redactor, self._classify, self.profiles, self._told = redactor, classify, profiles, told
        self._roles_of, self._revision = roles_of, revision
        self._due: dict[tuple[Any, ...], tuple[HookSettings, ...]] = {}
        self._heads: dict[tuple[Any, ...], bytes] = {}
        self._ons = frozenset().union(*(one.on for one in settings))
        self.masking = asyncio.Lock()  # one large value at a time is masked or redacted

    def has(self, on: On) -> bool:
        return on in self._ons

    def due(self, on: On, client: Client, target: Target) -> tuple[HookSettings, ...]:
        """Those that are asked, in the order of the config."""
        if on not in self._ons:
            return _NONE
        own = target.own if target.kind == "tool" else ""  # hooks go by names of tools alone
        key = (
            on, client.principal, client.roles, target.server, target.kind, own, target.is_unlisted, self._revision(),
        )  # fmt: skip
        found = self._due.get(key)
        if found is None:
            if len(self._due) >= _MAX_DUE:
                self._due.clear()
            held = self._roles_of(client)
            named = (one.settings for one in self._hooks.values())
            found = tuple(one for one in named if one.is_about(on, client, target, held))
            self._due[key] = found
        return found

    def is_known(self, name: str) -> bool:
        return name in self._hooks

    def about_call(
        self, call: Call, target: Target, due: Sequence[HookSettings]
    ) -> Awaitable[tuple[HookVerdict, ...]]:
        """What each of them says of it."""
        return self._ask_all("call", call, target, due, ())

    def about_result(
        self, call: Call, target: Target, due: Sequence[HookSettings], value: Json, text: bytes
    ) -> Awaitable[tuple[HookVerdict, ...]]:
        """The same of a result; `text` is its JSON."""
        return self._ask_all("result", call, target, due, ((b"result", value, text),))

    async def _ask_all(
        self, on: On, call: Call, target: Target, due: Sequence[HookSettings], result: tuple[_Value, ...]
    ) -> tuple[HookVerdict, ...]:
        arguments = call.params.get("arguments")
        if not isinstance(arguments, dict):
            arguments = {}
        is_short = is_small(arguments) and (not result or len(result[0][2] or b"") <= _SMALL)
        head, values = self._head(on, call, target), ((b"arguments", arguments, None), *result)
        if is_short:
            asked = self._questions(head, target, due, values, is_short)
        else:
            peer = budget_of(target.server) if result else client_budgets()[call.client.principal]
            asked = await peer.apart(self.masking, partial(self._questions, head, target, due, values, is_short))
        if len(due) == 1:
            verdicts = [await self._hooks[due[0].name].ask(on, *asked[0], call.trail.id, call.client.principal)]
        else:
            verdicts = await self._each(on, due, asked, call)
        for verdict in verdicts:
            self._told(verdict)
        return tuple(verdicts)

    async def _each(
        self, on: On, due: Sequence[HookSettings], asked: Sequence[tuple[bytes, bytes]], call: Call
    ) -> list[HookVerdict]:
        found: dict[str, HookVerdict] = {}

        async def ask(name: str, body: bytes, key: bytes) -> None:
            found[name] = await self._hooks[name].ask(on, body, key, call.trail.id, call.client.principal)

        async with anyio.create_task_group() as group:
            for one, question in zip(due, asked, strict=True):
                group.start_soon(ask, one.name, *question)
        return [found[one.name] for one in due]

    def _head(self, on: On, call: Call, target: Target) -> bytes:
        """Who calls what, as JSON without its end. Most calls are of a few clients and tools."""
        client, class_, name = call.client, self._classify(target), call.client.info.get("name")
        name = name[: messages.MAX_NAME] if isinstance(name, str) else ""  # a client may write megabytes
        key = (
            on, call.method, client.principal, client.roles, client.owner, client.revision, client.toolset,
            name, target.server, target.kind, target.own, target.public, class_,
        )  # fmt: skip
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= _MAX_DUE:
                self._heads.clear()
            head = dump(self._about(on, call, target, class_, name))[:-1]
            if target.kind != "res":  # of which there may be any number, and long ones
                self._heads[key] = head
        return head

    def _about(self, on: On, call: Call, target: Target, class_: str, name: str) -> Json:
        if target.kind == "res":  # a URI may hold a credential
            own, public = (self._redactor.written(text) for text in (target.own, target.public))
            target = replace(target, own=own, public=public)
        return messages.about(on, call, target, class_, name)

    def _questions(
        self, head: bytes, target: Target, due: Sequence[HookSettings], values: Sequence[_Value], is_short: bool
    ) -> list[tuple[bytes, bytes]]:
        """The body and its digest, for each of those that are due. `is_short`: all values are."""
        bodies: dict[bool, bytes] = {}
        asked = []
        for one in due:
            body = bodies.get(one.sees_whole)
            if body is None:
                body = bodies[one.sees_whole] = self._body(head, target, one.sees_whole, values, is_short)
            if one.form == "opa":
                body = b'{"input":%b}' % body
            asked.append((body, sha256(body).digest()))
        return asked

    def _body(
        self, head: bytes, target: Target, is_whole: bool, values: Sequence[_Value], is_short: bool
    ) -> bytes:  # fmt: skip
        shown, is_cut = b"", False
        for name, value, text in values:
            if is_whole:
                shown_value = dump(value) if text is None else text
            else:
                shown_value, cut = self._masked(target, value, is_short or len(text or dump(value)) <= MAX_TEXT)
                is_cut = is_cut or cut
            shown += b',"%b":%b' % (name, shown_value)
        return b'%b,"masked":%b,"cut":%b%b}' % (head, _FLAGS[not is_whole], _FLAGS[is_cut], shown)

    def _masked(self, target: Target, value: Json, is_short: bool) -> tuple[bytes, bool]:
        tool = f"{target.server}/{target.own}"
        # No other thread runs while a value becomes canonical: a long one is walked, which is bounded.
        if is_short and self._redactor.is_innocent(whole := canonical(value), tool):
            return whole.encode("ascii"), False
        masked, is_cut = self._redactor.masked(value, tool, _MAX_TEXT, _MAX_NODES, _MAX_CHARS)
        shown = canonical(masked)  # in one order of members, however it was found: answers are remembered by the text
        return (redacted_json(masked) if "\\ud" in shown else shown).encode("ascii"), is_cut

    async def aclose(self) -> None:
        for hook in self._hooks.values():
            await hook.aclose()


def _signed(secret: str, id: str, body: bytes) -> tuple[tuple[bytes, bytes], ...]:
    """Standard Webhooks (https://www.standardwebhooks.com), as `approvals.notify` has it."""
    now = datetime.now(UTC)
    signature = standardwebhooks.Webhook(secret).sign(id, now, body.decode("utf-8"))
    return (
        (b"webhook-id", id.encode("ascii", "replace")), (b"webhook-timestamp", str(int(now.timestamp())).encode()),
        (b"webhook-signature", signature.encode("ascii")),
    )  # fmt: skip


def _age(header: bytes) -> float:
    text = header.decode("latin-1")
    found = _AGE.search(text)
    if found is None or "no-store" in text.lower() or "no-cache" in text.lower():
        return 0.0
    return min(float(found[1]), MAX_AGE)
