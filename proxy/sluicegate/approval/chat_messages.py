"""A pending approval in plain sentences, in the forms that Slack, Teams and ntfy document. Pure.

A message decides nothing: it has a link to the approval in the console, where it is known who decides, and a command.
Words of peers stand where no markup is read. What chat programs make links, mentions or dates of by themselves is
broken up with brackets, so that it can be read and does nothing.
"""

import json
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import urlsplit

from sluicegate.approval import presentation
from sluicegate.approval.record import Approval
from sluicegate.deferred import deferred_pattern
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
# Host names, addresses, `scheme://`, `@name`, tags as in `<!channel>` and `<at>`, and `{{DATE()}}` of Adaptive Cards.
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


def request(form: ChatFormat, url: str, said: Notice) -> tuple[str, str]:
    """Where a message goes, and its body as JSON."""
    if form == "ntfy":
        parts = urlsplit(url)
        root, _, topic = parts.path.rpartition("/")
        return parts._replace(path=f"{root}/").geturl(), ntfy(said, topic)
    return url, json.dumps(slack(said) if form == "slack" else teams(said))


def slack(said: Notice) -> Json:
    """https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks"""
    how = f"Use `{said.command}`."
    if said.card:
        how = f"<{_escaped(said.card)}|{_DECIDE}>, or use `{said.command}`."
    return {
        "text": _slack_text(said.asks), "mrkdwn": False, "unfurl_links": False, "unfurl_media": False,
        "blocks": [
            {"type": "header", "text": {"type": "plain_text", "text": TITLE, "emoji": False}},
            *(
                {"type": "section", "text": {"type": "plain_text", "text": _slack_text(text), "emoji": False}}
                for text in (said.asks, said.waits, said.arguments)
            ),
            {"type": "section", "text": {"type": "mrkdwn", "text": how, "verbatim": True}},
        ],
    }  # fmt: skip


def _slack_text(text: str) -> str:
    return _escaped(_fitting(text, MAX_SLACK, lambda part: len(_escaped(part))))


def _escaped(text: str) -> str:
    """https://docs.slack.dev/messaging/formatting-message-text#escaping"""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def teams(said: Notice) -> Json:
    """For the trigger "When a Teams webhook request is received" of Workflows. A TextRun reads no Markdown."""
    arguments = _fitting(said.arguments, MAX_TEAMS, lambda part: len(json.dumps(part)))
    texts = (said.asks, said.waits, arguments, f"Command: {said.command}")
    card = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json", "type": "AdaptiveCard", "version": "1.4",
        "body": [
            {"type": "TextBlock", "text": TITLE, "size": "Medium", "weight": "Bolder", "wrap": True},
            *({"type": "RichTextBlock", "inlines": [{"type": "TextRun", "text": text}]} for text in texts),
        ],
        "actions": [{"type": "Action.OpenUrl", "title": _DECIDE, "url": said.card}] if said.card else [],
    }  # fmt: skip
    kind = "application/vnd.microsoft.card.adaptive"
    return {"type": "message", "attachments": [{"contentType": kind, "contentUrl": None, "content": card}]}


def ntfy(said: Notice, topic: str) -> str:
    """https://docs.ntfy.sh/publish/#publish-as-json. No peer has a word in the title: ntfy decodes RFC 2047 there."""

    def whole(arguments: str) -> str:
        message = f"{said.asks}\n{said.waits}\n{arguments}\nCommand: {said.command}"
        body: Json = {"topic": topic, "title": TITLE, "message": message, "priority": 4, "tags": ["raised_hand"]}
        if said.card:
            body |= {"click": said.card, "actions": [{"action": "view", "label": _DECIDE, "url": said.card}]}
        return json.dumps(body, ensure_ascii=False)

    return whole(_fitting(said.arguments, MAX_NTFY, lambda arguments: len(whole(arguments).encode())))


def _fitting(text: str, limit: int, size: Callable[[str], int]) -> str:
    """The text, or its longest beginning of that size with a mark behind it."""
    if size(text) <= limit:
        return text
    end = bisect_right(range(len(text)), limit, key=lambda length: size(text[:length] + _CUT))
    return text[: max(0, end - 1)] + _CUT
