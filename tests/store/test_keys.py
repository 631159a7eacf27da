"""Rings, sealed tokens and the operator's token: nobody else reads, alters or reuses them."""

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.store import StoreFailed, keys
from sluicegate.store.keys import (
    KEPT_EACH,
    KEPT_FOR,
    KEY_BYTES,
    MAX_BODY,
    MAX_TOKEN_CHARS,
    KeyRing,
    Sealer,
    is_same,
    new_operator_token,
    publish_operator_token,
    read_operator_token,
)
from sluicegate.store.private import Exposed

RING = KeyRing([b"k" * KEY_BYTES])
SEALER = Sealer(RING)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


# ---------------------------------------------------------------- rings


def test_a_ring_is_made_at_the_first_start_and_found_at_the_next(tmp_path: Path) -> None:
    ring = KeyRing.load(tmp_path / "state" / "keys", "seal")
    again = KeyRing.load(tmp_path / "state" / "keys", "seal")
    other = KeyRing.load(tmp_path / "state" / "keys", "sign")
    assert ring.newest == again.newest != other.newest
    assert mode(tmp_path / "state") == mode(tmp_path / "state" / "keys") == 0o700
    assert [mode(path) for path in (tmp_path / "state" / "keys").iterdir()] == [0o600, 0o600]


@pytest.mark.parametrize(("directory", "file"), [(0o750, 0o600), (0o701, 0o600), (0o700, 0o640), (0o700, 0o604)])
def test_wider_modes_refuse_to_start_and_say_what_to_do(tmp_path: Path, directory: int, file: int) -> None:
    KeyRing.load(tmp_path / "keys", "seal")
    (tmp_path / "keys" / "seal").chmod(file)
    (tmp_path / "keys").chmod(directory)
    with pytest.raises(Exposed, match=r"may be used by others .* chmod 0[67]00"):
        KeyRing.load(tmp_path / "keys", "seal")


def test_rotation_seals_with_the_newest_and_unseals_with_all(tmp_path: Path) -> None:
    before = Sealer(KeyRing.load(tmp_path / "keys", "seal"))
    old = before.seal("cursor", {"n": 1}, "b")
    after = Sealer(KeyRing.rotate(tmp_path / "keys", "seal"))
    new = after.seal("cursor", {"n": 2}, "b")
    assert after.unseal("cursor", old, "b") == {"n": 1}
    assert after.unseal("cursor", new, "b") == {"n": 2}
    assert before.unseal("cursor", new, "b") is None
    assert mode(tmp_path / "keys" / "seal") == 0o600


def test_a_ring_comes_from_text_in_either_alphabet() -> None:
    text = "+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/+/8=\n-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_-_8\n"
    assert len(KeyRing.parse(text).keys) == 1


@pytest.mark.parametrize("text", ["", "\n", "AAAA", "not base64!", "A" * 44, "é" * 43])
def test_text_that_is_no_ring_is_an_error(text: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="key"):
        KeyRing.parse(text)


def test_a_broken_ring_file_is_an_error_with_its_path(tmp_path: Path) -> None:
    KeyRing.load(tmp_path / "keys", "seal")
    (tmp_path / "keys" / "seal").write_text("")
    with pytest.raises(StoreFailed, match="seal: a key ring holds"):
        KeyRing.load(tmp_path / "keys", "seal")


def test_the_repr_of_a_ring_shows_no_key() -> None:
    assert "kkk" not in repr(RING) and "6b6b" not in repr(RING)


# ---------------------------------------------------------------- sealed tokens

payloads = st.dictionaries(st.text(), st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.text()))


@given(payload=payloads, purpose=st.text(), bound=st.text())
def test_what_was_sealed_is_unsealed(payload: dict[str, object], purpose: str, bound: str) -> None:
    token = SEALER.seal(purpose, payload, bound)
    assert token.isascii() and not set(token) & set("=+/ \n")
    assert SEALER.unseal(purpose, token, bound) == payload


def test_purpose_and_bearer_count() -> None:
    token = SEALER.seal("ab", {"n": 1}, "c")
    assert SEALER.unseal("ab", token, "c") == {"n": 1}
    for purpose, bound in [("a", "bc"), ("abc", ""), ("ab", "C"), ("ab", ""), ("", "abc"), ("2:ab", "c")]:
        assert SEALER.unseal(purpose, token, bound) is None


