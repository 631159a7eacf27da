"""A server that talks without end gets its part of the loop's time, and no more; who says little never waits."""

import asyncio
import gc
import time
from collections.abc import Callable, Generator
from threading import Event
from typing import Any
from weakref import WeakSet

import anyio
import pytest
from loop_steps import Steps
from waiting import until

from sluicegate.runtime import loop_budget
from sluicegate.runtime.loop_budget import (
    BURST,
    BYTE,
    LARGE,
    MOST,
    PART,
    STEP,
    LoopBudget,
    budget_of,
    client_budgets,
    is_large,
)


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


def budget(clock: Clock, everybody: LoopBudget | None = None) -> LoopBudget:
    """No time passes but that of the clock, the processor's neither."""
    return LoopBudget(clock, used=clock, everybody=everybody or LoopBudget(clock, part=2 * PART))


def work(share: LoopBudget, clock: Clock, seconds: float) -> float:
    since = share.now()
    clock.time += seconds
    return share.charge_since(since)


def test_whoever_talks_without_end_has_its_part_in_the_long_run() -> None:
    clock = Clock()
    share = budget(clock)
    worked = 0.0
    for _ in range(10_000):
        pause = work(share, clock, 0.001)
        worked += 0.001
        clock.time += pause
    assert worked / clock.time == pytest.approx(PART, rel=0.02)


def test_a_burst_and_a_little_all_the_time_wait_for_nothing() -> None:
    clock = Clock()
    share = budget(clock)
    assert [work(share, clock, BURST / 50) for _ in range(45)] == [0.0] * 45
    clock.time += BURST / PART
    for _ in range(1_000):
        assert work(share, clock, 0.001) == 0.0
        clock.time += 0.001 / PART
    assert share.pause() == 0.0


def test_a_long_step_costs_as_its_square() -> None:
    clock = Clock()
    short, long = budget(clock), budget(clock)
    for _ in range(5):
        work(short, clock, 2 * STEP)
    work(long, clock, 10 * STEP)
    assert (10 * STEP) ** 2 / STEP == pytest.approx(5 * (2 * STEP) ** 2 / STEP * 5)
    assert long.pause() > short.pause() == 0.0


def test_time_that_was_spent_waiting_for_a_slow_client_counts_little() -> None:
    clock = Clock()
    share = budget(clock)
    assert work(share, clock, 60.0) <= (MOST - BURST) / PART + 1e-9


async def test_an_answer_waits_for_nobody_where_nobody_has_need_of_the_loop() -> None:
    clock = Clock()
    share = budget(clock)
    for _ in range(3):
        work(share, clock, MOST)
    assert share.pause() > 0
    await share.rest()  # no turn takes any time
    assert share.pause() > 0


async def test_a_longer_nap_is_idle_by_the_same_part_of_the_processor() -> None:
    """Somebody who works now and then has no need of the whole loop: whoever waits naps longer each time."""
    clock, naps = Clock(), [0.005, 0.01, 0.02, 0.04]
    at, used = 0.0, [0.0]
    for nap, part in zip(naps, (1, 1, 1, 0.05), strict=True):
        at += nap * part
        used += [at, at]
    reads = iter(used)
    share = LoopBudget(clock, used=lambda: next(reads), everybody=LoopBudget(clock, part=PART))
    work(share, clock, MOST)
    await share.rest()
    assert list(reads) == [at]


async def test_of_all_who_wait_one_alone_takes_an_idle_moment() -> None:
    """They see the same one, and their work begins some turns later."""
    clock, at_work, most = Clock(), 0, 0
    everybody = LoopBudget(clock, part=PART)
    peers = [budget(clock, everybody) for _ in range(5)]
    for peer in peers:
        work(peer, clock, MOST)
        work(peer, clock, MOST)

    async def talk(peer: LoopBudget) -> None:
        nonlocal at_work, most
        await peer.rest()
        at_work += 1
        most = max(most, at_work)
        for _ in range(3):
            await asyncio.sleep(0)
        at_work -= 1

    async with asyncio.TaskGroup() as group:
        for peer in peers:
            group.create_task(talk(peer))
    assert (most, at_work) == (1, 0)


