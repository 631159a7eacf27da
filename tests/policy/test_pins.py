"""What counts as the same definition, what waits for a person, and what a person is shown."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.policy import display, globs, pins
from sluicegate.policy.csv_rows import written
from sluicegate.policy.pins import Found, Mode, PinBook
from sluicegate.protocol.pieces import in_one_step

NUMBERS = st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
NOWHERE = PinBook()


def from_json(*kept: Any) -> PinBook:
    return in_one_step(pins.from_json(*kept))


def succeed(before: list[PinBook], at: str) -> PinBook:
    return in_one_step(pins.succeed(before, at))


def found(**definitions: Any) -> dict[str, Found]:
    return {own: Found(pins.fingerprint(value), value) for own, value in definitions.items()}


def meet(
    book: PinBook,
    mode: Mode = "review",
    twin: PinBook = NOWHERE,
    kind: Any = "tool",
    into: str = "",
    **definitions: Any,
) -> PinBook:
    return pins.meet(book, twin, mode, into, kind, found(**definitions), "now")[0]


def withheld(book: PinBook, own: str, value: Any, mode: Mode = "review", twin: PinBook = NOWHERE) -> bool:
    return pins.is_withheld(mode, book, twin, ("tool", own), pins.fingerprint(value))


def accepted(book: PinBook, own: str, value: Any) -> PinBook:
    new, taken = pins.accept(book, {("tool", own): [pins.fingerprint(value)]}, "local", "later")
    assert taken == {("tool", own): pins.fingerprint(value)}
    return new


def is_refused(book: PinBook, own: str, fingerprint: str) -> bool:
    return pins.accept(book, {("tool", own): [fingerprint]}, "local", "now") == (book, {})


# ---------------------------------------------------------------- canonical form


def shuffled(value: Any) -> Any:
    """The same value with its keys the other way round, everywhere."""
    if isinstance(value, dict):
        return {key: shuffled(value[key]) for key in reversed(value)}
    return [shuffled(item) for item in value] if isinstance(value, list) else value


@given(VALUES)
def test_the_order_of_keys_does_not_count(value: Any) -> None:
    assert pins.fingerprint(value) == pins.fingerprint(shuffled(value))


@given(VALUES)
def test_a_canonical_text_is_the_value_and_one_line_of_ascii(value: Any) -> None:
    text = pins.canonical(value)
    assert text.isascii() and "\n" not in text
    assert pins.canonical(json.loads(text)) == text


@given(VALUES, VALUES)
def test_different_values_have_different_texts(one: Any, other: Any) -> None:
    def strict(value: Any) -> Any:
        """Equality that tells 1 from 1.0 and True."""
        if isinstance(value, dict):
            return {key: strict(item) for key, item in value.items()}
        return [strict(item) for item in value] if isinstance(value, list) else (type(value), repr(value))

    assert (pins.canonical(one) == pins.canonical(other)) == (strict(one) == strict(other))


def test_string_escapes_do_not_count_and_any_character_does() -> None:
    assert pins.fingerprint(json.loads('{"a": "\\u0062\\/"}')) == pins.fingerprint({"a": "b/"})
    assert pins.fingerprint(1) != pins.fingerprint(1.0) != pins.fingerprint(True)
    assert pins.fingerprint("a") != pins.fingerprint("a\u200b") != pins.fingerprint("a\U000e0041")
    assert pins.fingerprint({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


# ---------------------------------------------------------------- states


def test_the_first_complete_list_is_a_first_use_and_what_comes_later_waits() -> None:
    book = meet(NOWHERE, a=1, b=2)
    assert [pin.state for pin in book.pins.values()] == ["first_use", "first_use"]
    assert not withheld(book, "a", 1)
    later = meet(book, a=1, b=3, c=4)
    assert (pins.state(later, ("tool", "b")), pins.state(later, ("tool", "c"))) == ("changed", "new")
    assert [withheld(later, own, value) for own, value in [("a", 1), ("b", 3), ("b", 2), ("c", 4)]] == [
        False, True, True, True,
    ]  # fmt: skip


def test_a_list_that_says_nothing_new_is_the_same_book() -> None:
    book = meet(NOWHERE, a=1)
    assert meet(book, a=1) is book
    assert meet(book) is book, "what is absent is no change"
    waiting = meet(book, a=2)
    assert meet(waiting, a=2) is waiting


def test_an_empty_first_list_is_none_but_a_server_that_is_settled_can_add_nothing_unseen() -> None:
    empty = meet(NOWHERE)
    assert pins.close(empty, "") is empty
    assert not withheld(meet(empty, a=1), "a", 1)
    settled = pins.close(meet(NOWHERE, a=1), "")
    assert pins.state(meet(settled, kind="prompt", p=1), ("prompt", "p")) == "new"


def test_who_turns_back_to_what_was_accepted_stays_withheld() -> None:
    book = meet(meet(meet(NOWHERE, a=1), a=2), a=1)
    assert pins.state(book, ("tool", "a")) == "returned"
    assert withheld(book, "a", 1) and withheld(book, "a", 2)
    assert is_refused(book, "a", pins.fingerprint(2)), "that is not what it gives"
    again = accepted(book, "a", 1)
    assert not withheld(again, "a", 1) and again.pins["tool", "a"].state == "accepted"
    assert pins.state(meet(book, a=2), ("tool", "a")) == "changed"


def test_accepting_is_of_what_was_seen_and_nothing_else() -> None:
    book = meet(meet(meet(NOWHERE, a=1), a=2), a=3)
    for stale in (1, 2):
        assert is_refused(book, "a", pins.fingerprint(stale))
    new = accepted(book, "a", 3)
    assert (withheld(new, "a", 3), withheld(new, "a", 1)) == (False, True)
    assert (new.pins["tool", "a"].by, new.pins["tool", "a"].at, new.pins["tool", "a"].text) == ("local", "later", "3")
    assert is_refused(new, "nobody", "")


def test_block_withholds_what_no_person_accepted_even_a_first_use() -> None:
    blocked = meet(NOWHERE, "block", a=1)
    assert not blocked.pins and withheld(blocked, "a", 1, "block")
    assert not withheld(accepted(blocked, "a", 1), "a", 1, "block")
    used = meet(NOWHERE, "review", a=1)
    assert withheld(used, "a", 1, "block") and not withheld(used, "a", 1, "review")
    assert not withheld(accepted(used, "a", 1), "a", 1, "block")


def test_warn_serves_and_remembers() -> None:
    book, changes = pins.meet(meet(NOWHERE, "warn", a=1), NOWHERE, "warn", "", "tool", found(a=2), "now")
    assert not withheld(book, "a", 2, "warn") and not withheld(book, "a", 2, "off")
    assert [(change.what, change.before, change.after, change.again) for change in changes] == [
        ("waiting", pins.fingerprint(1), pins.fingerprint(2), False)
    ]
    assert withheld(book, "a", 2, "review"), "a stricter mode finds what waited"


def test_eras_have_pins_of_their_own_and_a_change_in_one_withholds_in_both() -> None:
    legacy, modern = meet(NOWHERE, a=1), meet(NOWHERE, a=10)
    legacy = meet(legacy, a=2)
    assert withheld(modern, "a", 10, twin=legacy) and not withheld(modern, "a", 10)
    new = meet(legacy, a=2, b=5)
    assert not withheld(meet(NOWHERE, a=10, b=5), "b", 5, twin=meet(legacy, b=5)), "b was no change of a pin there"
    late = meet(NOWHERE, twin=new, a=10, b=5)
    assert pins.state(late, ("tool", "b")) == "new", "what waits in one era is no first use in the other"
    told = accepted(accepted(new, "a", 2), "b", 5)
    assert not withheld(meet(modern, twin=told, a=10, b=5), "b", 5, twin=told), "a person accepted the very same"
    used = meet(NOWHERE, a=10, b=5)
    assert withheld(meet(modern, twin=used, a=10, b=5), "b", 5, twin=used), "a first use elsewhere is no person"


def test_names_that_a_server_invents_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins, "MAX_WAITING", 3)
    book = meet(meet(NOWHERE, a=1), a=2)
    for number in range(20):
        book = meet(book, **{f"n{number}": number})
    assert len(book.waiting) == 3 and ("tool", "a") in book.waiting
    assert all(withheld(book, f"n{number}", number) for number in range(20))


def test_what_waits_is_bounded_in_bytes_and_stays_withheld(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server with ten thousand long definitions of other names in each list took 141 MiB in eleven lists."""
    monkeypatch.setattr(pins, "MAX_WAITING_TEXT", 1000)
    book = meet(meet(NOWHERE, a=1, b=2, c=3), a="a" * 300)
    for number in range(20):
        book = meet(book, **{f"n{number}": "n" * 300})
    assert [own for _, own in book.waiting] == ["a", "n18", "n19"], "names without a pin are forgotten"
    book = meet(book, b="b" * 600, c="c" * 350)
    assert sum(len(held.text) for held in book.waiting.values()) <= 1000
    assert {own: bool(held.text) for (_, own), held in book.waiting.items()} == {"a": False, "b": True, "c": True}
    assert all(withheld(book, own, value) for own, value in (("a", 1), ("a", "a" * 300), ("b", 2), ("n3", "n" * 300)))
    assert pins.state(book, ("tool", "a")) == "changed"
    mark = pins.fingerprint("a" * 300)
    assert pins.accept(book, {("tool", "a"): [mark]}, "local", "now")[1] == {}, "nobody can have seen it"
    again = meet(book, a="a" * 300)
    assert again.waiting["tool", "a"].text and not again.waiting["tool", "b"].text, "the newest is kept"
    assert pins.accept(again, {("tool", "a"): [mark]}, "local", "now")[1] == {("tool", "a"): mark}


