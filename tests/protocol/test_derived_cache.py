"""What is made of definitions is made once, and does not keep more of a server's definitions than it may."""

import pytest

from sluicegate.protocol import derived_cache, downgrade, mirrored_headers
from sluicegate.protocol.derived_cache import BYTES, MOST, DerivedCache
from sluicegate.protocol.jsonrpc import Json, dump

LARGE = 256 * 1024
SCHEMA: Json = {"type": "array", "description": "x" * LARGE}


def test_each_definition_is_read_once_and_by_what_it_is_not_by_what_it_equals() -> None:
    read = list[int]()
    cache = DerivedCache[int](lambda definition: read.append(definition["a"]) or definition["a"])
    one, two = {"a": 1}, {"a": 1}
    assert [cache.of(one), cache.of(one), cache.of(two), cache.of(one)] == [1, 1, 1, 1]
    assert read == [1, 1]
    cache.clear()
    assert cache.of(one) == 1 and read == [1, 1, 1] and len(cache) == 1


@pytest.mark.parametrize(
    ("definitions", "most"),
    [
        pytest.param([{"a": "x" * LARGE, "b": number} for number in range(64)], 2 * BYTES // LARGE, id="large ones"),
        pytest.param([{"b": number} for number in range(3 * MOST)], 2 * MOST, id="many"),
    ],
)
def test_it_forgets_before_it_keeps_too_many_or_too_large_ones(definitions: list[Json], most: int) -> None:
    cache = DerivedCache[int](lambda definition: definition["b"])
    sizes = []
    for definition in definitions:
        assert cache.of(definition) == definition["b"]
        sizes.append(len(cache))
    assert most // 2 <= max(sizes) <= most and cache._bytes <= BYTES
    assert cache.of(definitions[0]) == definitions[0]["b"]


def test_what_was_asked_for_last_is_not_made_again_and_what_stays_in_use_never_is() -> None:
    read = list[int]()
    cache = DerivedCache[None](lambda definition: read.append(definition["a"]), most=4)
    often, others = {"a": -1}, [{"a": number} for number in range(12)]
    for definition in others:
        cache.of(often)
        cache.of(definition)
    assert read == [-1, *range(12)]
    for definition in others[-3:]:
        cache.of(definition)
    assert len(read) == 13
    cache.of(others[0])
    assert read[13:] == [0]


def test_definitions_that_always_change_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both caches that keep definitions, at their real use."""
    kept = DerivedCache(downgrade._moved), DerivedCache(mirrored_headers._read)
    monkeypatch.setattr(downgrade, "_wrapped", kept[0])
    monkeypatch.setattr(mirrored_headers, "_valid", kept[1])
    revision = downgrade.REVISIONS["2025-11-25"]
    for number in range(64):
        output = {**SCHEMA, "title": str(number)}
        tool = {"name": f"t{number}", "inputSchema": {"type": "object"}, "outputSchema": output}
        (shown,) = downgrade.items("tools/list", [tool], revision)
        assert shown["outputSchema"]["properties"]["result"]["title"] == str(number)
        assert mirrored_headers.annotations_of(tool) == {}
    for cache in kept:
        assert 0 < len(cache) * len(dump(SCHEMA)) <= 2 * derived_cache.BYTES