async def test_of_the_connections_of_one_peer_one_reads_on_at_a_time() -> None:
    """What each reads counts two turns later. All of 32 read a piece in one turn, and others waited for that."""
    clock, going, most = Clock(), 0, 0
    share = budget(clock)
    share.read(int(2 * BURST / BYTE))

    async def connection() -> None:
        nonlocal going, most
        await share.rest_to_read()
        going += 1
        most = max(most, going)
        await asyncio.sleep(0)
        share.read(int(BURST / BYTE))
        going -= 1

    async def others() -> None:
        while True:
            clock.time += 0.001
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    async with asyncio.TaskGroup() as group:
        for _ in range(8):
            group.create_task(connection())
    busy.cancel()
    assert (most, going) == (1, 0)


async def test_an_answer_waits_for_its_part_where_others_have_need_of_the_loop() -> None:
    clock = Clock()
    share = budget(clock)
    for _ in range(3):
        work(share, clock, MOST)

    async def others() -> None:
        while True:
            clock.time += 0.001
            await asyncio.sleep(0)

    busy = asyncio.create_task(others())
    await share.rest()
    busy.cancel()
    assert share.pause() == 0.0


async def test_peers_that_have_used_up_theirs_have_one_part_together() -> None:
    """Clients and servers: however many, and none of them is left out."""
    clock = Clock()
    everybody = LoopBudget(clock, part=PART)
    peers = [budget(clock, everybody) for _ in range(6)]
    done = [0] * len(peers)

    async def talk(number: int) -> None:
        while sum(done) < 60:
            async with peers[number].turn:
                await peers[number].rest()
                peers[number].charge_since(clock.time - 2 * STEP)
                done[number] += 1

    async def others() -> None:
        while sum(done) < 60:
            clock.time += 0.01
            await asyncio.sleep(0)

    for peer in peers:
        work(peer, clock, MOST)
    began = clock.time
    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        for number in range(len(peers)):
            group.create_task(talk(number))
    assert clock.time - began > 50 * 4 * STEP / PART
    assert max(done) <= 2 * min(done)


class Watched(LoopBudget):
    """Counts how often its place among those who wait is read."""

    reads = 0

    @property
    def _start(self) -> float:  # type: ignore[override]
        Watched.reads += 1
        return self._place

    @_start.setter
    def _start(self, place: float) -> None:
        self._place = place


async def test_of_many_who_wait_each_looks_at_few_others() -> None:
    """A thousand looked at a thousand each after every nap: most of the loop's time went into that."""
    clock, naps = Clock(), 0.0

    def used() -> float:
        nonlocal naps
        naps += 0.5
        return naps  # others have need of the loop

    everybody = LoopBudget(clock, part=PART)
    peers = [Watched(clock, used=used, everybody=everybody) for _ in range(60)]
    for number, peer in enumerate(peers):
        peer.charge(MOST)
        peer.charge(STEP * (len(peers) - number) / len(peers))  # the last one has had the least
    waiting = [asyncio.create_task(peer.rest()) for peer in peers]
    await asyncio.sleep(0)
    clock.time += 1_000
    Watched.reads = 0
    with anyio.fail_after(20):
        await asyncio.gather(*waiting)
    assert naps > 20 * len(peers) and Watched.reads < 3 * naps


async def test_who_has_some_of_its_own_left_waits_for_nobody() -> None:
    clock = Clock()
    everybody = LoopBudget(clock, part=PART)
    for _ in range(10):
        work(budget(clock, everybody), clock, MOST)
    fair = budget(clock, everybody)
    work(fair, clock, STEP)
    before = clock.time
    await fair.rest()
    assert clock.time == before and everybody.pause() > 0


def test_a_refusal_in_short_steps_costs_less_than_one_in_a_long_one() -> None:
    clock = Clock()
    steps, step = budget(clock), budget(clock)
    steps.refused(4 * STEP, STEP / 3)
    assert steps.pause() == 0.0
    step.refused(4 * STEP, 4 * STEP)
    assert step.pause() > 0.0