def test_further_capability_sets_have_first_uses_as_long_as_there_is_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are 32 sets, and a server could list 16 MiB of new names to each."""
    monkeypatch.setattr(pins, "MAX_PINNED", 10_000)
    large = {f"first{n}": "x" * 1000 for n in range(20)}
    book = meet(NOWHERE, into="form", **large)
    assert len(book.pins) == 20, "a first list is recorded, however large it is"
    book = meet(book, into="url", first0=large["first0"], new="n")
    assert ("tool", "new") in book.waiting and "url" in book.pins["tool", "first0"].sets
    prompts = meet(book, kind="prompt", into="url", p="p")
    assert ("prompt", "p") in prompts.pins, "nobody has listed any prompts before"
    monkeypatch.undo()
    assert ("tool", "new") in meet(meet(NOWHERE, into="form", **large), into="url", new="n").pins


SETS = ("", "form", "form roots")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["list", "page", "accept"]), st.sampled_from(SETS),
        st.dictionaries(st.sampled_from("abc"), st.integers(0, 3), min_size=1),
    ),
    max_size=16,
)  # fmt: skip


def serves(book: PinBook, mode: Mode, capabilities: str) -> set[tuple[str, int]]:
    def is_served(own: str, value: int) -> bool:
        return not pins.is_withheld(mode, book, NOWHERE, ("tool", own), pins.fingerprint(value), capabilities)

    return {(own, value) for own in "abc" for value in range(4) if is_served(own, value)}


@given(STEPS, st.sampled_from(["review", "block"]))
def test_nothing_is_served_that_was_neither_in_the_first_list_of_the_set_nor_accepted(steps: Any, mode: Mode) -> None:
    """Whatever a server lists in whatever order to whichever set; the model beside it is what may be served."""
    book = NOWHERE
    accepted: dict[str, int] = {}
    first: dict[str, set[tuple[str, int]]] = {}
    for what, capabilities, definitions in steps:
        before = {one: serves(book, mode, one) for one in SETS}
        was_closed = set(first)
        if what == "accept":
            for own, value in definitions.items():
                book, taken = pins.accept(book, {("tool", own): [pins.fingerprint(value)]}, "local", "now")
                accepted |= dict.fromkeys((name for _, name in taken), value)
        else:
            book = from_json(*map(json.loads, (pins.pins_to_json(book), pins.waiting_to_json(book))))
            book = meet(book, mode, into=capabilities, **definitions)
            book = pins.close(book, capabilities) if what == "list" else book
            first.setdefault(capabilities, set(definitions.items()) if mode == "review" else set())
        served = {one: serves(book, mode, one) for one in SETS}
        for one in SETS:
            may = {pair for pair in first.get(one, set()) if pair[0] not in accepted} | set(accepted.items())
            assert served[one] <= may
            if one in was_closed and what != "accept":
                assert served[one] <= before[one], "a set whose first list is over gains nothing by itself"
        everywhere = set().union(*served.values())
        assert len(everywhere) == len({own for own, _ in everywhere}), "one content of a name, in all sets"
        assert not {own for own, _ in everywhere} & {key[1] for key in book.waiting if book.has_changed(key)}


# ---------------------------------------------------------------- capability sets


def test_each_capability_set_has_a_first_list_and_a_name_one_pin_in_all_of_them() -> None:
    book = pins.close(meet(NOWHERE, a=1), "")
    book = pins.close(meet(book, into="roots", a=1, b=2), "roots")
    assert (serves(book, "review", ""), serves(book, "review", "roots")) == ({("a", 1)}, {("a", 1), ("b", 2)})
    assert meet(book, a=1) is book, "b is absent there, which is no change"
    assert pins.state(meet(book, into="roots", c=3), ("tool", "c")) == "new", "its first list is over"


@pytest.mark.parametrize("back", [False, True])
def test_a_rug_pull_in_a_new_set_withholds_the_name_in_every_set(back: bool) -> None:
    book = meet(meet(NOWHERE, a=1), into="roots", a=2)
    book = meet(book, into="form", a=1) if back else book
    assert pins.state(book, ("tool", "a")) == ("returned" if back else "changed")
    assert not any(serves(book, "review", one) for one in (*SETS, "roots"))


def test_a_new_set_brings_nothing_into_one_whose_first_list_is_over() -> None:
    book = pins.close(meet(NOWHERE, a=1), "")
    book = meet(pins.close(meet(book, into="roots", a=1, b=2), "roots"), a=1, b=2)
    assert (serves(book, "review", ""), serves(book, "review", "roots")) == ({("a", 1)}, {("a", 1), ("b", 2)})
    assert pins.state(book, ("tool", "b")) == "new" and pins.is_withheld(
        "review", book, NOWHERE, ("tool", "b"), pins.fingerprint(2)
    )
    assert meet(book, into="roots", a=1, b=2) is book
    assert serves(meet(book, into="form", b=2), "review", "form") == {("b", 2)}, "it is in the first list of this one"
    told = accepted(book, "b", 2)
    assert all(("b", 2) in serves(told, "review", one) for one in (*SETS, "roots")), "accepted once, for every set"
    assert not serves(meet(book, b=3), "review", "roots") - {("a", 1)}


LISTED = st.fixed_dictionaries({one: st.frozensets(st.sampled_from("abc")) for one in SETS})


@given(LISTED, st.permutations([*SETS, *SETS]), st.sampled_from([*SETS, None]), st.sampled_from("abc"))
def test_the_order_in_which_sets_list_does_not_count(
    listed: dict[str, frozenset[str]], order: list[str], late: str | None, own: str
) -> None:
    """Each set lists twice: at first nothing, for a server may have nothing to show yet. `late` also shows what another
    set listed first, as soon as it is pinned there, and waits for it alone."""
    book, seen = NOWHERE, set[str]()
    for one in order:
        names = listed[one] if one in seen else frozenset()
        book = pins.close(meet(book, into=one, **dict.fromkeys(names, 1)), one)
        seen.add(one)
        if late is not None and own not in listed[late] and serves(book, "review", late) and ("tool", own) in book.pins:
            book = meet(book, into=late, **{own: 1})
    for one in SETS:
        assert serves(book, "review", one) == {(name, 1) for name in listed[one]}


def test_what_waits_is_no_first_use_of_a_set_that_comes_later() -> None:
    book = meet(pins.close(meet(NOWHERE, a=1), ""), evil=1)
    book = meet(book, into="roots", a=1, evil=1)
    assert serves(book, "review", "roots") == {("a", 1)} and pins.state(book, ("tool", "evil")) == "new"


def test_a_book_of_before_there_were_sets_counts_for_all_of_them() -> None:
    old = {"pins": [["tool", "a", pins.fingerprint(1), "1", "", "then"]], "closed": ["tool"]}
    book = from_json(old, {"waiting": []})
    for one in SETS:
        assert serves(book, "review", one) == {("a", 1)}
        assert pins.state(meet(book, into=one, a=1, b=2), ("tool", "b")) == "new", "an update is no second first look"


# ---------------------------------------------------------------- another server under the same key


def test_a_server_in_the_place_of_another_keeps_what_is_equal_and_has_no_first_use() -> None:
    before = accepted(meet(NOWHERE, a=1, b=2, c=3), "a", 1)
    book = succeed([before, NOWHERE], "later")
    assert (book.waiting, book.replaced_at) == ({}, "later")
    book = meet(book, a=1, b=2, c=4, d=5)
    assert serves(book, "review", "") == {("a", 1), ("b", 2)}
    assert [pins.state(book, ("tool", own)) for own in "abcd"] == ["accepted", "first_use", "changed", "new"]
    assert serves(meet(book, into="roots", b=2), "review", "roots") == {("a", 1)}, "a first use in no new set"
    assert from_json(*map(json.loads, (pins.pins_to_json(book), pins.waiting_to_json(book)))) == book


def test_of_several_before_it_the_newest_pin_of_a_name_counts() -> None:
    old = meet(NOWHERE, a=1, b=1)
    new = accepted(meet(NOWHERE, a=1), "a", 1)
    newer, _ = pins.accept(meet(new, a=2), {("tool", "a"): [pins.fingerprint(2)]}, "local", "now+1")
    assert {own: pin.text for (_, own), pin in succeed([newer, old], "").pins.items()} == {"a": "2", "b": "1"}


def test_a_book_that_is_none_is_said_to_be_none() -> None:
    book = meet(meet(NOWHERE, a=1), a=2, b=[{"c": "d"}])
    kept = [json.loads(pins.pins_to_json(book)), json.loads(pins.waiting_to_json(book))]
    assert from_json(*kept) == book
    for broken in (None, {}, {"pins": [["tool"]], "closed": []}, {"pins": 7, "closed": []}, []):
        with pytest.raises(ValueError, match="no book of pins"):
            from_json(broken, {"waiting": []})


# ---------------------------------------------------------------- lock file


def row(name: str, current: str, era: str = "modern") -> dict[str, Any]:
    return {"server": "gh", "era": era, "kind": "tool", "name": name, "current": current}


def test_a_lock_file_holds_what_is_and_tells_what_differs() -> None:
    locked = pins.lock([row("a", "1"), row("b", "2")])
    assert locked == {"version": 1, "servers": {"gh": {"modern": {"tool": {"a": "sha256:1", "b": "sha256:2"}}}}}
    assert pins.breaches(locked, [row("a", "1")]) == [], "what is gone does no harm"
    told = pins.breaches(locked, [row("a", "1"), row("b", "3"), row("c", "4"), row("a", "1", "legacy")])
    assert [line.split(": ", 1)[1] for line in told] == [
        "tool b: sha256:3 is not the locked sha256:2", "tool c: sha256:4 is not in the lock file",
        "tool a: sha256:1 is not in the lock file",
    ]  # fmt: skip
    assert pins.breaches({"servers": []}, [row("a", "1")])


# ---------------------------------------------------------------- for human eyes


def test_a_diff_shows_the_field_that_changed_and_what_hides_in_it() -> None:
    old = {"name": "x", "description": "Adds.", "inputSchema": {"type": "object"}}
    new = old | {"description": "Adds.\u200b\U000e0041\x1b[2J"}
    assert display.diff(pins.canonical(old), pins.canonical(new)) == [
        '- description: "Adds."',
        '+ description: "Adds.\u27e8U+200B\u27e9\u27e8U+E0041\u27e9\\u001b[2J"',
        '  inputSchema.type: "object"',
        '  name: "x"',
    ]
    assert display.hidden(new) == 3 and display.hidden(old) == 0


def test_a_text_cannot_pose_as_a_line_of_the_diff() -> None:
    forged = 'fine\n+ name: "x"\r- gone\u2028' + " " * display.WIDTH + '+ name: "y"'
    shown = display.diff(None, pins.canonical({"description": forged}))
    assert shown[:2] == ["+ description:", "+     | fine"]
    assert shown[2].startswith('+     | + name: "x"\u27e8U+000D\u27e9- gone\u27e8U+2028\u27e9 ')
    assert shown[3].startswith("+     \u2026 ") and shown[3].endswith('+ name: "y"')
    assert len(shown) == 4


@given(st.text(st.characters(codec="utf-8"), max_size=300))
def test_what_is_shown_is_printable_and_begins_with_its_mark(text: str) -> None:
    for line in display.diff(pins.canonical({"d": text}), pins.canonical({"d": text + "!"})):
        assert line[:2] in ("+ ", "- ", "  ") and "\n" not in line and len(line) <= display.WIDTH + 10
        assert not any(display.is_hidden(char) for char in line)


def test_two_texts_that_look_alike_when_made_visible_differ() -> None:
    assert display.visible("\u27e8U+200B\u27e9") != display.visible("\u200b")
    assert display.visible("caf\u00e9 \u4f60 \U0001f600") == "caf\u00e9 \u4f60 \U0001f600"


def test_a_huge_text_is_shown_without_being_compared() -> None:
    text = pins.canonical("\n".join(map(str, range(50_000))))
    assert len(display.diff(text, text)) == 100_002


@pytest.mark.parametrize("name", ["look", "a*", "[x]", "a?b", "a,b"])
def test_a_row_denies_the_name_that_it_is_made_for_and_no_other(name: str) -> None:
    row = pins.denying_row("bank", ("tool", name))
    assert row == written("p", "*", "bank", f"tool:{globs.escape(name)}", "*", "deny")
    assert globs.matches(f"tool:{name}", f"tool:{globs.escape(name)}")
    assert not globs.matches(f"tool:{name}x", f"tool:{globs.escape(name)}")


def test_a_row_denies_what_a_template_expands_to_and_instructions_are_no_matter_of_rows() -> None:
    assert pins.denying_row("bank", ("res", "memo:///{x}/[a]")) == "p, *, bank, res:memo:///*/[[]a], *, deny"
    assert pins.denying_row("bank", ("instructions", "")) == ""
