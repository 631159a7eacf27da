"""Tokens over time: renewed by one of many, refused, revoked, lost; clocks that jump, servers that fail."""

import asyncio
import json
import math
import os
import random
import sqlite3
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import jwt
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from login_bench import BACK, Bench
from small_authorization_server import reply
from waiting import until

from sluicegate.login import renewal
from sluicegate.login.logins import Logins
from sluicegate.login.model import Bearer, LoginNeeded, LoginUnavailable
from sluicegate.login.records import Records
from sluicegate.store import StoreFailed

HOUR = 3600.0


def refreshes(bench: Bench) -> int:
    return bench.at.grants.count("refresh_token")


def row(bench: Bench, kind: str = "login") -> tuple[str, bytes]:
    with sqlite3.connect(bench.path / "state" / "sluice.db") as database:
        return database.execute("SELECT key, value FROM item WHERE key LIKE ?", (f"{kind}/%",)).fetchone()


def command(bench: Bench, calls: int, how: str) -> list[str]:
    child = str(Path(__file__).parent / "renewing_child.py")
    return [sys.executable, child, str(bench.path), bench.server.mcp, str(calls), how]


async def many(call: Any, count: int) -> list[Any]:
    return await asyncio.gather(*(call() for _ in range(count)), return_exceptions=True)


