"""What hooks said of a call, kept with the decision on it, and what becomes of that decision. Pure."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sluicegate.policy.profiles import ApprovalProfile, strictest
from sluicegate.policy.rules import Ruling
from sluicegate.protocol.jsonrpc import light
from sluicegate.protocol.model import Decision, Verdict

On = Literal["call", "result", "approval"]
Word = Literal["allow", "deny", "ask", "withhold", "redact", "failed"]
_RULE: Final = "hook "


@light
@dataclass(frozen=True, slots=True)
class HookVerdict:
    """`reason` are the hook's words, or why it has no verdict; `pointers` is what it redacts (RFC 6901), `profile` by
    which one it wants a person asked. `failed` is let pass where `passes` says so."""

    hook: str
    on: On
    word: Word
    reason: str = ""
    profile: str = ""
    pointers: tuple[str, ...] = ()
    seconds: float = 0.0
    is_cached: bool = False
    passes: bool = False

    def took(self, seconds: float) -> "HookVerdict":
        """The same answer, given to another question: most are the same few."""
        return HookVerdict(self.hook, self.on, self.word, self.reason, self.profile, self.pointers, seconds)

    @property
    def rule(self) -> str:
        return f"{_RULE}{self.hook}"

    @property
    def refuses(self) -> bool:
        return self.word in ("deny", "withhold") or (self.word == "failed" and not self.passes)

    def __str__(self) -> str:
        """As a refusal says it. Whose words they are is said, for the client may be a model."""
        if self.word == "failed":
            return f"the hook {self.hook} gave no verdict: {self.reason}"
        return f"the hook {self.hook} refused it" + (f' and says: "{self.reason}"' if self.reason else "")


@dataclass(frozen=True, slots=True)
class HookedRuling(Ruling):
    """The decision on a call that hooks were asked about: the policy's own, or what is stricter."""

    verdicts: tuple[HookVerdict, ...] = ()


def hook_of(rule: str) -> str:
    """The name of the hook that made a decision by this rule; empty where it was none."""
    return rule.removeprefix(_RULE) if rule.startswith(_RULE) else ""


def verdicts_of(decisions: Sequence[Decision]) -> tuple[HookVerdict, ...]:
    """Everything that hooks said of a call, by its decisions."""
    return next((one.verdicts for one in reversed(decisions) if isinstance(one, HookedRuling)), ())


def noted(decision: Decision, verdicts: tuple[HookVerdict, ...]) -> HookedRuling:
    """The same decision, with what hooks have said."""
    act, profile, would_deny = "", "", False
    if isinstance(decision, Ruling):
        act, profile, would_deny = decision.act, decision.profile, decision.would_deny
    return HookedRuling(decision.verdict, decision.rule, decision.reason, act, profile, would_deny, verdicts)


def combine(
    decision: Decision, verdicts: tuple[HookVerdict, ...], profiles: Callable[[], Mapping[str, ApprovalProfile]]
) -> HookedRuling:
    """What a policy's decision is together with what hooks say: the strictest of all. A hook never makes it milder."""
    same = noted(decision, verdicts)
    if decision.verdict is Verdict.DENY or all(one.word == "allow" for one in verdicts):
        return same
    act, profile, would_deny = same.act, same.profile, same.would_deny
    refusing = next((one for one in verdicts if one.on == "call" and one.refuses), None)
    if refusing is not None:
        return HookedRuling(Verdict.DENY, refusing.rule, str(refusing), act, "", would_deny, verdicts)
    asking = {one.profile: one for one in verdicts if one.on == "call" and one.word == "ask"}
    if not asking:
        return same
    known_ones = profiles()
    wanted = [known_ones.get(name) for name in {*asking, *([profile] if profile else ())}]
    found = [one for one in wanted if one is not None]
    chosen = strictest(found) if len(found) == len(wanted) else None
    if chosen is None:
        rule = next(iter(asking.values())).rule
        why = "who has to approve cannot be known: profiles differ, or are unknown"
        return HookedRuling(Verdict.DENY, rule, why, act, "", would_deny, verdicts)
    if chosen.name == profile:
        return same
    one = asking[chosen.name]
    return HookedRuling(Verdict.ASK, one.rule, one.reason, act, chosen.name, would_deny, verdicts)