def test_no_altered_token_is_read() -> None:
    token = SEALER.seal("p", {"n": 1}, "b")
    for place in range(len(token)):
        for letter in "AB_-=+ \n":
            altered = token[:place] + letter + token[place + 1 :]
            assert altered == token or SEALER.unseal("p", altered, "b") is None
            assert SEALER.unseal("p", token[:place] + letter + token[place:], "b") is None
        assert SEALER.unseal("p", token[:place], "b") is None


@given(token=st.text() | st.binary().map(lambda data: data.hex()))
def test_anything_else_is_no_token_and_no_exception(token: str) -> None:
    assert SEALER.unseal("p", token, "b") is None


@pytest.mark.parametrize("token", [None, 7, b"x", {"a": 1}, "A" * 10_000_000])
def test_what_is_not_even_text_is_no_token(token: object) -> None:
    assert SEALER.unseal("p", token, "b") is None  # type: ignore[arg-type]


def test_another_ring_reads_nothing_and_no_two_tokens_are_alike() -> None:
    one, two = (SEALER.seal("p", {"n": 1}, "b") for _ in range(2))
    assert one != two
    assert Sealer(KeyRing([b"o" * KEY_BYTES])).unseal("p", one, "b") is None


@pytest.mark.parametrize("size", [MAX_BODY - 9, MAX_BODY - 8, MAX_BODY - 7, MAX_BODY, 10 * MAX_BODY])
def test_whatever_is_sealed_is_short_enough_to_be_unsealed(size: int) -> None:
    """Of the sizes around the bound one is the last that the token itself holds."""
    token = SEALER.seal("p", {"c": "x" * size}, "b")
    assert len(token) <= MAX_TOKEN_CHARS
    assert SEALER.unseal("p", token, "b") == {"c": "x" * size} == SEALER.unseal("p", token, "b")
    assert SEALER.unseal("p", token, "c") is None and SEALER.unseal("q", token, "b") is None


def test_large_payloads_end_with_their_time_and_make_room_for_newer_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    sealer = Sealer(RING, lambda: now)
    body = {"c": "x" * MAX_BODY}

    def good(tokens: list[str], bound: str) -> list[bool]:
        return [sealer.unseal("p", token, bound) == body for token in tokens]

    other = sealer.seal("p", body, "b")
    mine = [sealer.seal("p", body, "a") for _ in range(KEPT_EACH + 2)]
    assert good(mine, "a") == [False] * 2 + [True] * KEPT_EACH and good([other], "b") == [True]
    now = KEPT_FOR
    assert good(mine, "a") == [False] * len(mine)
    monkeypatch.setattr(keys, "KEPT_BYTES", 3 * MAX_BODY)
    tokens = {bound: sealer.seal("p", body, bound) for bound in "cdef"}
    assert [sealer.unseal("p", token, bound) == body for bound, token in tokens.items()] == [False, False, True, True]
    many = [sealer.seal("p", body, "g") for _ in range(KEPT_EACH)]
    assert sealer.unseal("p", tokens["f"], "f") == body, "whoever has most takes the place of no other"
    assert good(many, "g")[-1]


# ---------------------------------------------------------------- the operator's token


def test_the_operators_token_is_new_at_each_start_and_stands_beside_where_it_is_good(tmp_path: Path) -> None:
    state = tmp_path / "state"
    assert read_operator_token(state) is None
    tokens = [new_operator_token() for _ in range(2)]
    for number, token in enumerate(tokens):
        publish_operator_token(state, token, f"127.0.0.1:{number}")
        assert (read_operator_token(state), (state / "operator.address").read_text()) == (token, f"127.0.0.1:{number}")
    publish_operator_token(state, tokens[0], "127.0.0.1:1", tmp_path / "a" / ".." / "sluice.yaml")
    assert (state / "operator.address").read_text() == f"127.0.0.1:1\n{(tmp_path / 'sluice.yaml').resolve()}"
    assert tokens[0] != tokens[1] and mode(state / "operator.token") == mode(state / "operator.address") == 0o600
    (state / "operator.token").chmod(0o644)
    with pytest.raises(Exposed):
        read_operator_token(state)


def test_secrets_are_compared_as_text_of_any_kind() -> None:
    assert is_same("é", "é") and not is_same("a", "b") and not is_same("a", "\ud800")
