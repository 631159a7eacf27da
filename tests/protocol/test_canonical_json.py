"""The text that digests are made of, in one step and in many."""

from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol.canonical_json import PART, canonical, canonical_parts, hashed, is_longer

texts = st.text(st.characters(exclude_categories=()), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(texts, inner, max_size=5),
    max_leaves=30,
)


def steps_of(value: Any) -> tuple[int, str]:
    """How many steps the digest takes, and the digest."""
    work, steps = hashed(value), 0
    while True:
        steps += 1
        try:
            next(work)
        except StopIteration as end:
            return steps, end.value


@given(values)
def test_the_parts_are_the_whole(value: Any) -> None:
    assert "".join(canonical_parts(value)) == canonical(value)
    assert steps_of(value) == (1, sha256(canonical(value).encode()).hexdigest())


@pytest.mark.parametrize("char", ["x", '"', "\u00e9", "\U0001f600", "\ud800"])
def test_a_long_text_is_escaped_and_hashed_in_steps(char: str) -> None:
    value = {"a": [char * (20 * PART + 1)], char * (3 * PART): 1}
    parts = list(canonical_parts(value))
    assert "".join(parts) == canonical(value) and max(map(len, parts)) <= 12 * PART
    steps, digest = steps_of(value)
    assert steps > 1 and digest == sha256(canonical(value).encode()).hexdigest()


def test_many_values_are_hashed_in_steps() -> None:
    value = [{"n": n} for n in range(10_000)]
    steps, digest = steps_of(value)
    assert steps > 10 and digest == sha256(canonical(value).encode()).hexdigest()


@given(values, st.integers(0, 200))
def test_what_is_longer_is_known_before_it_is_escaped(value: Any, characters: int) -> None:
    if is_longer(value, characters):
        assert len(canonical(value)) > characters
    else:
        assert len(canonical(value)) <= 14 * characters + 6  # what is escaped has 12 characters for one


def test_a_text_of_megabytes_is_too_long_at_once() -> None:
    assert is_longer({"name": "x" * 10_000_000}, 16_384) and is_longer([0] * 20_000, 16_384)
    assert not is_longer({"elicitation": {"form": {}}}, 16_384)