async def test_who_was_refused_pays_for_the_next_requests_in_advance() -> None:
    """Those that are let in at once are refused later: without it all of them would come in before the first counts."""
    clock = Clock()
    share = budget(clock)
    assert share.is_unused()
    share.refused(BURST / 10, BURST / 10)
    assert not share.is_unused()
    entered = 0

    async def enter() -> None:
        nonlocal entered
        await share.enter()
        entered += 1

    async def others() -> None:
        while entered < 20:
            clock.time += 0.001
            await asyncio.sleep(0)

    began = clock.time
    async with asyncio.TaskGroup() as group:
        group.create_task(others())
        for _ in range(20):
            group.create_task(enter())
    assert clock.time - began > 15 * 3 * BURST / 10 / PART
    clock.time += 1_000
    assert share.is_unused()


async def test_what_was_paid_in_advance_is_not_paid_again_and_given_back_for_what_is_served() -> None:
    clock = Clock()
    share = budget(clock, LoopBudget(clock, part=PART))
    share.refused(STEP / 3, STEP / 3)
    once = share._level
    await share.enter()
    assert share._level == pytest.approx(2 * once)
    share.refused(STEP / 3, STEP / 3)
    assert share._level == pytest.approx(2 * once), "this one had paid"
    await share.enter()
    share.served()
    assert share._level == pytest.approx(2 * once)
    await share.enter()
    share.served()
    assert share._level == pytest.approx(2 * once), "who is served pays for nothing that others did"
    for _ in range(100):
        share.served()
    assert share._level == pytest.approx(2 * once)


@pytest.mark.parametrize("used", [7 * STEP, MOST])
async def test_what_an_idle_moment_paid_in_advance_is_not_given_back_to_the_own_part(used: float) -> None:
    """Nor what is over `MOST`. A peer could wipe out what it had used by a request that is served."""
    clock = Clock()
    everybody = LoopBudget(clock, part=PART)
    share = budget(clock, everybody)
    share.refused(2 * STEP, STEP / 3)
    work(share, clock, used)
    await share.rest()  # nobody else has need of the loop
    before = share._level, everybody._level, share._free
    await share.enter()
    share.served()
    assert (share._level, everybody._level, share._free) == pytest.approx(before)


def test_an_answer_is_large_by_its_bytes_or_by_its_values() -> None:
    text = b'"' + b"x" * (LARGE - 2) + b'"'
    shapes = (text, text + b" ", b"0," * 2_000, b"[]" * 2_000, b"0," * 100, b"")
    assert [is_large(data) for data in shapes] == [False, True, True, True, False, False]


def test_bytes_that_nobody_looks_at_count_too() -> None:
    clock = Clock()
    everybody = LoopBudget(clock, part=PART)
    share = budget(clock, everybody)
    pieces = 0
    while not share.read(256 * 1024):
        pieces += 1
    assert pieces == pytest.approx(BURST / (256 * 1024 * BYTE), abs=2)
    assert everybody.pause() > 0


async def test_a_server_has_one_budget_for_all_who_work_on_its_messages() -> None:
    assert budget_of("a") is budget_of("a") is not budget_of("b")


async def test_budgets_of_clients_that_nobody_has_need_of_are_forgotten() -> None:
    budgets = client_budgets()
    busy = budgets["busy"]
    async with busy.turn:
        for number in range(3_000):
            budgets[f"key:{number}"].pause()
        assert len(budgets) <= 1_000 and budgets["busy"] is busy and client_budgets() is budgets


async def test_the_budget_of_a_client_that_waits_for_a_thread_is_not_forgotten() -> None:
    budgets, alone = client_budgets(), asyncio.Lock()
    waiting = budgets["waiting"]
    async with alone:
        work = asyncio.create_task(waiting.apart(alone, str))
        await asyncio.sleep(0)
        for number in range(3_000):
            budgets[f"key:{number}"].pause()
        assert budgets["waiting"] is waiting
    assert await work == ""


