"""Slack, Teams and ntfy are told of what waits, each in its documented form, by a Sluice as its users run it.

The receiver is a stand-in: none of the services is in a package registry. It checks each body against what the services
publish, and that nothing an agent or a server wrote is markup, a link or a mention there.
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import anyio
import pytest
from approval_kit import Town
from command_line import run
from jsonschema import Draft202012Validator
from peers.fleet import free_port, peers
from policy_bed import Bed, bed, client_keys, reason, recorder
from standardwebhooks import Webhook
from waiting import until, until_so

from sluicegate.app import settings
from sluicegate.approval import webhook
from sluicegate.approval.webhook import Notice, Receiver, Webhooks
from sluicegate.config import Config

__all__ = ["peers"]

Json = dict[str, Any]
SECRET = "whsec_MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIz"
SECRETS = ["T0SLACKSECRET", "TEAMSSECRET", "ntfy-topic-of-ours", "NTFYSECRET", "DEADSECRET", SECRET[6:]]
HOSTILE = (
    "<!channel>\n<!here|x> \u202e\u200b[x](http://evil.test) <https://evil.test|ok> <@U1> @here {{DATE(2026-01-01)}}"
    " <at>ann</at> *bold* www.evil.test evil.test/a 10.1.2.3 ann@evil.test `x` & =?UTF-8?B?aGk=?="
)
LIVE = re.compile(r"\w://|\w\.(?:test|[a-z]+/)|\d+\.\d+\.\d+\.\d+|@\w|<[!@#/\w]|\{\{|[\x00-\x1f\u200b\u202e]")
ROWS = """\
p, role:everyone, bank, *, *, allow
p2, *, bank, tool:*, *, one-of-leads
p, role:lead, sluice, admin:approvals, *, allow
"""


def closed(required: Json, **optional: Any) -> Json:
    """The schema of an object with these members and no others."""
    return {
        "type": "object", "properties": required | optional, "required": list(required), "additionalProperties": False
    }  # fmt: skip


def text_of(most: int) -> Json:
    return {"type": "string", "minLength": 1, "maxLength": most}


PLAIN = {"type": {"const": "plain_text"}, "emoji": {"const": False}}
# https://docs.slack.dev/reference/block-kit/blocks: header-block, section-block; composition objects: text-object
SLACK = closed(
    {
        "text": text_of(4000),
        "blocks": {
            "type": "array", "maxItems": 50, "items": {"oneOf": [
                closed({"type": {"const": "header"}, "text": closed({**PLAIN, "text": text_of(150)})}),
                closed({"type": {"const": "section"}, "text": closed({**PLAIN, "text": text_of(3000)})}),
                closed({"type": {"const": "section"}, "text": closed(
                    {"type": {"const": "mrkdwn"}, "text": text_of(3000), "verbatim": {"const": True}})}),
            ]},
        },
    },
    mrkdwn={"const": False}, unfurl_links={"const": False}, unfurl_media={"const": False},
)  # fmt: skip
# http://adaptivecards.io/schemas/1.4.0/adaptive-card.json, the elements that Sluice uses, closed
CARD = closed(
    {
        "type": {"const": "AdaptiveCard"}, "version": {"const": "1.4"}, "$schema": {"type": "string"},
        "body": {"type": "array", "items": {"oneOf": [
            closed({"type": {"const": "TextBlock"}, "text": {"const": webhook.TITLE}},
                   size={"enum": ["Medium"]}, weight={"enum": ["Bolder"]}, wrap={"type": "boolean"}),
            closed({"type": {"const": "RichTextBlock"}, "inlines": {"type": "array", "items": closed(
                {"type": {"const": "TextRun"}, "text": {"type": "string"}})}}),
        ]}},
        "actions": {"type": "array", "maxItems": 1, "items": closed({
            "type": {"const": "Action.OpenUrl"}, "title": {"type": "string"}, "url": {"format": "uri"}})},
    },
)  # fmt: skip
# learn.microsoft.com/connectors/teams: "Microsoft Teams Webhook", an array of attachments in a message
TEAMS = closed({
    "type": {"const": "message"},
    "attachments": {"type": "array", "minItems": 1, "maxItems": 1, "items": closed({
        "contentType": {"const": "application/vnd.microsoft.card.adaptive"}, "contentUrl": {"type": "null"},
        "content": CARD})},
})  # fmt: skip
# https://docs.ntfy.sh/publish/#publish-as-json
NTFY = closed(
    {"topic": {"type": "string", "pattern": "^[-_A-Za-z0-9]{1,64}$"}},
    title=text_of(250), message=text_of(4096), priority={"enum": [1, 2, 3, 4, 5]},
    tags={"type": "array", "items": {"type": "string", "pattern": "^[a-z0-9_]+$"}}, click={"type": "string"},
    actions={"type": "array", "maxItems": 3, "items": closed(
        {"action": {"const": "view"}, "label": text_of(100), "url": {"type": "string"}})},
)  # fmt: skip


@dataclass
class Chat:
    """A receiver for real: it keeps what it got, and answers as `answers` says of the number of the request."""

    answers: Callable[["Request"], tuple[int, str]] = lambda request: (200, "")
    got: list["Request"] = field(default_factory=list)
    port: int = 0

    def of(self, start: str) -> list["Request"]:
        return [request for request in self.got if request.path.startswith(start)]


@dataclass(frozen=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> Json:
        found: Json = json.loads(self.body)
        return found


@contextmanager
def chat(chat: Chat) -> Iterator[Chat]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.path, headers, self.rfile.read(int(headers["content-length"])))
            status, after = chat.answers(request)
            chat.got.append(request)
            self.send_response(status)
            if after:
                self.send_header("Retry-After", after)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        chat.port = server.server_port
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield chat
        server.shutdown()
        thread.join()


@dataclass(frozen=True)
class Told:
    town: Bed
    chat: Chat
    id: str


@pytest.fixture(scope="module")
def told(peers: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    """A hostile agent calls a hostile tool; each service has said no once, and is told. One is never reached."""
    folder, failed = tmp_path_factory.mktemp("chat"), set[str]()

    def once(request: Request) -> tuple[int, str]:
        is_first = request.path not in failed
        failed.add(request.path)
        return (429, "1") if is_first else (200, "")

    with chat(Chat(once)) as receiver, pytest.MonkeyPatch.context() as patch:
        base = f"http://127.0.0.1:{receiver.port}"
        patch.setenv("TEST_SLACK_URL", f"{base}/services/T0SLACKSECRET")
        (folder / "teams.url").write_text(f"{base}/workflows/1/paths/invoke?sig=TEAMSSECRET\n")
        notify = [
            {"type": "webhook", "format": "slack", "url": "${env:TEST_SLACK_URL}"},
            {"type": "webhook", "format": "teams", "url": "${file:teams.url}"},
            {"type": "webhook", "format": "ntfy", "url": f"{base}/ntfy-topic-of-ours?auth=NTFYSECRET"},
            {"type": "webhook", "url": f"{base}/json", "secret": SECRET},
            {"type": "webhook", "format": "slack", "url": f"http://127.0.0.1:{free_port()}/DEADSECRET"},
        ]
        tool = recorder(folder, "bank", tools=[HOSTILE])
        config: Json = {
            "clients": {"keys": client_keys(ann=["role:dev"], lea=["role:lead"])},
            "approvals": {"hold_for": "100ms", "notify": notify}, "log": {"format": "json", "level": "debug"},
        }  # fmt: skip
        with bed(folder, ROWS, {"bank": tool}, **config) as town:
            (name,) = town.names("ann")
            answer = town.call("ann", name, note=HOSTILE, password="hunter2", body="<b.b@" * 3000)
            assert reason(answer) == "approval_pending", answer.text
            until_so(lambda: len(receiver.got) >= 8 and "not reached: ConnectError" in town.process.log(), 20)
            yield Told(town, receiver, answer.json()["result"]["_meta"]["dev.sluice/approval"]["id"])


def card_of(told: Told) -> str:
    return f"{told.town.process.admin}/console/approvals/{told.id}"


def fits(schema: Json, body: Json) -> None:
    found = [f"{error.json_path}: {error.message[:200]}" for error in Draft202012Validator(schema).iter_errors(body)]
    assert not found, found


def check_words(told: Told, asks: str, waits: str, arguments: str) -> None:
    """What people read. Of what peers wrote nothing does anything."""
    assert asks.startswith("key:ann asks for the tool bank/[<]!channel>⟨U+000A⟩[<]!here|x> ⟨U+202E⟩⟨U+200B⟩[x](")
    assert asks.endswith(" ...(cut) (write).")
    stamp = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ"
    assert re.fullmatch(rf"It waits until {stamp} for role:lead \(profile one-of-leads\)\.", waits)
    assert arguments.startswith('Arguments: {"note": "[<]!channel>\\n[<]!here|x> ⟨U+202E⟩⟨U+200B⟩[x](')
    assert "(cut" in arguments[-200:]
    for text in (asks, waits, arguments):
        assert not LIVE.search(text), LIVE.findall(text)


def test_slack_is_told_in_blocks_in_which_no_peer_writes_markup(told: Told) -> None:
    requests = told.chat.of("/services/")
    assert len(requests) == 2 and requests[0].said == requests[1].said, "told again after a 429"
    body = requests[0].said
    fits(SLACK, body)
    header, asks, waits, arguments, how = (block["text"] for block in body["blocks"])
    assert header["text"] == webhook.TITLE and body["text"] == asks["text"]
    for text in (asks["text"], waits["text"], arguments["text"]):
        assert not re.search("[<>]|&(?!(?:amp|lt|gt);)", text), "Slack reads no `<...>` of a peer's"
    check_words(told, *(unescape(text["text"]) for text in (asks, waits, arguments)))
    assert how["text"] == f"<{card_of(told)}|Look and decide in the console>, or use `sluice approve {told.id}`."


def test_teams_is_told_by_an_adaptive_card_in_which_no_peer_writes_markdown(told: Told) -> None:
    requests = told.chat.of("/workflows/")
    assert [request.path for request in requests] == ["/workflows/1/paths/invoke?sig=TEAMSSECRET"] * 2
    fits(TEAMS, requests[0].said)
    card = requests[0].said["attachments"][0]["content"]
    _, *runs = card["body"]
    asks, waits, arguments, command = (run["inlines"][0]["text"] for run in runs)
    check_words(told, asks, waits, arguments)
    assert command == f"Command: sluice approve {told.id}"
    assert [action["url"] for action in card["actions"]] == [card_of(told)]
    assert len(requests[0].body) < 28_000


def test_ntfy_is_told_at_the_root_of_its_server_with_a_title_that_is_ours(told: Told) -> None:
    requests = told.chat.of("/?auth=NTFYSECRET")
    assert len(requests) == 2 and not told.chat.of("/ntfy-topic")
    body = requests[0].said
    fits(NTFY, body)
    assert body["topic"] == "ntfy-topic-of-ours" and body["title"] == webhook.TITLE
    *said, command = body["message"].split("\n")
    check_words(told, *said)
    assert command == f"Command: sluice approve {told.id}"
    assert body["click"] == card_of(told) == body["actions"][0]["url"]
    assert len(requests[0].body) <= 4096, "older servers mean the whole request"


def test_json_is_signed_and_what_it_was_and_chats_get_no_signature(told: Told) -> None:
    (first, _) = told.chat.of("/json")
    said = Webhook(SECRET).verify(first.body, first.headers)
    assert set(said["data"]) == {
        "id", "profile", "approvers", "principal", "client_claims_to_be", "server", "tool", "class", "digest",
        "arguments", "expires_at", "command",
    }  # fmt: skip
    for request in told.chat.got:
        assert request.headers["content-type"] == "application/json" and b"hunter2" not in request.body
        assert any(name.startswith("webhook-") for name in request.headers) is request.path.startswith("/json")
        assert b"?t=" not in request.body, "the link of the requester's page is a right"


def test_the_link_is_a_page_of_the_console_that_shows_nothing_without_a_session(told: Told) -> None:
    status, page = told.town.process.get(f"/console/approvals/{told.id}")
    assert status == 200 and "channel" not in page and told.id not in page


def test_no_address_of_a_chat_is_in_logs_metrics_audit_or_what_check_says(told: Told) -> None:
    town = told.town
    log = town.process.log()
    assert f"did not take {told.id}: 429" in log and "not reached: ConnectError" in log
    audit = "".join(path.read_text() for path in (town.folder / "audit").rglob("*.jsonl"))
    checked = run(town.folder, "check", "-c", str(town.process.config))
    shown = {
        "log": log, "audit": audit, "metrics": town.process.get("/metrics")[1], "ready": town.process.get("/readyz")[1],
        "check": checked.stdout + checked.stderr, "repr": repr(settings.receivers(config_of(), "http")),
        "config": f"{config_of()!r} {config_of().model_dump()}",
    }  # fmt: skip
    assert told.id in audit
    found = [(where, secret) for where, text in shown.items() for secret in SECRETS if secret in text]
    assert not found


def config_of(**more: Any) -> Config:
    notify = [{"type": "webhook", "format": "slack", "url": "https://hooks.slack.com/services/T0SLACKSECRET"}]
    approvals = {"approvals": {"notify": notify}}
    servers = {"bank": {"command": "true"}}
    return Config.model_validate({"version": 1, "policy": {"use": "open"}, "servers": servers, **approvals, **more})


@pytest.mark.parametrize(
    "more, link",
    [
        ({}, "http://127.0.0.1:7411/console"),
        ({"listen": {"admin": "[::1]:99"}}, "http://[::1]:99/console"),
        ({"listen": {"admin": "127.0.0.1:0"}}, ""),
        ({"listen": {"public_url": "https://mcp.test/mcp"}}, ""),
        ({"listen": {"admin": "10.0.0.1:7411"}}, ""),
        ({"console": {"enabled": False}}, ""),
        ({"console": {"enabled": False, "public_url": "https://x.test/console"}}, ""),
        ({"listen": {"admin": "10.0.0.1:1"}, "console": {"public_url": "https://x.test/console"}},
         "https://x.test/console"),
    ],
)  # fmt: skip
def test_a_link_is_given_where_people_are_sure_to_reach_the_console(more: Json, link: str) -> None:
    (receiver,) = settings.receivers(config_of(**more), "http")
    assert receiver.console == link and receiver.form == "slack" and receiver.secret == ""
    assert settings.receivers(config_of(**more), "stdio")[0].console == "", "there is no admin port"


def test_a_message_without_a_link_says_the_command() -> None:
    said = Notice("a", "b", "c", "sluice approve apr_1", "")
    slack, teams, ntfy = (
        json.loads(webhook.request(form, "https://x.test/topic", said)[1]) for form in ("slack", "teams", "ntfy")
    )
    for schema, body in ((SLACK, slack), (TEAMS, teams), (NTFY, ntfy)):
        fits(schema, body)
        assert "sluice approve apr_1" in json.dumps(body) and "console" not in json.dumps(body)


@pytest.mark.parametrize("letter", ["x", "<", "&", "é", "a.a", "@a", "\U0001f600", '"', "\\"])
def test_however_long_and_strange_the_arguments_are_the_limits_hold(letter: str) -> None:
    long = webhook.inert(letter * 5000)
    said = Notice(long[:600], "b", f"Arguments: {long}", "sluice approve apr_1", "https://x.test/console/approvals/1")
    fits(SLACK, webhook.slack(said))
    fits(TEAMS, webhook.teams(said))
    assert len(json.dumps(webhook.teams(said))) < 28_000
    body = webhook.ntfy(said, "topic")
    fits(NTFY, json.loads(body))
    assert len(body.encode()) <= 4096


async def test_a_receiver_is_told_again_when_its_retry_after_says_so() -> None:
    """Another approval is told six times meanwhile."""
    town, first = Town(), ""

    def answers(request: Request) -> tuple[int, str]:
        before = sum(one.body == request.body for one in receiver.got)
        if first in request.body.decode():
            return (429, "2") if before == 0 else (200, "")
        return (503, "") if before < 5 else (200, "")

    with chat(Chat(answers)) as receiver:
        target = Receiver(f"http://127.0.0.1:{receiver.port}/x", "", form="slack")
        webhooks = Webhooks(town.desk, lambda: (target,), pause=0.01)
        async with anyio.create_task_group() as group:
            first = (await town.pending(amount=1)).id
            group.start_soon(webhooks.run)
            await until(lambda: receiver.got)
            second = (await town.pending(amount=2)).id
            await until(lambda: webhooks.sent == 2)
            group.cancel_scope.cancel()
    order = ["first" if first in request.body.decode() else "second" for request in receiver.got]
    assert order == ["first", *["second"] * 6, "first"] and second


def test_a_retry_after_is_a_number_or_a_date_and_has_a_bound() -> None:
    now = datetime.now(UTC)
    found = {
        text: webhook._seconds(text)
        for text in ("", "0", "7", "99999", "9" * 400, "-1", "1.5", "soon", "²", format_datetime(now, usegmt=True),
                     format_datetime(now + timedelta(days=9), usegmt=True), "Thu, 01 Jan 2099 00:00:00 -0000")
    }  # fmt: skip
    assert list(found.values()) == [0, 0, 7, 600, 600, 0, 0, 0, 0, 0, 600, 0]
