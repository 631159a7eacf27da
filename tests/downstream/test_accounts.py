"""Servers that people log in to: each login has connections of its own, and hears of its own alone."""

import anyio
import anyio.lowlevel
import pytest

from sluicegate.downstream.accounts import AT_ONCE, AccountServers, inherit
from sluicegate.downstream.failures import LoginRequired, as_lost
from sluicegate.downstream.server import DownstreamServer
from sluicegate.downstream.settings import ServerSettings
from sluicegate.protocol.jsonrpc import Notification
from sluicegate.protocol.model import Client, Publish, session_scope

pytestmark = pytest.mark.anyio
ANN, BOB, EVE = (Client(f"key:{name}") for name in ("ann", "bob", "eve"))
CHANGED = Notification("notifications/tools/list_changed", {})


class Site:
    """The logins that there are, what each account's server may say, and what was heard."""

    def __init__(self, **logins: str) -> None:
        self.logins = {f"key:{name}": login for name, login in logins.items()}
        self.says: dict[str, Publish] = {}
        self.heard: list[tuple[str, str | None]] = []
        self.moved: list[str] = []
        self.servers = AccountServers(
            self._make, lambda client: self.logins.get(client.principal, ""), {"lgn_a": {"id": "lgn_a"}},
            lambda key, scope, said: self.heard.append((key, scope)), self.moved.append, bool(logins),
        )  # fmt: skip

    def _make(self, login: str, publish: Publish) -> DownstreamServer:
        self.says[login] = publish
        settings = ServerSettings("mail", url="http://127.0.0.1:9/mcp", lazy=True)
        return DownstreamServer(settings, publish=publish, client_info={"name": "sluice", "version": "0"})

    def log_out(self, principal: str) -> None:
        del self.logins[principal]
        self.servers.take(set(self.logins.values()), ())


async def test_each_login_has_a_server_of_its_own_and_all_others_share_one() -> None:
    site = Site(ann="lgn_a", bob="lgn_b")
    ann, bob, eve = (site.servers.of(client) for client in (ANN, BOB, EVE))
    assert len({id(one) for one in (ann, bob, eve)}) == 3
    assert site.servers.of(ANN) is ann and site.servers.of(Client("key:dan")) is eve
    scopes = {site.servers.scope(client) for client in (ANN, BOB, EVE)}
    assert len(scopes) == 3 and all("lgn" not in scope for scope in scopes if "eve" in scope)


async def test_what_one_account_hears_of_is_told_to_nobody_else() -> None:
    site = Site(ann="lgn_a", bob="lgn_b")
    mine = site.servers.scope(ANN)
    site.servers.scope(BOB)
    site.says["lgn_a"]("mail", None, CHANGED)  # to all who share that connection
    assert site.heard == [("mail", mine)]
    site.says["lgn_a"]("mail", "one scope", CHANGED)
    assert site.heard[1:] == [("mail", "lgn_a one scope")]
    site.says["lgn_a"]("mail", session_scope("s1"), Notification("notifications/message", {}))
    assert site.heard[2:] == [("mail", session_scope("s1"))], "which hears it by that name"


async def test_a_change_is_told_to_a_few_scopes_in_each_step_and_once_however_often_it_is_said() -> None:
    """With 1,000 clients of one login, 100 changes in one piece of a stream took half a second, in one step."""
    site = Site()
    site.servers._login_of, site.servers._any = lambda client: "lgn_a", True
    scopes = [site.servers.scope(Client(f"key:{number}")) for number in range(200)]
    for _ in range(100):
        site.says["lgn_a"]("mail", None, CHANGED)
    assert len(site.heard) == AT_ONCE
    told = []
    while len(site.heard) > len(told):
        told = list(site.heard)
        await anyio.lowlevel.checkpoint()
        assert len(site.heard) - len(told) <= AT_ONCE
    assert told[AT_ONCE : len(scopes)] == [("mail", scope) for scope in scopes[AT_ONCE:]]
    assert told[len(scopes) :] == told[:AT_ONCE], "who was told before it was said for the last time"