class HeldWork:
    """Work that goes on until it is released. Notes how often it began, and how much of it was done at once."""

    def __init__(self) -> None:
        self.released, self.began, self.inside, self.most = Event(), 0, 0, 0

    def __call__(self) -> None:
        self.began += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        sum(range(100_000))
        self.released.wait(20)
        self.inside -= 1


async def test_work_whose_caller_is_cancelled_is_still_the_only_one_and_counts() -> None:
    """A client that closed its connections had forty threads work at once, and paid for none."""
    share, alone, work = LoopBudget(), asyncio.Lock(), HeldWork()
    callers = [asyncio.create_task(share.apart(alone, work)) for _ in range(4)]
    await until(lambda: work.began == 1)
    for caller in callers[:2]:  # of the second one nothing has begun
        caller.cancel()
    assert [type(one) for one in await asyncio.gather(*callers[:2], return_exceptions=True)] == [
        asyncio.CancelledError
    ] * 2
    for _ in range(5):
        await anyio.to_thread.run_sync(bool)  # another one could begin
    assert work.began == 1 and alone.locked() and share._start == 0.0
    work.released.set()
    await asyncio.gather(*callers[2:])
    assert work.began == 3 and work.most == 1 and share._start > 0.0 and not alone.locked()


async def test_nothing_of_work_stays_and_no_error_of_it_is_told_to_a_caller_that_is_gone() -> None:
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    share, alone, work = LoopBudget(), asyncio.Lock(), HeldWork()

    def fails() -> None:
        work()
        raise ValueError

    caller = asyncio.create_task(share.apart(alone, fails))
    await until(lambda: work.began == 1)
    caller.cancel()
    await asyncio.gather(caller, return_exceptions=True)
    del caller  # whose traceback holds the work
    result = WeakSet[Any]()
    work.released.set()
    await until(lambda: not alone.locked())

    def value() -> HeldWork:
        result.add(made := HeldWork())
        return made

    assert isinstance(await share.apart(alone, value), HeldWork)
    await until(lambda: gc.collect() >= 0 and not result)  # its thread may let go of it a moment later
    assert not told


@pytest.mark.parametrize("message", [lambda share: share.enter(), lambda share: share.large(iter(()))])
async def test_a_message_does_not_wait_for_a_thread_that_another_one_of_its_peer_waits_for(
    message: Callable[[LoopBudget], asyncio.Future[None]],
) -> None:  # fmt: skip
    """A server's answers all waited while one that a hook is asked about did, for each of the peers before it."""
    share, alone, work = LoopBudget(), asyncio.Lock(), HeldWork()
    async with alone:
        large = asyncio.create_task(share.apart(alone, work))
        await asyncio.sleep(0)
        with anyio.fail_after(20):
            await message(share)
    await until(lambda: work.began == 1)
    with anyio.fail_after(20):
        await message(share)
    work.released.set()
    await large


async def test_time_in_a_thread_counts_as_it_is() -> None:
    """The loop does not stand still meanwhile: as a step of its own, 20 ms counted as 200."""

    def work() -> float:
        began = time.thread_time()
        while time.thread_time() - began < 10 * STEP:
            pass
        return time.thread_time() - began

    share = budget(Clock())
    took = await share.apart(asyncio.Lock(), work)
    assert took <= share._start < 2 * took


@pytest.mark.parametrize(("each", "turns"), [(0.0001, 40), (0.00001, 1), (0.1, 1)])
async def test_behind_a_piece_others_have_the_loop_for_four_times_its_time_while_they_need_it(
    each: float, turns: int
) -> None:  # fmt: skip
    clock, had, between = Clock(), 0, list[int]()

    async def others() -> None:
        nonlocal had
        while True:
            await asyncio.sleep(0)
            clock.time, had = clock.time + each, had + 1

    def pieces() -> Generator[None, None, None]:
        for _ in range(3):
            before, clock.time = had, clock.time + 0.001
            yield
            between.append(had - before)

    busy = asyncio.create_task(others())
    await budget(clock).in_pieces(pieces())
    busy.cancel()
    assert between[1:] == pytest.approx([turns] * 2, abs=1)


