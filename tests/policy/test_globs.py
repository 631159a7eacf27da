"""Globs compared with each other: what a linter may say of two rows without looking at any text."""

from typing import Any

import pytest

from sluicegate.policy import globs
from sluicegate.policy.globs import covers, escape, has_open_set, matches, matches_folded, meets


@pytest.mark.parametrize(
    ("wide", "narrow", "is_so"),
    [
        ("*", "", True), ("*", "a?[bc]*", True), ("**", "a", True), ("?", "", False), ("?", "a", True),
        ("?", "*", False),
        ("?", "?", True), ("?", "[ab]", True), ("a*", "ab*", True), ("ab*", "a*", False), ("*b", "ab", True),
        ("*b", "ba", False), ("*a*", "bab", True), ("*a*b*", "xaxbx", True), ("*a*b*", "xbxax", False),
        ("ab", "a", False),
        ("a", "ab", False), ("a", "a", True), ("a?c", "abc", True), ("a?c", "ac", False), ("[ab]", "a", True),
        ("[ab]", "c", False), ("[ab]", "?", False), ("[ab]", "*", False), ("[ab]", "[ab]", True),
        ("[ab]", "[a]", False),
        ("[ab]*", "ax*", True), ("[!a]", "b", True), ("[!a]", "a", False), ("[*]", "*", False),
        ("get_*", "GET_x", False),
    ],
)  # fmt: skip
def test_a_glob_covers_another_if_it_surely_matches_all_of_it(wide: str, narrow: str, is_so: bool) -> None:
    assert covers(wide, narrow) is is_so
    if is_so:
        assert meets(wide, narrow) and meets(narrow, wide)


@pytest.mark.parametrize(
    ("one", "other", "is_so"),
    [
        ("a*", "*b", True), ("a*", "b*", False), ("a*b", "ab", True), ("a?b", "ab", False), ("a?b", "acb", True),
        ("[ab]x", "bx", True), ("[ab]x", "cx", False), ("[ab]", "?", True), ("[ab]", "[bc]", True), ("", "*", True),
        ("", "?", False), ("*a", "*b", False), ("*a*", "*b*", True), ("abc", "ab", False), ("[!a]", "a", False),
    ],
)  # fmt: skip
def test_globs_meet_if_some_text_may_match_both(one: str, other: str, is_so: bool) -> None:
    assert meets(one, other) is meets(other, one) is is_so


def test_a_text_matches_with_its_case_or_without() -> None:
    assert matches("get_x", "get_*") and not matches("GET_x", "get_*") and matches_folded("GET_x", "Get_*")
    assert all(matches(text, escape(text)) for text in ("a*b", "[x]", "?", "plain"))
    assert not matches("aXb", escape("a*b")) and not matches("x", escape("[x]"))
    assert has_open_set("a[b") and not has_open_set("a[b]") and not has_open_set("[[]") and not has_open_set("ab]")


@pytest.mark.parametrize("rule", ["res:*secret*", "res:file:///*.env", "res:*a*b", "res:file:///a*"])
def test_a_star_is_compared_with_a_long_template_in_a_few_steps(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row took half a millisecond for a template of 500 letters. A list has 10,000 of them, a policy many rows."""
    steps, step = 0, globs._steps

    def counted(*args: Any) -> Any:
        nonlocal steps
        steps += 1
        return step(*args)

    monkeypatch.setattr(globs, "_steps", counted)
    assert meets.__wrapped__(rule, f"res:file:///{'a' * 490}*") and steps < 40
