"""A person agrees on another device (RFC 8628): what is shown, how often is asked, and what ends it."""

from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest
from login_bench import Bench
from small_authorization_server import Seen, reply

from sluicegate.login import logins
from sluicegate.login.model import LoginFailed, LoginUnavailable
from sluicegate.oauth.clients import DEVICE_CODE

CODE = {"device_code": "d-secret", "user_code": "WDJB-MJHT", "expires_in": 600, "interval": 0.01}
PENDING = reply({"error": "authorization_pending"}, 400)


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logins, "LEAST", 0.01)


def offers(bench: Bench, *answers: Any, **more: Any) -> None:
    """An authorization server with the device flow: what its token endpoint says, one after the other."""
    told = {**CODE, "verification_uri": f"{bench.at.url}/device", **more}
    bench.at.metadata = {"device_authorization_endpoint": f"{bench.at.url}/begin"}
    bench.at.secrets.add("d-secret")
    bench.at.pages["/begin"] = reply({name: value for name, value in told.items() if value is not None})
    said = iter(answers)

    def token(seen: Seen) -> Any:
        assert seen.form["grant_type"] == DEVICE_CODE and seen.form["device_code"] == "d-secret"
        assert seen.form["resource"] == bench.server.mcp
        one = next(said)
        return bench.at.issue("family", "") if one == "good" else one

    bench.at.pages["/token"] = token


def asked(bench: Bench, path: str) -> list[Seen]:
    return [seen for seen in bench.at.seen if seen.path == path]


async def test_a_person_agrees_elsewhere_and_the_token_is_good(bench: Bench) -> None:
    offers(bench, PENDING, PENDING, "good", verification_uri_complete=f"{bench.at.url}/device?user_code=WDJB-MJHT")
    flow = await bench.logins.begin_device("srv", "local")
    assert (flow.url, flow.user_code) == (f"{bench.at.url}/device", "WDJB-MJHT")
    assert flow.complete == f"{bench.at.url}/device?user_code=WDJB-MJHT"
    assert "d-secret" not in repr(flow) and "WDJB" not in repr(flow)
    info = await bench.logins.finish_device(flow)
    bearer = await bench.logins.bearer("srv", "local")
    assert bench.at.is_good(bearer.token) and bearer.login == info.id and info.can_refresh
    assert bench.told() == ["login_asked", "login_done"]
    (begun,) = asked(bench, "/begin")
    assert begun.form["resource"] == bench.server.mcp and begun.form["client_id"] == "client-1"
    assert bench.at.clients["client-1"]["grant_types"] == [DEVICE_CODE, "refresh_token"]
    assert bench.at.clients["client-1"]["redirect_uris"] == []
    assert await bench.logins.logout("srv", "local") is True


async def test_who_logs_in_both_ways_is_two_clients_there(bench: Bench) -> None:
    await bench.log_in()
    offers(bench, "good")
    await bench.logins.finish_device(await bench.logins.begin_device("srv", "other"))
    assert [one["grant_types"][0] for one in bench.at.clients.values()] == ["authorization_code", DEVICE_CODE]


@pytest.mark.parametrize(
    ("answers", "why"),
    [((PENDING, reply({"error": "access_denied"}, 400)), "access_denied"),
     ((reply({"error": "expired_token"}, 400),), "expired_token"),
     ((reply({"error": "invalid_grant"}, 400),), "invalid_grant")],
)  # fmt: skip
async def test_who_says_no_is_not_asked_again(bench: Bench, answers: tuple[Any, ...], why: str) -> None:
    offers(bench, *answers)
    with pytest.raises(LoginFailed, match=why):
        await bench.logins.finish_device(await bench.logins.begin_device("srv", "local"))
    assert len(asked(bench, "/token")) == len(answers) and await bench.logins.all() == []
    assert bench.told() == ["login_asked", "login_failed"]


async def test_what_fails_for_now_and_who_asks_for_patience_end_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    sleep: Callable[[float], Any] = anyio.sleep

    async def counted(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(logins.anyio, "sleep", counted)
    offers(bench, reply({"error": "slow_down"}, 400), reply({}, 503), PENDING, "good", interval=1)
    await bench.logins.finish_device(await bench.logins.begin_device("srv", "local"))
    assert waits == [1.0, 6.0, 12.0, 12.0]  # 3.5: five seconds more, then twice as many


async def test_nobody_is_asked_for_longer_than_the_code_is_good(bench: Bench) -> None:
    def ever() -> Iterator[Any]:
        while True:
            bench.clock.added += 30
            yield PENDING

    offers(bench, expires_in=100)
    said = ever()
    bench.at.pages["/token"] = lambda seen: next(said)
    with pytest.raises(LoginFailed, match="nobody agreed in time"):
        await bench.logins.finish_device(await bench.logins.begin_device("srv", "local"))
    assert len(asked(bench, "/token")) == 4


@pytest.mark.parametrize(
    "more",
    [{"verification_uri": "file:///etc/passwd"}, {"verification_uri": "javascript:alert(1)"},
     {"verification_uri": "https://h/$(id)"}, {"verification_uri": "https://h/\nrm"}, {"verification_uri": None},
     {"verification_uri_complete": "https://h/`id`"}, {"verification_uri": "http://evil.example.com/"},
     {"user_code": "\x1b[2J"}, {"user_code": "a" * 65}, {"user_code": None}, {"device_code": 5}],
)  # fmt: skip
async def test_nobody_is_sent_where_nobody_may_be_sent_and_sees_no_odd_code(bench: Bench, more: Any) -> None:
    offers(bench, **more)
    with pytest.raises(LoginFailed):
        await bench.logins.begin_device("srv", "local")
    assert asked(bench, "/token") == []


async def test_without_a_device_endpoint_another_way_is_named(bench: Bench) -> None:
    with pytest.raises(LoginFailed, match="no device flow: see --paste"):
        await bench.logins.begin_device("srv", "local")
    assert bench.at.clients == {}


@pytest.mark.parametrize("page", [reply({"error": "invalid_client"}, 401), reply([]), None, reply({}, 500)])
async def test_a_login_that_cannot_begin_ends_plainly(bench: Bench, page: Any) -> None:
    offers(bench)
    bench.at.pages["/begin"] = page
    with pytest.raises((LoginFailed, LoginUnavailable)):
        await bench.logins.begin_device("srv", "local")
    offers(bench, "good")
    await bench.logins.finish_device(await bench.logins.begin_device("srv", "local"))


async def test_a_client_that_the_authorization_server_forgot_is_registered_anew_for_devices(bench: Bench) -> None:
    offers(bench)
    bench.at.pages["/begin"] = reply({"error": "invalid_client"}, 401)
    with pytest.raises(LoginFailed):
        await bench.logins.begin_device("srv", "local")
    offers(bench)
    await bench.logins.begin_device("srv", "local")
    assert len(bench.at.clients) == 2
