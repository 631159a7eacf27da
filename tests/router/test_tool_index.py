"""The index finds tools by the words of their definitions, and has what it was given last."""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from listed import listing

from sluicegate.catalog.snapshot import Entry, ServerNaming
from sluicegate.protocol.jsonrpc import Json
from sluicegate.router import tool_search
from sluicegate.router.tool_search import ToolIndex, words

WITH_BRANCH: Json = {"properties": {"branch": 1}}
GIT: list[Json] = [
    {"name": "create_pull_request", "description": "Opens a pull request.", "inputSchema": WITH_BRANCH},
    {"name": "listIssues", "description": "Lists the issues of a repository."},
    {"name": "merge", "title": "Merge branches", "annotations": {"title": "Join"}},
    {"name": "delete_file", "description": "Deletes one file, which cannot be undone."},
]  # fmt: skip


MANY: Json = {"properties": {"": 1, "q" * 999: 2}}


def entries(items: Iterable[Json], server: str = "git") -> list[Entry]:
    return list(listing(ServerNaming(server, server, 50), "tools/list", items, 0).entries)


def made(*parts: list[Entry]) -> ToolIndex:
    index = ToolIndex()
    for _ in index.update(entry for part in parts for entry in part):
        pass
    return index


def names(index: ToolIndex, query: str, limit: int = 5, server: str | None = None) -> list[str]:
    return [entry.target.own for entry in index.find(query, limit, server)[0]]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("open a pull request", "create_pull_request"),
        ("pull requests", "create_pull_request"),  # by their stems
        ("listing of issue", "listIssues"),  # of a name in camel case
        ("join", "merge"),
        ("remove the files", "delete_file"),
        ("branch", "merge"),  # a title counts more than an argument
    ],
)
def test_words_are_found_in_names_titles_descriptions_and_arguments(query: str, first: str) -> None:
    assert names(made(entries(GIT)), query)[0] == first


def test_without_words_all_are_found_in_their_order_and_nothing_by_words_that_none_has() -> None:
    index = made(entries(GIT), entries([{"name": "x"}], "web"))
    assert names(index, "", 3) == ["create_pull_request", "listIssues", "merge"]
    assert index.find("the of", 2)[1] == 5
    assert names(index, "", server="web") == ["x"]
    assert index.find("weather", 5) == ([], 0)
    assert names(index, "branch", server="web") == []


definitions = st.lists(
    st.builds(
        lambda name, text: {"name": name, "description": text},
        st.sampled_from([f"{verb}_{noun}" for verb in ("get", "put", "drop") for noun in ("file", "page", "user")]),
        st.sampled_from(["one file", "all pages of users", "a user's page", "files, users and pages"]),
    ),
    max_size=8,
)


@given(st.lists(definitions, min_size=1, max_size=6), st.sampled_from(["file", "pages of a user", "drop user", ""]))
def test_what_was_changed_bit_by_bit_finds_what_a_new_index_finds(steps: list[list[Json]], query: str) -> None:
    index = ToolIndex()
    for items in steps:
        for _ in index.update(entries(items)):
            pass
    fresh = made(entries(steps[-1]))
    assert len(index) == len(fresh)
    found, anew = (
        sorted(entry.digest for entry in one.find(query, 20)[0]) for one in (index, fresh)
    )  # fmt: skip
    assert found == anew


def test_only_what_differs_is_indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    index = made(entries(GIT))
    added: list[str] = []

    def add(self: ToolIndex, key: tuple[str, bytes], entry: Entry, add: Any = ToolIndex._add) -> Iterator[None]:
        added.append(entry.target.own)
        yield from add(self, key, entry)

    monkeypatch.setattr(ToolIndex, "_add", add)
    changed = [*GIT[:3], {**GIT[3], "description": "Deletes a folder."}]
    for _ in index.update(entries(changed)):
        pass
    assert added == ["delete_file"] and names(index, "folder") == ["delete_file"] and names(index, "undone") == []


def test_a_step_is_of_few_words_however_long_the_definitions_are(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, stem = [0], tool_search._stem

    def counted(word: str) -> str:
        steps[-1] += 1
        return stem(word)

    monkeypatch.setattr(tool_search, "_stem", counted)
    long = [
        {"name": f"t{number}", "description": " ".join(f"word{number}x{one}" for one in range(900)),
         "inputSchema": {"properties": {f"a{number}_{one}_b": {} for one in range(200)}}}
        for number in range(3)
    ]  # fmt: skip
    for _ in ToolIndex().update(entries(long)):
        steps.append(0)
    assert max(steps) <= tool_search.WORD_STRIDE and sum(steps) > 900
    steps[:] = [0]
    made([]).find(" ".join(f"unseen{one}" for one in range(5_000)), 5)
    assert steps == [tool_search.MAX_QUERY]


def test_a_query_for_a_word_that_all_have_looks_at_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_search, "MAX_WORK", 12)
    index = made(entries([{"name": f"tool_{number}"} for number in range(40)]))
    assert index.find("tool", 20)[1] == 12


def test_words_that_most_tools_have_are_left_out_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_search, "MAX_WORK", 12)
    common = [{"name": f"tool_{number}", "description": "works with data"} for number in range(10)]
    index = made(entries([*common, {"name": "weather", "description": "data of today"}]))
    assert index.find("data weather today", 20)[1] == 1
    assert index.find("data", 20)[1] == 11, "the rarest word counts in any case"


def test_definitions_of_any_form_are_indexed() -> None:
    odd: list[Json] = [
        {"name": "a", "title": 1, "description": None, "inputSchema": {"properties": []}, "annotations": []},
        {"name": "b\u00e9_\u4e2d\u6587", "description": "x" * 100_000, "inputSchema": MANY},
    ]
    assert len(made(entries(odd))) == 2
    assert words("getHTTPResponse2 \u00dcber", 9) == ["get", "http", "response2", "\u00fcber"]


def test_a_long_query_is_cut_before_it_is_taken_apart() -> None:
    """One of 4 MB took five seconds of the event loop."""
    assert words("aA" * 64 + " mail", 2) == words("aA" * 64, 2), "what is behind so many words of the longest kind"
    index = made(entries([{"name": "mail"}]))
    for query in ("aA" * 2_000_000, "a" * 4_000_000, "\u00c9 x" * 1_000_000):
        assert index.find(query, 5)[1] == 0
