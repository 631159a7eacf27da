"""Cursors say where a walk stands, to their owner alone, and cannot be altered. Sealed here with a real AEAD."""

import base64
import binascii
import json
import os
from typing import Any

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.catalog.cursor import Position, generations, open_cursor, seal_cursor

KEY = AESGCM(bytes(range(32)))


class _Everywhere(dict[str, str]):
    """The same generation for every server."""

    def __init__(self, generation: str) -> None:
        self._generation = generation

    def get(self, key: object, default: object = None) -> Any:
        return self._generation


WHO: dict[str, Any] = {"principal": "key:ci", "method": "resources/list", "generations": _Everywhere("g1")}

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
positions = st.builds(Position, texts, st.none() | texts, st.integers(min_value=0, max_value=10**9))


def seal(purpose: str, payload: dict[str, Any], bound: str) -> str:
    nonce = os.urandom(12)
    sealed = KEY.encrypt(nonce, json.dumps(payload).encode(), f"{purpose}|{bound}".encode())
    return base64.urlsafe_b64encode(nonce + sealed).decode().rstrip("=")


def unseal(purpose: str, token: str, bound: str) -> dict[str, Any] | None:
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        if base64.urlsafe_b64encode(data).decode().rstrip("=") != token or len(data) < 28:
            return None
        payload: dict[str, Any] = json.loads(KEY.decrypt(data[:12], data[12:], f"{purpose}|{bound}".encode()))
        return payload
    except (ValueError, binascii.Error, InvalidTag):
        return None


@settings(deadline=None)
@given(positions)
def test_a_position_comes_back_as_it_was(position: Position) -> None:
    assert open_cursor(seal_cursor(position, **WHO, seal=seal), **WHO, unseal=unseal) == position


@pytest.mark.parametrize("cursor", [None, ""])
def test_no_cursor_and_an_empty_cursor_are_two_things(cursor: str | None) -> None:
    opened = open_cursor(seal_cursor(Position("a", cursor), **WHO, seal=seal), **WHO, unseal=unseal)
    assert opened is not None
    assert opened.cursor == cursor


@settings(deadline=None)
@given(position=positions, at=st.integers(min_value=0), put=st.sampled_from("ABab09-_=+/ é"))
def test_any_changed_character_is_noticed(position: Position, at: int, put: str) -> None:
    text = seal_cursor(position, **WHO, seal=seal)
    at %= len(text)
    changed = text[:at] + put + text[at + 1 :]
    assert (open_cursor(changed, **WHO, unseal=unseal) is None) == (changed != text)


@settings(deadline=None)
@given(position=positions, cut=st.integers(min_value=1))
def test_a_cut_cursor_is_noticed(position: Position, cut: int) -> None:
    text = seal_cursor(position, **WHO, seal=seal)
    assert open_cursor(text[: -(1 + cut % len(text))], **WHO, unseal=unseal) is None


@pytest.mark.parametrize(
    "other", [{"principal": "key:other"}, {"method": "tools/list"}, {"generations": _Everywhere("g2")}],
    ids=lambda o: next(iter(o)),
)  # fmt: skip
def test_a_foreign_or_stale_cursor_is_none(other: dict[str, Any]) -> None:
    text = seal_cursor(Position("a"), **WHO, seal=seal)
    assert open_cursor(text, **{**WHO, **other}, unseal=unseal) is None


@settings(deadline=None)
@given(one=st.tuples(texts, texts, texts), two=st.tuples(texts, texts, texts))
def test_what_a_cursor_is_bound_to_has_one_reading(one: tuple[str, str, str], two: tuple[str, str, str]) -> None:
    def bound(parts: tuple[str, str, str]) -> dict[str, Any]:
        return {"principal": parts[0], "method": parts[1], "generations": {"a": parts[2]}}

    opened = open_cursor(seal_cursor(Position("a"), **bound(one), seal=seal), **bound(two), unseal=unseal)
    assert (opened is not None) == (one == two)


def test_parts_that_run_into_one_another_are_told_apart() -> None:
    text = seal_cursor(Position("a"), principal='a", "b', method="c", generations={"a": "d"}, seal=seal)
    assert open_cursor(text, principal="a", method='b", "c', generations={"a": "d"}, unseal=unseal) is None


@pytest.mark.parametrize("text", [None, 1, True, 1.5, [], {}, ["a"], "", "x", "é", "=" * 100])
def test_what_is_no_cursor_is_none(text: Any) -> None:
    assert open_cursor(text, **WHO, unseal=unseal) is None


@pytest.mark.parametrize(
    "payload",
    [
        {}, {"s": 1, "c": None, "o": 0}, {"s": "a", "c": 1, "o": 0}, {"s": "a", "c": None, "o": -1},
        {"s": "a", "c": None, "o": True}, {"s": "a", "c": None, "o": 1.0}, {"s": "a", "c": None},
    ],
)  # fmt: skip
def test_a_payload_of_another_shape_is_none(payload: dict[str, Any]) -> None:
    assert open_cursor("sealed", **WHO, unseal=lambda *_: payload) is None


SERVERS: dict[str, Any] = {"a": {"url": "x", "era": "auto"}, "b": {"url": "y"}, "c": {"url": "z"}}


def test_a_cursor_is_bound_to_the_servers_that_it_has_still_to_visit() -> None:
    def is_open(servers: dict[str, Any]) -> bool:
        return open_cursor(text, **WHO | {"generations": generations(servers)}, unseal=unseal) is not None

    text = seal_cursor(Position("b"), **WHO | {"generations": generations(SERVERS)}, seal=seal)
    assert is_open(SERVERS)
    assert is_open({key: SERVERS[key] for key in "bc"})  # it has been at a
    assert is_open({**SERVERS, "a": {"url": "another"}})
    for others in ({key: SERVERS[key] for key in "ab"}, {key: SERVERS[key] for key in "acb"}, {"a": SERVERS["a"]}):
        assert not is_open(others)
    assert not is_open({**SERVERS, "b": {"url": "another"}}) and not is_open({**SERVERS, "c": {"url": "another"}})
    assert not is_open({**SERVERS, "d": {"url": "new"}})


def test_the_order_of_servers_counts_and_the_order_of_their_keys_does_not() -> None:
    base = generations({"a": {"url": "x", "era": "auto"}, "b": {}})
    assert generations({"a": {"era": "auto", "url": "x"}, "b": {}}) == base
    assert generations({"b": {}, "a": {"url": "x", "era": "auto"}}) != base
    assert generations({"a": {"url": "y", "era": "auto"}, "b": {}})["a"] != base["a"]
    assert generations({}) == {}
