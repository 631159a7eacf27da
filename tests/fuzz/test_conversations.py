"""Random conversations of several clients in both eras go as a small model says; those that once did not, too.

SLUICE_FUZZ_SECONDS says how long others are drawn (make soak); without it a few are, the same ones each time. What
fails is printed as steps: in a file in `regressions/conversation` they are played again by every run.
"""

import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conversation import CLASSES, MAX_WAITING, ODD, REVISIONS, SERVERS, WHO, Conversation
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

KEPT = Path(__file__).parent / "regressions" / "conversation"
SECONDS = float(os.environ.get("SLUICE_FUZZ_SECONDS", "0"))
CALM = settings(
    max_examples=10, stateful_step_count=25, deadline=None, database=None, suppress_health_check=[*HealthCheck],
    phases=[Phase.generate, Phase.shrink] if SECONDS else [Phase.generate], print_blob=False,
)  # fmt: skip

clients, servers, which = st.sampled_from([*WHO, "ann"]), st.sampled_from(SERVERS), st.integers(0, 3)
speakers = st.integers(-2, 3)  # a session, or below zero none


class Talking(RuleBasedStateMachine):
    played = steps = 0

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(tempfile.mkdtemp(prefix="sluice-fuzz-"))
        self._talk = Conversation(self._folder)
        self._steps: list[list[Any]] = []
        Talking.played += 1

    def _do(self, *step: Any) -> None:
        self._steps.append([*step])
        Talking.steps += 1
        try:
            self._talk.do([*step])
        except BaseException:
            self._print()
            raise

    def _print(self) -> None:
        print(f"keep these steps in {KEPT}/WHAT-IT-SHOWS.json:\n{json.dumps(self._steps)}")

    def teardown(self) -> None:
        try:
            self._talk.finish()
        except BaseException:
            self._print()
            raise
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    @rule(who=clients, revision=st.sampled_from([*REVISIONS, "1999-01-01"]), is_whole=st.booleans())
    def open(self, who: str, revision: str, is_whole: bool) -> None:
        self._do("open", who, revision, is_whole)

    @rule(which=which)
    def ping(self, which: int) -> None:
        self._do("ping", which)

    @rule(which=which)
    def delete(self, which: int) -> None:
        self._do("delete", which)

    @rule(which=which, who=clients)
    def stale(self, which: int, who: str) -> None:
        self._do("stale", which, who)

    @rule(who=clients, which=speakers)
    def list(self, who: str, which: int) -> None:
        self._do("list", who, which)

    @rule(who=clients, which=speakers, server=servers, tool=st.sampled_from([*CLASSES, "nothing"]).filter(
        lambda tool: tool not in ("hang", "tell")))  # fmt: skip
    def call(self, who: str, which: int, server: str, tool: str) -> None:
        self._do("call", who, which, server, tool)

    @rule(which=speakers, server=servers, tool=st.sampled_from(["hang", "tell"]))
    def hang(self, which: int, server: str, tool: str) -> None:
        self._do("hang", "ann", which, server, tool)

    @rule(what=st.sampled_from(["answer", "cancel", "drop", "resume"]), which=st.integers(0, MAX_WAITING - 1))
    def goes_on(self, what: str, which: int) -> None:
        self._do(what, which)

    @rule(what=st.sampled_from(["gone", "back"]), server=servers)
    def server_moves(self, what: str, server: str) -> None:
        self._do(what, server)

    @rule(who=clients, which=st.integers(0, len(ODD) - 1))
    def odd(self, who: str, which: int) -> None:
        self._do("odd", who, which)


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """What a Sluice in this process says of hostile steps is no news."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_conversations_go_as_the_model_says() -> None:
    until, number = time.monotonic() + SECONDS, 0
    while number == 0 or time.monotonic() < until:
        run_state_machine_as_test(seed(number)(Talking), settings=CALM)
        number += 1
    print(f"{Talking.played} conversations, {Talking.steps} steps")


@pytest.mark.parametrize("kept", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_conversation_that_was_found_goes_as_the_model_says(kept: Path, tmp_path: Path) -> None:
    talk = Conversation(tmp_path)
    try:
        for step in json.loads(kept.read_text()):
            talk.do(step)
    finally:
        talk.finish()