async def test_a_thread_that_somebody_waits_for_has_the_interpreter_after_each_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loop's own polls take it back too soon: who writes the audit log would wait until all pieces are done. To
    wake costs as much as a short piece, so that nothing is released where nobody waits."""
    clock, done, let_go = Clock(), list[int](), list[tuple[int, float]]()

    def pieces() -> Generator[None, None, None]:
        for number in range(6):
            clock.time += 0.00025
            done.append(number)
            yield

    class Waiting:
        def acquire(self, timeout: float) -> bool:
            let_go.append((len(done), timeout))
            return False

    monkeypatch.setattr(loop_budget, "_nobody", Waiting())
    monkeypatch.setattr(loop_budget, "_is_thread_awaited", bool)
    share = budget(clock)
    await share.in_pieces(pieces())
    assert not let_go, "no thread is known"
    loop_budget.release_gil_while(lambda: True)
    await share.in_pieces(pieces())
    assert [count for count, _ in let_go] == [7, 8, 9, 10, 11, 12]
    loop_budget.release_gil_while(lambda: False)
    await share.in_pieces(pieces())
    assert len(let_go) == 6
    assert all(0 < seconds < 0.001 for _, seconds in let_go), "nothing at all would not let a thread wake"


async def test_pieces_that_are_short_together_are_one() -> None:
    clock, steps, had = Clock(), Steps(), list[int]()

    def pieces(seconds: float) -> Generator[None, None, str]:
        for _ in range(3):
            clock.time += seconds
            had.append(steps.now)
            yield
        return "done"

    share = budget(clock)
    assert await share.large(pieces(0.00003)) == "done"
    assert len(set(had)) == 1 and steps.now == had[-1], "no turn for others, neither then nor behind it"
    assert await share.large(pieces(0.00003)) == "done"
    assert len(set(had)) == 1 and steps.now == had[-1] + 1, "but behind several of them"
    assert await share.large(pieces(0.001)) == "done"
    steps.stop()
    assert len(set(had[6:])) == 3 and steps.now > had[-1] + 1


async def test_whoever_finds_an_idle_moment_works_in_it_and_does_not_pay() -> None:
    """A client that is alone had one message in each of them: 400 calls a second in place of 2,000."""
    clock, at_once = Clock(), 0
    share = budget(clock)
    work(share, clock, MOST)
    before = share.pause()
    await share.rest()  # nobody else has need of the loop
    while True:
        rest = asyncio.ensure_future(share.rest())
        await asyncio.sleep(0)
        if not rest.done():
            break
        work(share, clock, STEP / 2)
        at_once += 1
    rest.cancel()
    assert at_once == 10 and share.pause() <= before


async def test_an_idle_moment_is_not_lost_where_some_of_the_own_part_is_left_meanwhile() -> None:
    """Whoever is just over its part would find one idle moment for each message."""
    clock = Clock()
    share = budget(clock)
    while (pause := share.pause()) == 0.0:
        work(share, clock, STEP / 2)
    await share.rest()
    clock.time += pause
    await share.rest()  # it has its part
    for _ in range(10):
        assert work(share, clock, STEP / 2) == 0.0
    assert work(share, clock, STEP / 2) > 0.0
    clock.time += 1.0
    work(share, clock, MOST)
    share._free = STEP  # of long ago
    rest = asyncio.ensure_future(share.rest())
    await asyncio.sleep(0)
    assert not rest.done()
    rest.cancel()


async def test_a_short_step_gives_nobody_a_turn_and_counts() -> None:
    clock, steps = Clock(), Steps()
    share = budget(clock)
    for seconds, given in ((0.00005, 0), (0.001, 1)):
        since, before = share.now(), steps.now
        clock.time += seconds
        await share.charge_and_yield(since)
        assert steps.now - before == given
    steps.stop()
    assert not share.is_unused()
