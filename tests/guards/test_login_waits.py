"""A call that waits for a person to log in goes on with the rights and the policy of then."""

from dataclasses import dataclass, field

import pytest

from sluicegate.guards.login import LoginDeps, LoginLink, login
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import (
    LOGIN_PROFILE,
    ApprovalRef,
    Call,
    Client,
    Decision,
    Outcome,
    Result,
    Target,
    Trail,
    Verdict,
    not_found,
)

PAY = Target("bank", "tool", "pay", "b__pay", {"name": "pay"})
ANN, LESS = Client("key:ann", ("role:all",)), Client("key:ann", ("role:low",))
ALLOWED, DENIED = Decision(Verdict.ALLOW, "row 1", ""), Decision(Verdict.DENY, "row 2", "")
ASKED = Decision(Verdict.ASK, "row 3", "")


@dataclass
class Bank:
    """A server that wants a login, which comes while the call waits; so do other rights."""

    now: Client | None = ANN
    verdicts: dict[str, Decision] = field(default_factory=lambda: {"role:all": ALLOWED, "role:low": ALLOWED})
    is_logged_in: bool = False
    calls: list[Call] = field(default_factory=list)

    async def begin(self, server: str, client: Client) -> LoginLink | None:
        return None

    async def wait(self, server: str, client: Client, seconds: float) -> bool:
        self.is_logged_in = True
        return True

    async def renew(self, call: Call, target: Target) -> Target | None:
        return target

    def account(self, server: str, client: Client) -> Json | str | None:
        return {"user": "ann"} if self.is_logged_in else "Log in."

    async def server(self, call: Call) -> Outcome:
        self.calls.append(call)
        return Result({})

    async def call(self) -> Outcome:
        deps = LoginDeps(
            account=self.account, begin=self.begin, wait=self.wait, renew=self.renew, current=lambda client: self.now,
            decide=lambda call, target: self.verdicts[call.client.roles[0]], opens_pages=lambda client: True,
            tells_legacy=lambda: False, hold_for=45.0,
        )  # fmt: skip
        trail = Trail("c1")
        trail.add(ALLOWED)
        trail.approval_ref = ApprovalRef("login", "", "", LOGIN_PROFILE, "k")
        answered = {"name": "pay", "inputResponses": {"k": {"action": "accept"}}}
        return await login(deps)(Call(ANN, "tools/call", answered, target=PAY, trail=trail), self.server)


@pytest.mark.parametrize("now", [ANN, LESS])
async def test_a_call_goes_on_as_its_client_is_by_then(now: Client) -> None:
    bank = Bank(now)
    assert await bank.call() == Result({})
    assert [one.client for one in bank.calls] == [now]


async def test_a_call_that_its_client_may_not_make_any_more_is_not_sent() -> None:
    bank = Bank(LESS, {"role:low": DENIED})
    assert await bank.call() == not_found("tools/call", {"name": "pay"}) and not bank.calls


@pytest.mark.parametrize(("now", "reason"), [(LESS, "login_required"), (None, "denied")])
async def test_a_call_of_nobody_or_that_a_person_has_to_agree_to_by_now_is_not_sent(
    now: Client | None, reason: str
) -> None:
    bank = Bank(now, {"role:low": ASKED})
    outcome = await bank.call()
    assert isinstance(outcome, Result) and outcome.reason == reason and not bank.calls
