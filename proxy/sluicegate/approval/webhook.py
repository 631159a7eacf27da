"""Telling a webhook that somebody is needed: signed, in the form of Standard Webhooks (https://www.standardwebhooks.com),
or in the form of a chat service, whose address is the credential.

What is told is a pointer: it has the command to decide with, and decides nothing by itself. A receiver that is down,
slow or wrong loses nothing: each approval is told again, ever more rarely, until it was taken or nobody is needed any
more, across restarts too. Redirects are not followed, and no proxy of the environment sees anything.
"""

from __future__ import annotations  # httpx is imported at its first use

import json
import logging
import random
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from importlib import import_module
from typing import Final, Literal
from urllib.parse import urlsplit
from weakref import WeakValueDictionary

import anyio.to_thread
import httpx
import standardwebhooks
from anyio.abc import TaskGroup

from sluicegate.approval import presentation
from sluicegate.approval.queue import ApprovalQueue
from sluicegate.approval.record import Approval
from sluicegate.deferred import deferred_pattern
from sluicegate.http.client.pool import HttpClient
from sluicegate.policy.display import visible
from sluicegate.protocol.jsonrpc import Json

ChatFormat = Literal["slack", "teams", "ntfy"]
TITLE: Final = "Sluice: a call waits for approval"
MAX_NAME: Final = 200  # characters of a name, as it is shown
MAX_SLACK: Final = 3_000  # https://docs.slack.dev/reference/block-kit/blocks/section-block
MAX_TEAMS: Final = 18_000  # of arguments as JSON; a message has 28 KB: learn.microsoft.com/microsoftteams
MAX_NTFY: Final = 4_096  # bytes: https://docs.ntfy.sh/publish/#limitations; older servers mean the whole request
_CUT: Final = " ...(cut)"
_DECIDE: Final = "Look and decide in the console"
# What chat programs make links, mentions or dates of by themselves is broken up with brackets, and does nothing:
# host names, addresses, `scheme://`, `@name`, tags as in `<!channel>` and `<at>`, and `{{DATE()}}` of Adaptive Cards.
_LIVE: Final = deferred_pattern(r"(?<=\w)\.(?=[^\W\d_]|\d+\.)|(?<=\w):(?=//)|@(?=\w)|<(?=[/!@#\w])|\{(?=\{)")


def inert(text: str) -> str:
    """Visible words of a peer, of which nothing is a link, a mention or a function."""
    return _LIVE.sub(r"[\g<0>]", text)


def _name(text: str) -> str:
    return _fitting(inert(visible(text[: MAX_NAME + 1])), MAX_NAME, len)


@dataclass(frozen=True, slots=True)
class Notice:
    """What is told of an approval. `card` is its address in the console, or empty."""

    asks: str
    waits: str
    arguments: str
    command: str
    card: str


def notice(approval: Approval, details: Json, console: str) -> Notice:
    """`console` is where people reach the console, or empty. Arguments are masked, and cut at 2 KiB."""
    binding = approval.binding
    terms = binding.terms
    who, name = _name(binding.principal), _name(binding.own)
    until = presentation.stamp(approval.expires)
    return Notice(
        f"{who} asks for the {binding.kind} {binding.server}/{name} ({binding.class_}).",
        f"It waits until {until} for {_name(terms.describe())} (profile {terms.name}).",
        f"Arguments: {inert(presentation.preview(details))}",
        f"sluice approve {approval.id}",
        f"{console}/approvals/{approval.id}" if console else "",
    )


def request(form: ChatFormat, url: str, content: Notice) -> tuple[str, str]:
    """Where a message goes, and its body as JSON."""
    if form == "ntfy":
        parts = urlsplit(url)
        root, _, topic = parts.path.rpartition("/")
        return parts._replace(path=f"{root}/").geturl(), ntfy(content, topic)
    return url, json.dumps(slack(content) if form == "slack" else teams(content))


def slack(content: Notice) -> Json:
    """https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks"""
    how = f"Use `{content.command}`."
    if content.card:
        how = f"<{_escaped(content.card)}|{_DECIDE}>, or use `{content.command}`."
    return {
        "text": _slack_text(content.asks), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False,
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": TITLE, "emoji": False}},
            *(
                {"type": "section", "text": {"type": "plain_text", "text": _slack_text(text), "emoji": False}}
                for text in (content.asks, content.waits, content.arguments)
            ),
            {"type": "section", "text": {"type": "mrkdwn", "text": how, "verbatim": True}},
        ],
    }  # fmt: skip


