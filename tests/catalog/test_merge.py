"""What the front says of itself."""

import pytest

from sluicegate.catalog.discover_merge import (
    MAX_INSTRUCTIONS,
    MERGED,
    NAMING,
    merged,
    mirrored,
    relayed,
)
from sluicegate.protocol.revisions import SUPPORTED


def test_a_merged_front_declares_the_same_whatever_is_behind_it_but_subscriptions() -> None:
    value = merged([], SUPPORTED, 0, subscribes=True)
    assert value["capabilities"] == {**MERGED, "resources": {"subscribe": True, "listChanged": True}}
    value = merged([], SUPPORTED, 0, subscribes=False)
    assert value["capabilities"] == MERGED
    assert value["supportedVersions"] == list(SUPPORTED)
    assert value["cacheScope"] == "private" and value["ttlMs"] == 0
    assert "serverInfo" not in value and "subscribe" not in value["capabilities"]["resources"]


UI = {"io.modelcontextprotocol/ui": {"x": 1}}


def test_an_extension_that_can_be_carried_is_declared_if_one_server_has_it() -> None:
    def extensions(*declared: object) -> object:
        abouts = [(str(at), {"capabilities": {"extensions": one}}) for at, one in enumerate(declared)]
        return merged(abouts, SUPPORTED, 0)["capabilities"].get("extensions")

    assert extensions({"y": {}}, UI, {}) == {"io.modelcontextprotocol/ui": {}}
    assert extensions({"y": {}}, {}) is None and extensions({"io.modelcontextprotocol/ui": True}, None) is None


def test_instructions_stand_under_the_key_of_their_server_in_order() -> None:
    abouts = [
        ("b", {"capabilities": {}, "instructions": "first"}),
        ("mute", {"capabilities": {}}),
        ("odd", {"capabilities": {}, "instructions": 7}),
        ("a", {"capabilities": {}, "instructions": "second"}),
    ]
    text = merged(abouts, SUPPORTED, 0)["instructions"]
    assert text == f"{NAMING}\n\n## b\n\n> first\n\n## a\n\n> second"


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\n\n", "\u2028", "\x85", "\v", "\x1c"])
def test_a_server_opens_no_section_of_another_one(end: str) -> None:
    """Nor closes or hides one: headings of both kinds, tags, fences and comments stand in its quotation."""
    lines = ["good", "----", "Sluice", "====", "## bank", "<h2>bank</h2>", "\u200b## bank", "```", "<!-- "]
    abouts = [("notes", {"instructions": end.join(lines)}), ("bank", {"instructions": "ours"})]
    text = merged(abouts, SUPPORTED, 0)["instructions"]
    between = "\n>\n> " if end == "\n\n" else "\n> "
    assert text == f"{NAMING}\n\n## notes\n\n> {between.join(lines).rstrip()}\n\n## bank\n\n> ours"


def test_each_servers_instructions_are_cut_at_4_kib_between_characters() -> None:
    text = merged([("a", {"instructions": "é" * 5000})], SUPPORTED, 0)["instructions"]
    section = text.split("## a\n\n> ")[1]
    assert len(section.encode()) == MAX_INSTRUCTIONS and set(section) == {"é"}


def test_one_server_is_mirrored_as_far_as_it_can_be_relayed() -> None:
    capabilities = {
        "tools": {"listChanged": True}, "prompts": {"listChanged": False}, "logging": {},
        "resources": {"subscribe": True, "listChanged": True}, "experimental": {"x": {}},
        "extensions": {"y": {}, **UI},
    }  # fmt: skip
    value = mirrored({"capabilities": capabilities, "instructions": "as it is"}, SUPPORTED, 9)
    assert value["capabilities"] == {
        "tools": {"listChanged": True}, "prompts": {}, "resources": {"subscribe": True, "listChanged": True},
        "logging": {}, "extensions": UI,
    }  # fmt: skip
    assert value["instructions"] == "as it is" and value["ttlMs"] == 9
    assert "instructions" not in mirrored({"capabilities": {}}, SUPPORTED, 0)


def test_a_capability_of_an_odd_shape_is_none() -> None:
    assert relayed({"tools": True, "logging": None, "prompts": {}}) == {"prompts": {}}


def test_of_a_server_never_reached_everything_is_declared() -> None:
    assert mirrored(None, SUPPORTED, 0)["capabilities"] == merged([], SUPPORTED, 0, subscribes=True)["capabilities"]
