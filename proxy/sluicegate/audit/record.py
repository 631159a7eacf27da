"""The records: which types there are, what each says, and how a call becomes one. No I/O.

A record is composed as text from parts that are encoded once and remembered (who calls, what is called), because
two records belong to every call. The shape of all of them is published in `record.schema.json`.
"""

import re
import time
from collections.abc import Callable
from hashlib import sha256
from typing import Any, Final

from sluicegate.audit.redact import MAX_NAME, Redactor, dump
from sluicegate.audit.settings import Arguments, Results
from sluicegate.outcomes import classify
from sluicegate.policy.hooked import HookVerdict, verdicts_of
from sluicegate.policy.memo import Memo
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.canonical_json import canonical
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.methods import INTENTS
from sluicegate.protocol.model import Call, Decision, Outcome, Result, Target, Verdict

TYPES: Final = ("intent", "outcome", "decision", "approval", "pin", "policy", "identity", "admin", "checkpoint")
NOTES: Final = frozenset({"decision", "approval", "pin", "policy", "identity", "admin"})

MAX_ROLES: Final = 64
_MAX_REMEMBERED: Final = 5_000
_MAX_NAME: Final = 512  # characters of a name or URI that is remembered: the longest are sixteen KiB each
_MAX_SMALL: Final = 128
_MAX_AT_ONCE: Final = 2_048  # characters, and 16 for each value
_MAX_DIGESTED: Final = 256 * 1024  # bytes of a result: more take a millisecond
_FEW: Final = 16
Body = bytes | Callable[[], bytes]
"""A record, or what composes it outside of the event loop: what a peer sends may take long to search."""
_TRACE: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_PLAIN: Final = re.compile(r"[0-9A-Za-z_.:/-]{1,64}")


def needs_intent(call: Call) -> bool:
    """Whether the call may do something that must not happen unrecorded."""
    intent = INTENTS.get(call.method, "always")
    if intent == "always":
        return True
    if intent == "waived":
        return False
    notifications = call.params.get("notifications")
    return isinstance(notifications, dict) and bool(
        notifications.get("resourceSubscriptions") or notifications.get("taskIds")
    )


# ---------------------------------------------------------------- time


class Stamp:
    """The time in UTC with nanoseconds (RFC 3339); the second is formatted once."""

    __slots__ = ("_second", "_text")

    def __init__(self) -> None:
        self._second, self._text = -1, ""

    def __call__(self, nanoseconds: int | None = None) -> str:
        second, rest = divmod(time.time_ns() if nanoseconds is None else nanoseconds, 1_000_000_000)
        if second != self._second:
            self._text, self._second = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second)), second
        return f"{self._text}.{rest:09d}Z"


# ---------------------------------------------------------------- composing