def _slack_text(text: str) -> str:
    return _escaped(_fitting(text, MAX_SLACK, lambda part: len(_escaped(part))))


def _escaped(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def teams(content: Notice) -> Json:
    """For the trigger "When a Teams webhook request is received" of Workflows. A TextRun reads no Markdown."""
    arguments = _fitting(content.arguments, MAX_TEAMS, lambda part: len(json.dumps(part)))
    texts = (content.asks, content.waits, arguments, f"Command: {content.command}")
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": TITLE, "size": "Medium", "weight": "Bolder", "wrap": True},
            *({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]} for text in texts),
        ],
        "actions": [{"type": "Action.OpenUrl", "title": _DECIDE, "url": content.card}] if content.card else [],
    }  # fmt: skip
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}


def ntfy(content: Notice, topic: str) -> str:
    """https://docs.ntfy.sh/publish/#publish-as-json. No peer has a word in the title: ntfy decodes RFC 2047 there."""

    def whole(arguments: str) -> str:
        message = f"{content.asks}\n{content.waits}\n{arguments}\nCommand: {content.command}"
        body: Json = {"topic": topic, "title": TITLE, "message": message, "priority": 4, "tags": ["raised_hand"]}
        if content.card:
            body |= {"click": content.card, "actions": [{"action": "view", "label": _DECIDE, "url": content.card}]}
        return json.dumps(body, ensure_ascii=False)

    return whole(_fitting(content.arguments, MAX_NTFY, lambda arguments: len(whole(arguments).encode())))


def _fitting(text: str, limit: int, size: Callable[[str], int]) -> str:
    """The text, or its longest beginning of that size with a mark behind it."""
    if size(text) <= limit:
        return text
    end = bisect_right(range(len(text)), limit, key=lambda length: size(text[:length] + _CUT))
    return text[: max(0, end - 1)] + _CUT


TIMEOUT: Final = 10.0
FIRST_PAUSE: Final = 1.0
LAST_PAUSE: Final = 60.0
LONGEST_WAIT: Final = 600.0  # seconds, whatever a receiver's Retry-After says
AT_ONCE: Final = 4
"""Requests to one receiver. Each has its own places: one that is silent delays nobody else."""
_DELIVERED: Final = "approval/told/"

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Receiver:
    """`profiles` are those it is told of; none means all. `secret` is whsec_ and base64, for the format json alone.
    `console` is where people reach the console, for the link of a chat message; empty for none."""

    url: str
    secret: str
    profiles: frozenset[str] = frozenset()
    form: Literal["json"] | ChatFormat = "json"
    console: str = ""
    about: Callable[[Approval], bool] = lambda approval: True

    @property
    def mark(self) -> str:
        """It, in the store: an address may hold a secret."""
        return sha256(self.url.encode()).hexdigest()[:16]

    def __repr__(self) -> str:
        return f"Receiver({self.mark})"