async def test_an_old_token_is_renewed_once_for_all_who_wait(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added = 2 * HOUR
    found = await many(lambda: bench.logins.bearer("srv", "local"), 50)
    assert len(set(found)) == 1 and found[0].generation == 2 and refreshes(bench) == 1
    bench.clock.added = 4 * HOUR
    other = bench.make()
    both = [*await many(lambda: bench.logins.bearer("srv", "local"), 25), await other.bearer("srv", "local")]
    assert {bearer.generation for bearer in both} == {3} and refreshes(bench) == 2
    assert bench.told() == ["login_asked", "login_done", "refreshed", "refreshed"]


async def test_two_processes_at_the_same_moment_renew_once(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, other = 2 * HOUR, bench.make()
    found = await asyncio.gather(*(one.bearer("srv", "local") for one in [bench.logins, other] * 25))
    assert {bearer.generation for bearer in found} == {2} and refreshes(bench) == 1


@pytest.mark.parametrize("how", ["renew", "refused"])
async def test_four_processes_renew_once(bench: Bench, how: str) -> None:
    bench.at.life = 2 if how == "renew" else 3600
    bench.clock.added = -100  # so that for the children it is old
    await bench.log_in()
    bench.at.life = 3600
    pipe = asyncio.subprocess.PIPE
    started = [asyncio.create_subprocess_exec(*command(bench, 50, how), stdin=pipe, stdout=pipe) for _ in range(4)]
    children = await asyncio.gather(*started)
    for child in children:
        assert child.stdout is not None and await child.stdout.readline() == b"ready\n"
    ended = await asyncio.gather(*(child.communicate(b"\n") for child in children))
    found = {one for out, _ in ended for one in json.loads(out)}
    assert len(found) == 1 and next(iter(found)).startswith("2 "), found
    assert refreshes(bench) == 1 and not bench.at.dead


async def test_three_processes_live_a_week_with_nights_without_a_new_login(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(renewal, "_POLL", 0.01)
    await bench.log_in()
    processes = [bench.logins, bench.make(), bench.make()]
    while bench.clock.added < 7 * 24 * HOUR:
        bench.clock.added += 12 * HOUR if refreshes(bench) % 10 == 9 else 1700
        found = await asyncio.gather(*(one.bearer("srv", "local") for one in processes))
        assert len({bearer.token for bearer in found}) == 1 and bench.at.is_good(found[0].token)
    assert bench.at.grants.count("authorization_code") == 1 and not bench.at.dead
    assert found[0].generation == 1 + refreshes(bench) > 50


async def test_who_goes_away_does_not_end_the_renewal_of_others(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.hold = 2 * HOUR, asyncio.Event()
    first = asyncio.create_task(bench.logins.bearer("srv", "local"))
    second = asyncio.create_task(bench.logins.bearer("srv", "local"))
    await until(lambda: bench.at.paths("/token")[1:])
    first.cancel()
    bench.at.hold.set()
    assert (await second).generation == 2 and refreshes(bench) == 1


async def test_a_refused_token_is_renewed_once_and_an_older_one_not_at_all(bench: Bench) -> None:
    await bench.log_in()
    used = await bench.logins.bearer("srv", "local")
    bench.clock.added = 60
    found = await many(lambda: bench.refused(used), 20)
    assert {bearer.generation for bearer in found} == {2} and refreshes(bench) == 1
    assert (await bench.refused(used, logins=bench.make())).generation == 2 and refreshes(bench) == 1


async def test_where_every_token_is_refused_there_is_one_renewal_and_then_quiet(bench: Bench) -> None:
    await bench.log_in()
    used = await bench.logins.bearer("srv", "local")
    bench.clock.added = 60

    async def call() -> Bearer:
        again = await bench.refused(used)
        return await bench.refused(again)

    assert {str(error) for error in await many(call, 200)} == {"srv refuses every token"}
    for logins in (bench.logins, bench.make()):
        with pytest.raises(LoginUnavailable, match="refuses every token"):
            await logins.bearer("srv", "local")
    assert refreshes(bench) == 1 and [info.state for info in await bench.logins.all()] == ["refused"]
    bench.clock.added = 130
    assert [info.state for info in await bench.logins.all()] == ["ok"]
    again = await bench.logins.bearer("srv", "local")
    assert (await bench.refused(again)).generation == 3


@pytest.mark.parametrize(
    "page",
    [(500, {}, b""), (503, {}, b'{"error":"invalid_grant"}'), (200, {}, b"<html>"), (200, {}, b"x" * 2_000_000), None,
     (302, {"location": "/doc"}, b""), (429, {}, b""), (400, {}, b'{"error":"temporarily_unavailable"}')],
)  # fmt: skip
async def test_an_authorization_server_that_fails_ends_no_login(bench: Bench, page: Any) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.pages["/token"] = 2 * HOUR, page
    before = row(bench)
    for _ in range(5):
        with pytest.raises(LoginUnavailable):
            await bench.logins.bearer("srv", "local")
    assert len(bench.at.paths("/token")) <= 4 and row(bench) == before and bench.at.paths("/doc") == []
    del bench.at.pages["/token"]
    bench.clock.added += 20
    assert (await bench.logins.bearer("srv", "local")).generation == 2


async def test_an_authorization_server_that_is_down_ends_no_login_and_a_good_token_is_used_on(bench: Bench) -> None:
    bench.at.life = 1000
    await bench.log_in()
    bench.at.pages["/token"] = None
    bench.clock.added = 950  # time for a renewal, and the token is still good
    bearer = await bench.logins.bearer("srv", "local")
    assert bearer.generation == 1
    bench.clock.added = 1100
    with pytest.raises(LoginUnavailable, match="does not answer"):
        await bench.logins.bearer("srv", "local")


async def test_a_lost_answer_is_asked_for_once_more_with_the_same_token(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, answers = 2 * HOUR, [None, reply({"access_token": "new", "token_type": "bearer"})]
    bench.at.pages["/token"] = lambda seen: answers.pop(0)
    bearer = await bench.logins.bearer("srv", "local")
    sent = [seen.body for seen in bench.at.seen if seen.path == "/token"][1:]
    assert bearer.token == "new" and len(sent) == 2 and len(set(sent)) == 1
    info = (await bench.logins.all())[0]
    assert info.can_refresh and info.expires_at is None, "the old refresh token is kept"


async def test_invalid_grant_ends_a_login_and_forgets_its_tokens(bench: Bench) -> None:
    await bench.log_in()
    bench.at.dead.update(bench.at.scopes)
    bench.clock.added = 2 * HOUR
    assert {type(error) for error in await many(lambda: bench.logins.bearer("srv", "local"), 20)} == {LoginNeeded}
    assert refreshes(bench) == 1 and bench.events[-1].reason == "invalid_grant"
    assert [(info.state, info.can_refresh) for info in await bench.logins.all()] == [("needed", False)]
    assert (await bench.log_in()).state == "ok"


async def test_a_client_that_the_authorization_server_forgot_is_registered_anew(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.pages["/token"] = 2 * HOUR, reply({"error": "invalid_client"}, 401)
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")
    del bench.at.pages["/token"]
    assert (await bench.log_in()).client_id == "client-2"


@pytest.mark.parametrize("life", [0, -1, 1e300, None, "3600", 1, 30])
async def test_no_life_of_a_token_leads_to_a_loop(bench: Bench, life: Any) -> None:
    bench.at.life = life
    await bench.log_in()
    for _ in range(5):
        bearer = await bench.logins.bearer("srv", "local")
        assert bench.at.is_good(bearer.token)
    assert refreshes(bench) <= (5 if life == 1 else 0)


@pytest.mark.parametrize("jump", [-HOUR, HOUR, 12 * HOUR])
async def test_a_clock_that_jumps_costs_one_renewal_at_most(bench: Bench, jump: float) -> None:
    await bench.log_in()
    await bench.logins.bearer("srv", "local")
    bench.clock.added = jump
    for _ in range(5):
        bearer = await bench.logins.bearer("srv", "local")
    if jump < 0:
        bearer = await bench.refused(bearer)
    assert refreshes(bench) == 1 and bearer.generation == 2


async def test_a_machine_that_sleeps_amid_a_renewal_renews_once_more_when_it_wakes(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.hold = 2 * HOUR, asyncio.Event()
    renewing = asyncio.create_task(bench.logins.bearer("srv", "local"))
    await until(lambda: bench.at.paths("/token")[1:])
    bench.clock.added += 8 * HOUR
    bench.at.hold.set()
    used = await renewing  # its life was over before its answer was read
    assert (await bench.refused(used)).generation == 3 and refreshes(bench) == 2
    assert [info.state for info in await bench.logins.all()] == ["ok"] and not bench.at.dead


async def test_a_lease_that_nobody_gave_back_is_taken_over_and_a_lost_token_is_said(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.hold = 2 * HOUR, asyncio.Event()
    dying = asyncio.create_task(bench.logins.bearer("srv", "local"))
    await until(lambda: bench.at.paths("/token")[1:])
    with sqlite3.connect(bench.path / "state" / "sluice.db") as database:
        (key, value) = database.execute("SELECT key, value FROM item WHERE key LIKE 'login-lease/%'").fetchone()
    dying.cancel()
    bench.at.hold.set()
    await bench.logins.aclose()
    with pytest.raises(LoginNeeded):  # as it would stand after a kill -9 between answer and write
        bench.at.dead.update(bench.at.scopes)
        store = bench.others[0][1]
        await store.put(key, value)
        bench.clock.added += 2 * HOUR
        await bench.make().bearer("srv", "local")
    assert bench.events[-1].reason == "lost"


async def test_what_cannot_be_kept_is_given_to_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.log_in()
    store = bench.others[0][1]
    real, failures = store.swap, [0]

    async def swap(key: str, expected: Any, writes: Any) -> bool:
        if key.startswith("login/") and failures[0] < 2:
            failures[0] += 1
            raise StoreFailed("disk full")
        return await real(key, expected, writes)

    monkeypatch.setattr(store, "swap", swap)
    bench.clock.added = 2 * HOUR
    bearer = await bench.logins.bearer("srv", "local")
    assert bearer.generation == 2 and refreshes(bench) == 1
    assert (await bench.make().bearer("srv", "local")).token == bearer.token


async def test_processes_that_are_killed_at_any_moment_cost_one_login_each_at_most(bench: Bench) -> None:
    """`SLUICE_CRASH_ROUNDS=200` kills as many."""
    await bench.log_in()
    pipe, lots, logins = asyncio.subprocess.PIPE, random.Random(7), 0
    for crashes in range(1, 1 + int(os.environ.get("SLUICE_CRASH_ROUNDS", "5"))):
        hours = crashes * 1000  # so that whoever comes next finds an old token, and a lease that is over
        child = await asyncio.create_subprocess_exec(*command(bench, hours, "live"), stdin=pipe, stdout=pipe)
        assert child.stdin is not None and child.stdout is not None
        await child.stdout.readline()
        child.stdin.write(b"\n")
        await child.stdout.readline()
        await anyio.sleep(lots.uniform(0, 0.2))
        child.kill()
        given = max((int(line) for line in (await child.stdout.read()).split()), default=0)
        await child.wait()
        await anyio.sleep(0.01)
        await until(lambda: not bench.at.connections)  # what was on its way has arrived: the lease would outlast it
        assert (await bench.logins.all())[0].generation >= given, "it was on disk before anybody had it"
        bench.clock.added = (hours + 500) * HOUR
        try:
            after = await bench.logins.bearer("srv", "local")
        except LoginNeeded:
            logins += 1
            assert bench.events[-1].reason == "lost"
            after = await bench.logins.bearer("srv", (await bench.log_in()).whose)
        assert after.generation > given
    assert len(bench.at.clients) == 1 and logins <= crashes


async def test_tokens_that_could_not_be_kept_are_not_asked_for_twice(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    await bench.log_in()
    store = bench.others[0][1]
    real, is_full = store.swap, True

    async def swap(key: str, expected: Any, writes: Any) -> bool:
        if is_full and key.startswith("login/"):
            raise StoreFailed("disk full")
        return await real(key, expected, writes)

    monkeypatch.setattr(store, "swap", swap)
    monkeypatch.setattr(renewal, "KEEP_WITHIN", 0.3)
    bench.clock.added = 2 * HOUR
    with pytest.raises(LoginUnavailable, match="cannot be written"):
        await bench.logins.bearer("srv", "local")
    is_full = False
    bench.clock.added += 20
    assert (await bench.logins.bearer("srv", "local")).generation == 2
    assert refreshes(bench) == 1 and not bench.at.dead


@pytest.mark.parametrize("is_rotated", [True, False])
async def test_a_process_that_is_killed_amid_a_renewal_costs_one_login_at_most(bench: Bench, is_rotated: bool) -> None:
    bench.at.life, bench.clock.added = 2, -100
    await bench.log_in()
    bench.at.life, bench.at.hold = 3600, asyncio.Event()
    if not is_rotated:
        bench.at.pages["/token"] = None  # it dies before the authorization server has done anything
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*command(bench, 1, "renew"), stdin=pipe, stdout=pipe)
    assert child.stdin is not None
    child.stdin.write(b"\n")
    await until(lambda: bench.at.paths("/token")[1:])
    child.kill()
    await child.wait()
    bench.at.hold.set()
    if not is_rotated:
        del bench.at.pages["/token"]
    bench.clock.added = 40  # the lease of the dead is over
    if is_rotated:
        await until(lambda: refreshes(bench))
        with pytest.raises(LoginNeeded):
            await bench.logins.bearer("srv", "local")
        assert bench.events[-1].reason == "lost"
        await bench.log_in()
    assert (await bench.logins.bearer("srv", "local")).generation == 2 and len(bench.at.clients) == 1


# ---------------------------------------------------------------- logout, and what is kept


async def test_a_logout_revokes_there_deletes_here_and_other_processes_know_within_5_seconds(bench: Bench) -> None:
    await bench.log_in()
    other = bench.make()
    await other.bearer("srv", "local")
    await bench.logins.bearer("srv", "local")
    kept = bench.logins.cached("srv", "local")
    assert await bench.logins.logout("srv", "local") is True
    assert bench.logins.cached("srv", "local") is None
    assert kept is not None and kept.until == 0  # whoever holds it is told, too
    bench.clock.added = 5
    assert other.cached("srv", "local") is None
    for logins in (bench.logins, other):
        with pytest.raises(LoginNeeded):
            await logins.bearer("srv", "local")
    kinds = [seen.form["token_type_hint"] for seen in bench.at.seen if seen.path == "/revoke"]
    assert kinds == ["refresh_token", "access_token"] and bench.told()[-1] == "logged_out"
    assert await bench.logins.logout("srv", "local") is None and await bench.logins.all() == []


async def test_a_login_of_another_process_replaces_a_token_that_was_just_used(bench: Bench) -> None:
    await bench.log_in()
    other = bench.make()
    before = await other.bearer("srv", "local")
    kept = other.cached("srv", "local")
    await bench.logins.logout("srv", "local")
    await bench.log_in()
    (info,) = await other.all()
    assert other.cached("srv", "local") is None and kept is not None and kept.until == 0
    assert (await other.bearer("srv", "local")).login == info.id != before.login


async def test_a_logout_that_others_always_overtake_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.log_in()

    async def overtaken(*change: Any) -> bool:
        await anyio.lowlevel.checkpoint()
        return False

    with monkeypatch.context() as patch:
        patch.setattr(bench.others[0][1], "swap", overtaken)
        with anyio.fail_after(20), pytest.raises(StoreFailed, match="other processes write all the time"):
            await bench.logins.logout("srv", "local")
    assert await bench.logins.logout("srv", "local") is True


@pytest.mark.parametrize("page", [None, (503, {}, b""), (400, {}, b"{}")])
async def test_a_logout_that_cannot_revoke_deletes_all_the_same(bench: Bench, page: Any) -> None:
    await bench.log_in()
    bench.at.pages["/revoke"] = page
    assert await bench.logins.logout("srv", "local") is False and await bench.logins.all() == []


async def test_a_logout_amid_renewals_leaves_no_token_that_is_good(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.hold, other = 2 * HOUR, asyncio.Event(), bench.make()
    calls = [asyncio.create_task(other.bearer("srv", "local")) for _ in range(20)]
    await until(lambda: bench.at.paths("/token")[1:])
    leaving = asyncio.create_task(bench.logins.logout("srv", "local"))
    await until(lambda: bench.at.paths("/revoke"))
    assert [info.state for info in await other.all()] == ["leaving"], "it is written before the revocation"
    bench.at.hold.set()
    await leaving
    assert all(isinstance(found, LoginNeeded) for found in await asyncio.gather(*calls, return_exceptions=True))
    assert not any(bench.at.is_good(token) for token in bench.at.access) and await bench.logins.all() == []


async def test_a_login_that_goes_away_just_before_its_renewal_is_not_renewed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.configure(client_id="pre")
    await bench.log_in()
    real, reads = Records.login, 0

    async def login(self: Records, server: str, whose: str) -> Any:
        nonlocal reads
        reads += 1
        return await real(self, server, whose) if reads < 2 else (None, None)

    monkeypatch.setattr(Records, "login", login)
    bench.clock.added = 2 * HOUR
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")
    assert reads == 2 and bench.at.grants == ["authorization_code"]


async def test_new_tokens_of_a_login_that_went_away_meanwhile_are_revoked_one_by_one(bench: Bench) -> None:
    await bench.log_in()
    bench.clock.added, bench.at.hold = 2 * HOUR, asyncio.Event()
    bench.at.pages["/revoke"] = lambda seen: reply({})  # one that ends no family
    renewing = asyncio.create_task(bench.logins.bearer("srv", "local"))
    await until(lambda: bench.at.paths("/token")[1:])
    await bench.others[0][1].delete(row(bench)[0])
    bench.at.hold.set()
    with pytest.raises(LoginNeeded):
        await renewing
    revoked = {seen.form["token"] for seen in bench.at.seen if seen.path == "/revoke"}
    assert revoked == {list(bench.at.families)[-1], list(bench.at.access)[-1]}


async def test_a_403_that_names_no_right_costs_no_renewal(bench: Bench) -> None:
    await bench.log_in()
    used = await bench.logins.bearer("srv", "local")
    bench.clock.added = 60
    for challenge in ("Bearer", 'DPoP error="insufficient_scope"'):
        with pytest.raises(LoginUnavailable, match="which right"):
            await bench.refused(used, status=403, challenge=challenge)
    assert refreshes(bench) == 0 and (await bench.logins.bearer("srv", "local")).token == used.token


async def test_a_wanted_right_is_remembered_through_a_renewal(bench: Bench) -> None:
    await bench.log_in(challenge=(bench.server.challenge(scope="read"),))
    used = await bench.logins.bearer("srv", "local")
    with pytest.raises(LoginNeeded):
        await bench.refused(used, status=403, challenge=bench.server.challenge("insufficient_scope", "write"))
    bench.clock.added = 2 * HOUR
    assert (await bench.logins.bearer("srv", "local")).generation == 2
    flow = await bench.logins.begin("srv", "local", BACK)
    assert "write" in flow.url


async def test_what_was_cached_before_the_clock_was_set_back_is_looked_for_again(bench: Bench) -> None:
    await bench.log_in()
    await bench.logins.bearer("srv", "local")
    bench.clock.added = -HOUR
    assert bench.logins.cached("srv", "local") is None


async def test_rows_that_were_moved_or_whose_key_is_gone_are_no_logins(bench: Bench) -> None:
    await bench.log_in("alice")
    await bench.log_in("bob")
    file = bench.path / "state" / "sluice.db"
    with sqlite3.connect(file) as database:
        rows = database.execute("SELECT key, value FROM item WHERE key LIKE 'login/%' ORDER BY key").fetchall()
        for (key, _), (_, value) in zip(rows, reversed(rows), strict=True):
            database.execute("UPDATE item SET value = ? WHERE key = ?", (value, key))
    fresh = bench.make()
    for whose in ("alice", "bob"):
        with pytest.raises(LoginNeeded):
            await fresh.bearer("srv", whose)
    assert [(info.whose, info.state) for info in await fresh.all()] == [("alice", "needed"), ("bob", "needed")]
    await bench.log_in("alice")
    (bench.path / "keys" / "login").unlink()
    keyless = bench.make()
    with pytest.raises(LoginNeeded):
        await keyless.bearer("srv", "alice")
    assert await keyless.logout("srv", "alice") is False
    flow = await keyless.begin("srv", "alice", BACK)
    assert (await keyless.finish(bench.at.authorize(flow.url), BACK)).state == "ok"


async def test_nothing_that_is_kept_logged_or_shown_has_a_secret_in_it(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    bench.at.metadata = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}
    flow = await bench.logins.begin("srv", "local", BACK)
    info = await bench.logins.finish(bench.at.authorize(flow.url), BACK)
    bearer = await bench.logins.bearer("srv", "local")
    bench.clock.added = 2 * HOUR
    renewed = await bench.logins.bearer("srv", "local")
    words = repr((bench.events, info, bearer, renewed, flow, bench.settings)) + caplog.text
    kept = b"".join(file.read_bytes() for file in (bench.path / "state").iterdir())
    for secret in bench.at.secrets:
        assert secret not in words and secret.encode() not in kept
    for seen in bench.at.seen:
        if "code_verifier" in (seen.form if seen.path == "/token" else {}):
            assert seen.form["code_verifier"].encode() not in kept
    assert all(secret not in seen.path for secret in bench.at.secrets for seen in bench.at.seen)


async def test_names_with_slashes_do_not_meet(bench: Bench) -> None:
    await bench.log_in("a/b")
    for whose in ("a", "a%2Fb", "b", "a/b/"):
        with pytest.raises(LoginNeeded):
            await bench.logins.bearer("srv", whose)
    assert [info.whose for info in await bench.logins.all()] == ["a/b"]


@pytest.mark.parametrize("more", [{"identity": "other"}, {"resource": "urn:x"}, {"client_id": "pre"}, {"issuer": "https://x"}])
async def test_a_login_is_not_used_where_the_config_has_changed(bench: Bench, more: Any) -> None:
    await bench.log_in()
    await bench.logins.bearer("srv", "local")
    before = bench.settings
    bench.configure(**more)
    assert bench.logins.cached("srv", "local") is None
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")
    assert [info.state for info in await bench.logins.all()] == ["needed"]
    bench.logins.configure({"srv": before})
    assert (await bench.logins.bearer("srv", "local")).generation == 1


async def test_a_token_without_end_and_refresh_is_used_until_it_is_refused(bench: Bench) -> None:
    bench.at.life, bench.at.rotates = None, False
    await bench.log_in()
    bench.at.families.clear()
    bearer = await bench.logins.bearer("srv", "local")
    assert bearer.fresh_until == math.inf


async def test_a_token_that_nothing_renews_is_used_to_its_end(bench: Bench) -> None:
    bench.at.pages["/token"] = lambda seen: reply({"access_token": "t", "token_type": "bearer", "expires_in": 100})
    await bench.log_in()
    bench.clock.added = 90
    used = await bench.logins.bearer("srv", "local")
    assert used.token == "t"
    bench.clock.added = 101
    assert [info.state for info in await bench.logins.all()] == ["expired"]
    for call in (bench.logins.bearer("srv", "local"), bench.refused(used)):
        with pytest.raises(LoginNeeded):
            await call


# ---------------------------------------------------------------- machines


async def test_a_machine_logs_in_by_itself_and_anew_at_the_end(bench: Bench) -> None:
    bench.configure(grant="client_credentials", client_id="m", client_secret="s", max_scopes=("a", "b"))
    bench.server.prm = {"scopes_supported": ["a"]}
    found = await many(lambda: bench.logins.bearer("srv", "gateway"), 20)
    assert len(set(found)) == 1 and bench.at.grants == ["client_credentials"]
    bench.clock.added = 2 * HOUR
    assert (await bench.logins.bearer("srv", "gateway")).generation == 2
    bench.clock.added += 60
    again = await bench.refused(await bench.logins.bearer("srv", "gateway"), "gateway")
    challenge = bench.server.challenge("insufficient_scope", "b")
    more = await bench.refused(again, "gateway", status=403, challenge=challenge)
    assert more.generation == 4 and (await bench.logins.all())[0].scopes == ("a", "b")
    with pytest.raises(LoginUnavailable, match="max_scopes"):
        await bench.refused(more, "gateway", status=403, challenge=bench.server.challenge("insufficient_scope", "root"))
    bench.at.pages["/token"] = reply({"error": "invalid_client"}, 401)
    bench.clock.added += 2 * HOUR
    with pytest.raises(LoginUnavailable, match="invalid_client"):
        await bench.logins.bearer("srv", "gateway")


async def test_a_machine_proves_itself_by_a_key_to_the_issuer(bench: Bench) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    bench.configure(grant="client_credentials", client_id="m", client_key=pem)
    await bench.logins.bearer("srv", "gateway")
    claims = jwt.decode(bench.at.assertions[0], key.public_key(), ["ES256"], audience=bench.at.issuer)
    assert claims["iss"] == claims["sub"] == "m"
    assert pem.splitlines()[1] not in repr(bench.settings)


async def test_a_hot_token_costs_no_store(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    await bench.log_in()
    bearer = await bench.logins.bearer("srv", "local")

    async def get(key: str) -> Any:
        raise AssertionError(f"asked for {key}")

    monkeypatch.setattr(bench.others[0][1], "get", get)
    for _ in range(100):
        assert await bench.logins.bearer("srv", "local") is bearer
    assert isinstance(bench.logins, Logins) and replace(bearer) == bearer


async def test_why_the_last_renewal_failed_is_told_until_one_goes_well(bench: Bench) -> None:
    await bench.log_in()
    (first,) = await bench.logins.all()
    assert first.problem == "" and first.renewed_at is not None
    bench.clock.added += 3590
    bench.at.pages["/token"] = reply({}, 503)
    await bench.logins.bearer("srv", "local")  # it is old, but good
    (info,) = await bench.logins.all()
    assert info.state == "ok" and info.problem.endswith("answers HTTP 503") and info.renewed_at == first.renewed_at
    bench.clock.added += renewal.PAUSE + 1
    bench.at.pages.clear()
    await bench.logins.bearer("srv", "local")
    (info,) = await bench.logins.all()
    assert info.problem == "" and (info.renewed_at or 0) > first.renewed_at
    bench.at.dead.update(bench.at.families.values())
    bench.clock.added += 3600
    with pytest.raises(LoginNeeded):
        await bench.logins.bearer("srv", "local")
    for logins in (bench.logins, bench.make()):
        assert ["has ended" in one.problem for one in await logins.all()] == [True]