async def test_a_change_is_told_to_the_others_also_where_somebody_cannot_be_told() -> None:
    site = Site()
    site.servers._login_of, site.servers._any = lambda client: "lgn_a", True
    scopes = [site.servers.scope(Client(f"key:{number}")) for number in range(2 * AT_ONCE)]
    publish = site.servers._publish

    def fail(key: str, scope: str | None, said: Notification) -> None:
        site.servers._publish = publish
        raise ValueError

    site.servers._publish = fail
    with pytest.raises(ValueError):
        site.says["lgn_a"]("mail", None, CHANGED)
    for _ in range(3):
        await anyio.lowlevel.checkpoint()
    assert site.heard == [("mail", scope) for scope in scopes[1:]]


async def test_what_is_left_to_tell_of_an_account_ends_with_it() -> None:
    site = Site()
    site.servers._login_of, site.servers._any = lambda client: "lgn_a", True
    for number in range(2 * AT_ONCE):
        site.servers.scope(Client(f"key:{number}"))
    site.says["lgn_a"]("mail", None, CHANGED)
    site.servers.take((), ())
    await anyio.lowlevel.checkpoint()
    assert len(site.heard) == AT_ONCE


async def test_the_state_of_a_task_is_told_once_however_many_see_the_account() -> None:
    site = Site(ann="lgn_a", bob="lgn_a")
    assert site.servers.scope(ANN) != site.servers.scope(BOB)
    site.says["lgn_a"]("mail", None, Notification("notifications/tasks/status", {"taskId": "t"}))
    assert len(site.heard) == 1


@pytest.mark.parametrize("logins", [{}, {"ann": "lgn_a"}])
async def test_what_is_heard_without_a_token_is_told_to_all(logins: dict[str, str]) -> None:
    site = Site(**logins)
    site.servers.scope(EVE)
    site.says[""]("mail", None, CHANGED)
    site.says[""]("mail", "one scope", CHANGED)
    assert site.heard == [("mail", None), ("mail", "one scope")]


async def test_who_was_asked_about_before_a_login_has_an_account_after_it() -> None:
    site = Site(bob="lgn_b")
    nobody, scope = site.servers.of(ANN), site.servers.scope(ANN)
    site.logins["key:ann"] = "lgn_a"
    site.servers.take({"lgn_a", "lgn_b"}, {"lgn_a"})
    assert site.servers.of(ANN) not in (nobody, site.servers.of(BOB)) and site.servers.scope(ANN) != scope
    site.logins["key:ann"] = "lgn_c"  # logged out and in again within one look
    before = site.servers.of(ANN)
    site.servers.take({"lgn_b", "lgn_c"}, {"lgn_c"})
    assert site.servers.of(ANN) not in (nobody, before) and before.status == "down"


async def test_after_a_logout_nothing_of_the_account_is_heard() -> None:
    site = Site(ann="lgn_a")
    async with anyio.create_task_group() as group:
        group.start_soon(site.servers.run)
        mine = site.servers.scope(ANN)
        before = site.servers.of(ANN)
        site.log_out("key:ann")
        assert site.moved == ["mail"] and before.status == "down"
        assert site.servers.of(ANN) is site.servers.of(EVE) and site.servers.scope(ANN) != mine
        site.says["lgn_a"]("mail", None, CHANGED)
        assert site.heard == []
        await site.servers.aclose()


async def test_a_replaced_server_begins_anew_for_each_account() -> None:
    before, after = Site(ann="lgn_a"), Site(ann="lgn_a")
    before.servers.scope(ANN)
    inherit(after.servers, before.servers)
    before.servers.retire("its configuration was changed")
    assert after.servers.of(ANN) is not before.servers.of(ANN)
    assert before.servers.status == "down" and after.servers.status == "starting"


def test_the_word_that_a_login_is_needed_holds_none_of_the_calls_that_it_ends() -> None:
    """It is kept as long as nobody logs in, and who raises an error adds frames to it."""
    kept = LoginRequired("Log in first.", ["write"])
    for _ in range(3):
        with pytest.raises(LoginRequired, match="Log in first") as raised:
            raise as_lost(kept, "it cannot be reached")
        assert raised.value.scopes == ("write",)
    assert kept.__traceback__ is None
