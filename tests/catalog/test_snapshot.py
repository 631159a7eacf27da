"""Own items become entries: named, rewritten, looked up, and left out with a reason."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from listed import listing

from sluicegate.catalog.list_bounds import ITEM, PIECE
from sluicegate.catalog.snapshot import (
    MAX_DEFINITION,
    Indexed,
    ListSection,
    ServerNaming,
    Snapshot,
    assemble,
    digest,
    from_json,
    listing_in_pieces,
    to_json,
)  # fmt: skip
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.pieces import in_one_step

FACE = ServerNaming("github", "gh", 50)
BARE = ServerNaming("github", "", 50)


def made(naming: ServerNaming = FACE, about: Json | None = None, **lists: list[Any]) -> Snapshot:
    methods = {"tools": "tools/list", "prompts": "prompts/list", "templates": "resources/templates/list"}
    listings = {methods[name]: listing(naming, methods[name], items, 0) for name, items in lists.items()}
    return assemble(naming.server, about or {"capabilities": {"tools": {}}}, listings)


def test_names_get_the_prefix_and_the_definition_stays_what_the_server_said() -> None:
    item = {"name": "create_issue", "inputSchema": {}, "x": 1}
    snapshot = made(tools=[item])
    entry = snapshot.find["tool", "gh__create_issue"]
    assert entry.target.own == "create_issue" and entry.target.item is item
    assert entry.shown == {"name": "gh__create_issue", "inputSchema": {}, "x": 1}
    assert item["name"] == "create_issue"


def test_without_a_prefix_the_very_same_objects_are_shown() -> None:
    items = [{"name": "a", "_meta": {"ui": {"resourceUri": "ui://x/y"}}}]
    snapshot = made(BARE, tools=items, templates=[{"name": "t", "uriTemplate": "file:///{p}"}])
    assert snapshot.entries("tools/list")[0].shown is items[0]
    assert ("res", "file:///{p}") in snapshot.find


def test_templates_and_the_uris_inside_tools_are_public() -> None:
    snapshot = made(
        tools=[{"name": "show", "_meta": {"ui": {"resourceUri": "ui://panel"}}}],
        templates=[{"name": "t", "uriTemplate": "file:///{path}"}],
    )
    assert snapshot.find["res", "gh+file:///{path}"].target.own == "file:///{path}"
    assert snapshot.entries("tools/list")[0].shown["_meta"]["ui"]["resourceUri"] == "ui://gh+panel"
    assert snapshot.has_app and snapshot.by_own["show"].target.public == "gh__show"


def test_tools_and_prompts_of_one_name_do_not_meet() -> None:
    snapshot = made(tools=[{"name": "x"}], prompts=[{"name": "x"}])
    assert snapshot.find["tool", "gh__x"].target.kind == "tool"
    assert snapshot.find["prompt", "gh__x"].target.kind == "prompt"


@pytest.mark.parametrize(
    "odd",
    [None, "x", {}, {"name": None}, {"name": ""}, {"name": 7}, {"name": "n" * 513}, {"name": "\ud800"},
     {"name": "big", "description": "x" * MAX_DEFINITION}, {"name": "nan", "x": float("inf")}],
)  # fmt: skip
def test_a_definition_that_cannot_be_served_is_left_out_and_reported(odd: Any) -> None:
    held = listing(FACE, "tools/list", [{"name": "a"}, odd, {"name": "b"}], 0)
    assert [entry.target.own for entry in held.entries] == ["a", "b"]
    assert len(held.left_out) == 1 and held.left_out[0].startswith("tools/list: ")


def test_a_name_that_is_no_text_is_not_written_out() -> None:
    class Long(list[str]):
        def __repr__(self) -> str:
            raise AssertionError("a name of megabytes was written out")

    assert listing(FACE, "tools/list", [{"name": Long()}], 0).left_out[0].startswith("tools/list: no name: ")


def test_of_two_definitions_with_one_name_the_first_is_served() -> None:
    held = listing(FACE, "tools/list", [{"name": "a", "v": 1}, {"name": "a", "v": 2}], 0)
    assert [entry.shown["v"] for entry in held.entries] == [1]
    assert "twice" in held.left_out[0]


def test_order_is_the_servers() -> None:
    held = listing(FACE, "tools/list", [{"name": name} for name in "zebra"], 0)
    assert [entry.target.own for entry in held.entries] == list("zebra")


def test_digests_tell_content_and_order_and_nothing_else() -> None:
    one = listing(FACE, "tools/list", [{"name": "a"}, {"name": "b"}], 0)
    same = listing(FACE, "tools/list", [{"name": "a"}, {"name": "b"}], 5000)
    assert one.digest == same.digest
    assert one.digest != listing(FACE, "tools/list", [{"name": "b"}, {"name": "a"}], 0).digest
    assert one.digest != listing(FACE, "tools/list", [{"name": "a"}, {"name": "b", "title": "B"}], 0).digest
    assert (
        one.digest != listing(ServerNaming("github", "g2", 50), "tools/list", [{"name": "a"}, {"name": "b"}], 0).digest
    )
    assert digest(()) == ListSection("tools/list").digest


def test_equal_snapshots_have_equal_digests_and_servers_differ() -> None:
    assert made(tools=[{"name": "a"}]).digest == made(tools=[{"name": "a"}]).digest
    assert made(tools=[{"name": "a"}]).digest != made(ServerNaming("gitlab", "gh", 50), tools=[{"name": "a"}]).digest


def kept_as(naming: ServerNaming, value: Any) -> Snapshot | None:
    return in_one_step(from_json(naming.server, value, partial(listing_in_pieces, naming)))


def test_a_kept_snapshot_comes_back_and_is_shown_as_the_config_says_now() -> None:
    about = {"capabilities": {"tools": {}}, "instructions": "be kind"}
    kept = to_json(made(about=about, tools=[{"name": "a"}], templates=[{"name": "t", "uriTemplate": "x:{y}"}]))
    again = kept_as(ServerNaming("github", "hub", 50), kept)
    assert again is not None and again.about == about
    assert {public for _, public in again.find} == {"hub__a", "hub+x:{y}"}
    assert kept_as(FACE, kept) == made(about=about, tools=[{"name": "a"}], templates=[
        {"name": "t", "uriTemplate": "x:{y}"}])  # fmt: skip


@pytest.mark.parametrize("odd", [None, [], {}, {"about": {}, "lists": {}}, {"about": {"capabilities": {}}}])
def test_what_is_no_kept_snapshot_is_none(odd: Any) -> None:
    assert kept_as(FACE, odd) is None


def test_the_ttl_is_the_least_of_the_lists() -> None:
    listings = {
        "tools/list": ListSection("tools/list", ttl_ms=7),
        "prompts/list": ListSection("prompts/list", ttl_ms=3),
    }
    assert assemble("s", {"capabilities": {}}, listings).ttl_ms == 3


def test_a_kept_time_is_one_that_can_be_reckoned_with() -> None:
    """An older version kept what a server said: a number of hundreds of digits ended every list."""
    kept = to_json(made(tools=[{"name": "a"}]))
    kept["lists"]["tools/list"]["ttlMs"] = 10**400
    back = kept_as(FACE, kept)
    assert back is not None and back.ttl_ms == 86_400_000


def test_a_list_is_made_and_looked_up_in_pieces_and_its_snapshots_do_not_look_through_it_again() -> None:
    marked = list[str]()
    naming = replace(FACE, fingerprint=lambda item: marked.append(item["name"]) or "")
    work, before, most = listing_in_pieces(naming, "tools/list", [{"name": f"t{n}"} for n in range(2_000)], 0), 0, 0
    while True:
        try:
            next(work)
        except StopIteration as done:
            held: ListSection = done.value
            break
        finally:
            most, before = max(most, len(marked) - before), len(marked)
    assert len(marked) == 2_000 and 0 < most <= PIECE // ITEM
    whole = assemble("github", {"capabilities": {}}, {"tools/list": held})
    assert isinstance(held.entries, Indexed) and whole.find == held.entries.find and whole.by_own == held.entries.tools
    plain = assemble("github", {"capabilities": {}}, {"tools/list": replace(held, entries=tuple(held.entries))})
    assert (plain.find, plain.by_own, plain.digest) == (whole.find, whole.by_own, whole.digest)
    held.entries.find = {}
    assert not assemble("github", {"capabilities": {}}, {"tools/list": held}).find


def test_a_snapshot_is_the_same_in_whatever_order_its_lists_landed() -> None:
    assert made(tools=[{"name": "a"}], prompts=[{"name": "b"}]).digest == (
        made(prompts=[{"name": "b"}], tools=[{"name": "a"}]).digest
    )