class Composer:
    """Calls to record bodies: the inside of a JSON object from `"type"` on, in printable ASCII.

    `classify` gives the class of a target (read, write, destroy), `revision` that of the policy in force.
    """

    def __init__(
        self,
        redactor: Redactor,
        arguments: Arguments = "redacted",
        results: Results = "digest",
        transport: str = "http",
        classify: Callable[[Target], str] = lambda target: "",
        revision: Callable[[], str] = str,
    ) -> None:
        self._redactor, self._arguments, self._results = redactor, arguments, results
        self._transport, self._classify, self._revision = transport, classify, revision
        # Peers choose what is remembered.
        self._clients: Memo[tuple[Any, ...], str] = Memo(_MAX_REMEMBERED)
        self._targets: Memo[tuple[str, str, str], tuple[Json | None, str]] = Memo(_MAX_REMEMBERED)
        self._decisions: Memo[tuple[Verdict, str, str, bool], str] = Memo(_MAX_REMEMBERED)
        self._logins: Memo[tuple[Any, ...], str] = Memo(_MAX_REMEMBERED)
        self._last_login: Json | None = None
        self._login_text = ""
        self._stamp = Stamp()

    def about(self, call: Call) -> str:
        """Who calls what, and what was decided: the same in both records of a call, so made once."""
        trail = call.trail
        target, decisions, round = trail.target or call.target, trail.decisions, trail.round
        text = f'"call":{self._id(trail.id)},{self._asker(call)}'
        if target is not None:
            text = f"{text},{self._target(target)}"
        if decisions:
            text = f"{text},{self._decision(decisions[-1])}"
        if round is not None:
            text = f'{text},"round":{{"call":{self._id(round[0])},"number":{int(round[1])}}}'
        if "traceparent" in call.meta and (trace := trace_of(call)):
            text = f'{text},"trace":"{trace}"'
        return text

    def class_of(self, call: Call) -> str:
        """The class of what the call is for; empty where it has no target."""
        target = call.trail.target or call.target
        return "" if target is None else self._classify(target)

    def intent(self, call: Call, about: str, approval: Json | None) -> Body:
        extra = f',"approval":{self._small(approval)}' if approval else ""
        if (login := call.trail.login) is not None:
            extra += self._login_text if login is self._last_login else self._login(login)
        start = f'"type":"intent","time":"{self._stamp()}",{about}'
        if is_small(call.params.get("arguments")):
            return f"{start}{self._asked(call)}{extra}".encode("ascii")
        return lambda: f"{start}{self._asked(call)}{extra}".encode("ascii")

    def outcome(self, call: Call, about: str | None, outcome: Outcome | None, seconds: float) -> Body:
        """`about` is what the intent said; None where there was none."""
        stamp, head = self._stamp(), about or self.about(call)
        if about is None:
            is_short = is_small(call.params.get("arguments"))
        else:
            most = _MAX_AT_ONCE if self._results == "redacted" else _MAX_DIGESTED
            is_short = self._results == "none" or not isinstance(outcome, Result) or len(outcome.text) <= most
        if is_short:
            return self._closing(call, stamp, head, about is not None, outcome, seconds)
        return lambda: self._closing(call, stamp, head, about is not None, outcome, seconds)

    def _closing(
        self, call: Call, stamp: str, head: str, has_intent: bool, outcome: Outcome | None, seconds: float
    ) -> bytes:
        word, reason, code = classify(outcome, call)
        # Where a call was refused before a server was reached, or is a list, nothing else says what was asked.
        asked = head if has_intent else f"{head}{self._asked(call)}"
        end = f'"outcome":"{word}","seconds":{max(seconds, 0.0):.6f}'
        if reason:
            end = f'{end},"reason":{dump(self._redactor.text(reason, 64))}'
        if code is not None:
            end = f'{end},"code":{code if abs(code) < 10**9 else 0}'
        if len(call.trail.decisions) > 1 and (verdicts := verdicts_of(call.trail.decisions)):
            end = f'{end},"hooks":[{",".join(map(self._verdict, verdicts))}]'
        if (parts := call.trail.parts) is not None:
            end = f'{end},"parts":{dump(parts)}'
        if self._results != "none" and isinstance(outcome, Result) and has_intent:
            end = f'{end},"result_digest":"{self._redactor.digest(outcome.text)}"'
            if self._results == "redacted" and outcome.reason is None:  # with a reason, the words are Sluice's own
                end = f"{end}{self._result(call, outcome)}"
        return f'"type":"outcome","time":"{stamp}",{asked},{end}'.encode("ascii")

    def _result(self, call: Call, outcome: Result) -> str:
        target = call.trail.target or call.target
        text, is_cut = self._redactor.result(outcome.value, f"{target.server}/{target.own}" if target else "")
        cut = ',"result_cut":true' if is_cut else ""
        return f',"result":{text}{cut}'

    def _verdict(self, verdict: HookVerdict) -> str:
        text = f'{{"hook":"{verdict.hook}","on":"{verdict.on}","verdict":"{verdict.word}"'
        if verdict.reason:
            text = f'{text},"reason":{dump(self._redactor.written(verdict.reason, MAX_NAME))}'
        if verdict.profile:
            text = f'{text},"profile":{dump(self._redactor.written(verdict.profile, MAX_NAME))}'
        if verdict.pointers:
            text = f'{text},"redacted":{dump([self._redactor.written(one, MAX_NAME) for one in verdict.pointers])}'
        return f'{text},"cached":true}}' if verdict.is_cached else f'{text},"seconds":{verdict.seconds:.6f}}}'

    def note(self, type: str, fields: Json) -> bytes:
        """Any record that is not about one call. Texts are cleaned, whoever chose them."""
        if type not in NOTES:
            raise ValueError(f"no such note: {type}")
        inner = dump(self._redactor.fields(fields))[1:-1]
        return f'"type":"{type}","time":"{self._stamp()}"{"," if inner else ""}{inner}'.encode("ascii")

    # ------------------------------------------------------------ parts

    def _id(self, id: str) -> str:
        return f'"{id}"' if _PLAIN.fullmatch(id) else dump(self._redactor.text(id, 64).replace('"', "'"))

    def _asker(self, call: Call) -> str:
        """By which method, and who."""
        client = call.client
        name, version = client.info.get("name"), client.info.get("version")
        key = (
            call.method, client.principal, client.roles, client.owner, client.revision, client.session,
            name[:_MAX_SMALL] if isinstance(name, str) else "", version[:64] if isinstance(version, str) else "",
            client.toolset,
        )  # fmt: skip
        cached = self._clients.get(key)
        if cached is None:
            cached = self._clients.keep(key, self._encode_asker(*key))
        return cached

    def _encode_asker(
        self, method: str, principal: str, roles: tuple[str, ...], owner: str, revision: str, session: str | None,
        name: str, version: str, toolset: str,
    ) -> str:  # fmt: skip
        shown, written = [self._redactor.text(role) for role in roles[:MAX_ROLES]], self._redactor.written
        fields: Json = {
            "principal": self._redactor.text(principal),
            "roles": [role for role in shown if not role.startswith("group:")],
            "groups": [role for role in shown if role.startswith("group:")],
            "revision": self._redactor.text(revision, 32),
            "client": {"name": written(name, _MAX_SMALL), "version": written(version, 64)},
        }
        if owner:
            fields["owner"] = self._redactor.text(owner)
        if toolset:
            fields["toolset"] = self._redactor.text(toolset, 32)
        if session is not None:  # an id is a bearer's right in old revisions, so that only its digest is kept
            fields["session"] = self._redactor.short_digest(session)
        return f'"method":{self._id(method)},"transport":"{self._transport}",{dump(fields)[1:-1]}'

    def _target(self, target: Target) -> str:
        if len(target.own) > _MAX_NAME:
            return self._encode_target(target)
        key = (target.server, target.kind, target.own)
        cached = self._targets.get(key)
        if cached is None or cached[0] is not target.item:
            cached = self._targets.keep(key, (target.item, self._encode_target(target)))
        return cached[1]

    def _encode_target(self, target: Target) -> str:
        fields: Json = {
            "server": target.server,
            "kind": target.kind,
            "own": self._redactor.written(target.own, 1024),
            "public": self._redactor.written(target.public, 1024),
        }
        if class_ := self._classify(target):
            fields["class"] = class_
        if target.item is not None:
            fields["definition"] = fingerprint(target.item)
        return dump(fields)[1:-1]

    def _decision(self, decision: Decision) -> str:
        revision = self._revision()
        would_deny = isinstance(decision, Ruling) and decision.would_deny
        key = (decision.verdict, decision.rule, revision, would_deny)
        cached = self._decisions.get(key)
        if cached is None:
            fields: Json = {"verdict": decision.verdict.value, "rule": self._redactor.text(decision.rule, 512)}
            if revision:
                fields["policy"] = revision
            if would_deny:
                fields["would_deny"] = True
            cached = self._decisions.keep(key, f'"decision":{dump(fields)}')
        return cached

    def _login(self, login: Json) -> str:
        """Of the same members for each login; the issuer is the one that a server may have named."""
        cached = self._logins.get(key := tuple(login.values()))
        if cached is None:
            cached = self._logins.keep(key, f',"login":{self._small(login)}')
        self._last_login, self._login_text = login, cached
        return cached

    def _asked(self, call: Call) -> str:
        """What the call carries, as far as the settings want it recorded."""
        target = call.trail.target or call.target
        asked = ""
        if target is None and (named := call.params.get("name", call.params.get("uri"))) is not None:
            shown = self._redactor.written(named, MAX_NAME) if isinstance(named, str) else str(type(named))
            asked = f',"asked":{dump(shown)}'
        value = call.params.get("arguments")
        if self._arguments == "none" or not isinstance(value, dict):
            return asked
        whole = canonical(value)
        digest = f'{asked},"arguments_digest":"{self._redactor.digest(whole.encode("ascii"))}"'
        if self._arguments == "digest":
            return digest
        tool = f"{target.server}/{target.own}" if target else ""
        if self._redactor.is_innocent(whole, tool):
            return f'{digest},"arguments":{whole}'
        if self._arguments == "full":
            return f'{digest},"arguments":{dump(self._redactor.without_credentials(value))}'
        return f'{digest},"arguments":{dump(self._redactor.arguments(value, tool))}'

    def _small(self, value: Json) -> str:
        return dump(self._redactor.without_credentials(value))

    def forget(self) -> None:
        """Classes and rules are looked up anew: the policy has changed."""
        self._targets.clear()
        self._decisions.clear()


def trace_of(call: Call) -> str:
    """The id of the trace that a call is part of (W3C Trace Context, traceparent), or nothing."""
    parent = call.meta.get("traceparent")
    found = _TRACE.fullmatch(parent) if isinstance(parent, str) else None
    return found[1] if found else ""


def is_small(value: Any) -> bool:
    """Whether arguments are searched at once, in the event loop; others are in a thread."""
    left = _MAX_AT_ONCE
    if isinstance(value, dict) and len(value) < _FEW:  # most arguments are a few short texts
        for item in value.values():
            if type(item) is str:
                left -= len(item)
            elif isinstance(item, dict | list):
                break
        else:
            return left > sum(map(len, value))
    left, stack = _MAX_AT_ONCE, [value]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            left -= len(item)
        elif isinstance(item, dict | list):
            left -= 16 * len(item)
            if left < 0:
                return False
            if isinstance(item, dict):
                left -= sum(map(len, item))
                stack.extend(item.values())
            else:
                stack.extend(item)
        if left < 0:
            return False
    return True


def fingerprint(item: Json) -> str:
    """What a definition was, in one word: any change of a value or its type changes it, key order does not."""
    return f"sha256:{sha256(canonical(item).encode('ascii')).hexdigest()}"