class Webhooks:
    """`receivers` says who is to be told, at each approval anew: a reload may change it."""

    def __init__(
        self, queue: ApprovalQueue, receivers: Callable[[], tuple[Receiver, ...]], pause: float = FIRST_PAUSE
    ) -> None:
        self._queue, self._receivers, self._pause = queue, receivers, pause
        self._places = WeakValueDictionary[str, anyio.Semaphore]()  # by receiver, as long as somebody needs them
        self._busy: set[tuple[str, str]] = set()
        self.sent = self.failures = 0

    async def run(self) -> None:
        """Until it is cancelled. What waited before we began is told as well."""
        into, out = anyio.create_memory_object_stream[Approval](100_000)

        def watch(approval: Approval) -> None:
            if approval.is_waiting and not approval.votes:
                into.send_nowait(approval)

        self._queue.watchers.append(watch)
        http: HttpClient | None = None
        try:
            async with into, out, AsyncExitStack() as stack, anyio.create_task_group() as group:
                for approval in self._queue.open_ones():
                    watch(approval)
                async for approval in out:
                    if http is None and self._receivers():
                        # A thread reads the system's certificates, which takes 20 ms. No connection is reused: a
                        # request is lost if the receiver closes the connection meanwhile.
                        context = await anyio.to_thread.run_sync(httpx.create_ssl_context)
                        http = HttpClient(ssl_context=context, connect_timeout=TIMEOUT, max_idle=0)
                        stack.push_async_callback(http.aclose)
                    if http is not None:
                        self._tell_all(group, http, approval)
        finally:
            self._queue.watchers.remove(watch)

    def _tell_all(self, group: TaskGroup, http: HttpClient, approval: Approval) -> None:
        for receiver in self._receivers():
            key = (receiver.mark, approval.id)
            is_told = not receiver.profiles or approval.binding.terms.name in receiver.profiles
            if key not in self._busy and is_told and receiver.about(approval):
                self._busy.add(key)
                group.start_soon(self._tell, http, receiver, approval)

    async def _tell(self, http: HttpClient, receiver: Receiver, approval: Approval) -> None:
        key, pause, store = f"{_DELIVERED}{receiver.mark}/{approval.id}", self._pause, self._queue.book.store
        places = self._places.setdefault(receiver.mark, anyio.Semaphore(AT_ONCE))
        try:
            url, body = _request(receiver, approval, await self._queue.book.shown(approval.id))
            while await store.get(key) is None and await self._is_needed(approval):
                async with places:
                    wait = await self._send(http, receiver, approval, url, body)
                if wait is None:
                    self.sent += 1
                    await store.put(key, b"1", approval.binding.terms.expires)
                    return
                self.failures += 1
                await anyio.sleep(max(wait, pause * random.uniform(0.8, 1.2)))
                pause = min(2 * pause, LAST_PAUSE)
        finally:
            self._busy.discard((receiver.mark, approval.id))

    async def _is_needed(self, approval: Approval) -> bool:
        now = await self._queue.get(approval.id)
        return now is not None and now.is_waiting

    async def _send(
        self, http: HttpClient, receiver: Receiver, approval: Approval, url: str, body: str
    ) -> float | None:
        """None if it was taken, or the seconds that the receiver wants us to wait, 0 unless it says so."""
        try:
            with anyio.fail_after(TIMEOUT):
                reply = await http.exchange(httpx.URL(url), _headers(receiver, approval, body), body.encode())
                reply.close()
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError) as error:
            log.warning("webhook %s not reached: %s", receiver.mark, type(error).__name__)
            return 0.0
        if 200 <= reply.status < 300:
            return None
        log.warning("webhook %s did not take %s: %d", receiver.mark, approval.id, reply.status)
        return _seconds(reply.headers.get(b"retry-after", b"").decode("latin-1"))


def _request(receiver: Receiver, approval: Approval, details: Json) -> tuple[str, str]:
    """Where it is sent, and the body."""
    if receiver.form == "json":
        return receiver.url, json.dumps(payload(approval, details))
    content = notice(approval, details, receiver.console)
    return request(receiver.form, receiver.url, content)


def _headers(receiver: Receiver, approval: Approval, body: str) -> Iterator[tuple[bytes, bytes]]:
    """The same id each time, so that a receiver can tell a repetition."""
    yield from ((b"content-type", b"application/json"), (b"user-agent", b"sluice"))
    if receiver.form == "json":
        id, now = f"msg_{approval.id}", datetime.now(UTC)
        yield b"webhook-id", id.encode("ascii")
        yield b"webhook-timestamp", str(int(now.timestamp())).encode("ascii")
        yield b"webhook-signature", standardwebhooks.Webhook(receiver.secret).sign(id, now, body).encode("ascii")


def _seconds(after: str) -> float:
    """A Retry-After (RFC 9110 10.2.3), which is a number or a date; 0 if it is neither."""
    try:
        if after.isascii() and after.isdecimal():
            seconds = float(after)
        else:
            date: datetime = import_module("email.utils").parsedate_to_datetime(after)
            seconds = (date - datetime.now(UTC)).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return 0.0
    return min(max(0.0, seconds), LONGEST_WAIT)


def payload(approval: Approval, details: Json) -> Json:
    """What is told. Arguments are masked, and cut at 2 KiB."""
    binding = approval.binding
    return {
        "type": "approval.pending",
        "timestamp": presentation.stamp(approval.created),
        "data": {
            "id": approval.id, "profile": binding.terms.name, "approvers": list(binding.terms.approvers),
            "principal": binding.principal, "client_claims_to_be": visible(approval.client),
            "server": binding.server, "tool": visible(binding.own), "class": binding.class_, "digest": binding.digest,
            "arguments": presentation.preview(details), "expires_at": presentation.stamp(approval.expires),
            "command": f"sluice approve {approval.id} --seen {binding.digest}",
        },
    }  # fmt: skip
