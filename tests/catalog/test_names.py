"""Public names: what every reader of a merged list may rely on, whatever servers call their tools."""

import re
from hashlib import sha256

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from listed import publish

from sluicegate.catalog.names import prefix_of, public_name

ALLOWED = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")
HASHED = re.compile(r"_[0-9a-f]{6}\Z")

keys = st.from_regex(r"[a-z][a-z0-9-]{0,19}", fullmatch=True)
limits = st.integers(min_value=30, max_value=64)
plain = st.text(alphabet="ab._- /é", max_size=8)
anything = st.text(max_size=80) | st.text(alphabet="ab_", min_size=20, max_size=70)


@st.composite
def hostile(draw: st.DrawFn) -> list[str]:
    """Names of one server that try to meet: variants in replaced characters, one long stem, and the exact
    endings that other names of the same server will get."""
    base = draw(st.lists(plain | anything, min_size=1, max_size=6))
    base += [name.replace("_", draw(st.sampled_from("./ é-"))) for name in base]
    base += [name + "x" * draw(st.integers(20, 60)) + tail for name in base[:2] for tail in "ab"]
    shown = [public_name("srv", "p", name, limit) for name in base for limit in (30, 50, 64)]
    endings = [name.removeprefix("p__") for name in shown]
    return draw(st.permutations(base + endings + shown + [name[:-1] for name in endings]))


@pytest.mark.parametrize(
    ("own", "public"),
    [
        ("create_issue", "gh__create_issue"),
        ("Create-Issue", "gh__Create-Issue"),
        ("_private", "gh___private"),
        ("a__b", "gh__a__b"),
        ("x" * 46, "gh__" + "x" * 46),
        ("", "gh__"),
    ],
)
def test_a_name_that_fits_only_gets_the_prefix(own: str, public: str) -> None:
    assert public_name("github", "gh", own, 50) == public


@pytest.mark.parametrize(
    ("own", "stem"),
    [
        ("files.read", "gh__files_read"),
        ("récit", "gh__r_cit"),
        ("a b,c/d", "gh__a_b_c_d"),
        ("line\nbreak", "gh__line_break"),
        ("x" * 47, "gh__" + "x" * 39),
        ("report_202401", "gh__report_202401"),
        ("tool_ABCDEF", "gh__tool_ABCDEF"),
        ("\ud800", "gh___"),
    ],
)
def test_a_name_that_was_changed_cut_or_imitates_ends_in_a_hash(own: str, stem: str) -> None:
    digest = sha256(b"github\0" + own.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    assert public_name("github", "gh", own, 50) == f"{stem}_{digest}"


def test_a_final_newline_is_no_way_around_the_suffix() -> None:
    assert HASHED.search(public_name("github", "gh", "tool\n", 50))


def test_the_hash_depends_on_the_server_and_not_on_its_prefix() -> None:
    first, moved, other = (
        public_name(key, prefix, "a.b", 50) for key, prefix in [("one", "p"), ("one", "q"), ("two", "p")]
    )
    assert first[-6:] == moved[-6:] != other[-6:]


def test_transparent_mode_renames_nothing() -> None:
    names = ["a.b", "x" * 200, "tool_abcdef", "__", ""]
    assert dict(publish("only", "", names, 50).public) == {name: name for name in names}


def test_a_limit_without_room_for_prefix_and_hash_is_a_bug() -> None:
    with pytest.raises(ValueError, match="no room"):
        public_name("github", "gh", "a", 12)


@settings(deadline=None)
@given(key=keys, prefix=keys, names=hostile() | st.lists(anything), limit=limits)
def test_public_names_are_unique_short_and_reversible(key: str, prefix: str, names: list[str], limit: int) -> None:
    naming = publish(key, prefix, names, limit)
    assert set(naming.public) <= set(names)
    assert len(naming.own) == len(naming.public)
    for own, public in naming.public.items():
        assert naming.own[public] == own
        assert ALLOWED.match(public)
        assert len(public) <= limit
        assert prefix_of(public) == prefix


@settings(deadline=None)
@given(names=hostile(), limit=limits, data=st.data())
def test_the_order_and_repetition_of_a_list_change_nothing(names: list[str], limit: int, data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(names + names[:3]))
    assert publish("srv", "p", shuffled, limit) == publish("srv", "p", names, limit)


@settings(deadline=None)
@given(names=hostile(), more=st.lists(anything), limit=limits)
def test_a_name_is_the_same_with_and_without_others(names: list[str], more: list[str], limit: int) -> None:
    alone, together = publish("srv", "p", names, limit), publish("srv", "p", names + more, limit)
    for own in alone.public.keys() & together.public.keys():
        assert alone.public[own] == together.public[own]


@settings(deadline=None)
@given(one=keys, two=keys, limit=limits, names=hostile())
@example(one="a", two="a-", limit=30, names=["-__x", "__x", "x"])
def test_two_servers_never_share_a_public_name(one: str, two: str, limit: int, names: list[str]) -> None:
    assume(one != two)
    first = publish("first", one, names, limit)
    imitating = [*names, *first.own, *(public.removeprefix(two) for public in first.own)]
    assert first.own.keys().isdisjoint(publish("second", two, imitating, limit).own)


def test_of_two_names_whose_hashes_meet_the_later_in_byte_order_is_refused() -> None:
    first, second = _names_that_meet()
    for order in ([first, second], [second, first]):
        naming = publish("srv", "p", order, 50)
        assert set(naming.public) == {min(first, second)}
        assert list(naming.public) == [min(first, second)]


def _names_that_meet() -> tuple[str, str]:
    """Two long names with the same beginning and the same 24 bits of hash: a birthday, after some 5,000 names."""
    seen: dict[str, str] = {}
    for number in range(100_000):
        own = f"{'x' * 60}{number}"
        other = seen.setdefault(public_name("srv", "p", own, 50), own)
        if other != own:
            return other, own
    raise AssertionError("no two names meet")


def test_a_name_that_json_cannot_say_is_refused() -> None:
    assert set(publish("srv", "p", ["ok", "bad\udc80"], 50).public) == {"ok"}
    assert set(publish("srv", "", ["ok", "bad\udc80"], 50).public) == {"ok"}


@pytest.mark.parametrize(
    ("public", "prefix"),
    [("gh__a", "gh"), ("gh__a__b", "gh"), ("gh___a", "gh"), ("gh__", "gh"), ("gh_a", None), ("__a", None), ("", None)],
)
def test_the_first_double_underscore_splits(public: str, prefix: str | None) -> None:
    assert prefix_of(public) == prefix
