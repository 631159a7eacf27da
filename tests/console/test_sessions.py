"""ConsoleSessions, codes and attempts end when they should; no half of a session is worth anything alone."""

import pytest

from sluicegate.console.sessions import (
    ATTEMPTS_WITHIN,
    CODE_LIFE,
    LIFETIMES,
    MAX_ATTEMPTS,
    MAX_CODES,
    MAX_PER_PRINCIPAL,
    MAX_SESSIONS,
    STEP_UP_LIFE,
    Codes,
    ConsoleSessions,
    Session,
    SessionKind,
    SessionsFull,
)
from sluicegate.policy.rates import Windows


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_both_halves_are_needed_and_neither_is_kept_or_shown() -> None:
    sessions = ConsoleSessions()
    session, halves = sessions.open("key:ann", "key", "the-credential")
    _, others = sessions.open("key:bob", "key", "another")
    assert sessions.find(halves.cookie, halves.page_key, True) is session
    assert sessions.find(halves.cookie, "", True) is None
    assert sessions.find("", halves.page_key, True) is None
    assert sessions.find(halves.cookie, others.page_key, True) is None, "the second half of somebody else"
    shown = repr((sessions, session, halves))
    for secret in (halves.cookie, halves.page_key, "the-credential"):
        assert secret not in shown and secret not in (session.cookie, session.page_key)


@pytest.mark.parametrize("way", ["link", "key"])
def test_a_session_ends_when_nobody_uses_it_and_at_last_in_any_case(way: SessionKind) -> None:
    clock, life = Clock(), LIFETIMES[way]
    sessions = ConsoleSessions(clock)
    session, halves = sessions.open("local", way, "c")
    clock.now += life.idle - 1
    assert sessions.find(halves.cookie, halves.page_key, False) is session, "looked at, not used"
    clock.now += 1
    assert not sessions.is_open(session) and sessions.find(halves.cookie, halves.page_key, True) is None
    session, halves = sessions.open("local", way, "c")
    began = clock.now
    while clock.now + life.idle - 1 < began + life.absolute:
        clock.now += life.idle - 1
        assert sessions.find(halves.cookie, halves.page_key, True) is session
    clock.now = began + life.absolute
    assert sessions.find(halves.cookie, halves.page_key, True) is None


def test_new_halves_end_the_old_ones_and_log_out_everywhere_ends_all_of_one_principal() -> None:
    sessions = ConsoleSessions()
    session, old = sessions.open("key:ann", "key", "c")
    new = sessions.renew(session)
    assert sessions.find(old.cookie, old.page_key, True) is None
    assert sessions.find(new.cookie, new.page_key, True) is session
    second, _ = sessions.open("key:ann", "key", "c")
    other, _ = sessions.open("key:bob", "key", "c")
    assert sessions.end_all_of("key:ann") == 2
    assert not sessions.is_open(session) and not sessions.is_open(second) and sessions.is_open(other)


def test_a_step_up_is_over_after_five_minutes() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    session, _ = sessions.open("key:ann", "key", "c")
    assert sessions.seconds_of_step_up(session) == 0
    sessions.step_up(session)
    clock.now += STEP_UP_LIFE - 1
    assert sessions.seconds_of_step_up(session) == 1
    clock.now += 1
    assert sessions.seconds_of_step_up(session) == 0


def test_a_code_is_good_once_and_for_a_minute() -> None:
    clock = Clock()
    codes = Codes(clock)
    first, late = codes.make("token"), codes.make("token")
    assert codes.use(first) == "token" and codes.use(first) is None and codes.use("guess") is None
    clock.now += CODE_LIFE
    assert codes.use(late) is None
    made = [codes.make("token") for _ in range(MAX_CODES + 1)]
    assert codes.use(made[0]) is None and codes.use(made[1]) == "token", "the oldest makes room"


def opened(sessions: ConsoleSessions, clock: Clock, principal: str, count: int) -> list[Session]:
    found = []
    for _ in range(count):
        found.append(sessions.open(principal, "key", "c")[0])
        clock.now += 0.001
    return found


def test_whoever_logs_in_again_and_again_ends_their_own_sessions_alone() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    (lea,) = opened(sessions, clock, "key:lea", 1)
    anns = opened(sessions, clock, "key:ann", MAX_SESSIONS)
    assert [sessions.is_open(one) for one in anns] == [False] * (MAX_SESSIONS - MAX_PER_PRINCIPAL) + (
        [True] * MAX_PER_PRINCIPAL
    )
    assert sessions.is_open(lea)


def test_where_all_sessions_are_others_nobodys_ends_and_the_operators_link_still_opens_one() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    (lea,) = opened(sessions, clock, "key:lea", 1)
    others = [opened(sessions, clock, f"key:k{number}", 1)[0] for number in range(MAX_SESSIONS - 1)]
    with pytest.raises(SessionsFull):
        sessions.open("key:new", "key", "c")
    assert not sessions.take(Session("key:new", "key", "c", clock.now, clock.now, cookie="x"))
    assert all(map(sessions.is_open, [lea, *others]))
    (again,) = opened(sessions, clock, "key:lea", 1)
    assert not sessions.is_open(lea) and all(map(sessions.is_open, [again, *others]))
    operator, _ = sessions.open("local", "link", "c")
    assert all(map(sessions.is_open, [operator, again, *others]))


def test_a_session_of_an_earlier_process_ends_none_but_the_principals_own() -> None:
    clock = Clock()
    sessions = ConsoleSessions(clock)
    (lea,) = opened(sessions, clock, "key:lea", 1)
    anns = opened(sessions, clock, "key:ann", MAX_PER_PRINCIPAL)
    assert sessions.take(Session("key:ann", "key", "c", clock.now, clock.now, cookie="x"))
    assert [sessions.is_open(one) for one in (lea, *anns)] == [True, False] + [True] * (MAX_PER_PRINCIPAL - 1)


def test_an_address_may_try_five_times_a_minute() -> None:
    clock = Clock()
    attempts = Windows(MAX_ATTEMPTS, ATTEMPTS_WITHIN, clock)
    assert [attempts.hit("10.0.0.1") == 0 for _ in range(MAX_ATTEMPTS + 2)] == [True] * MAX_ATTEMPTS + [False] * 2
    assert attempts.hit("10.0.0.2") == 0, "another address"
    clock.now += ATTEMPTS_WITHIN
    assert attempts.hit("10.0.0.1") == 0
