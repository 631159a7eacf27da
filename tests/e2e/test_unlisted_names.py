"""Names that a server did not list and that are relayed all the same: judged as the known names that they look like."""

import json
from collections.abc import Iterator

import pytest
from policy_bed import Bed, bed, client_keys, reason, recorder

ROWS = """\
p, *, *, *, read, allow
p, *, *, *, write, allow
p, *, *, tool:wipe*, *, deny
p, *, *, prompt:secret, *, deny
p2, *, *, tool:Deploy, *, confirm
"""
TOOLS = ["list_all", "Twin", "twin", "drop"]


@pytest.fixture(scope="module")
def forwarding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bed]:
    folder = tmp_path_factory.mktemp("unlisted")
    server = recorder(folder, "only", tools=TOOLS, prompts=["hello"])
    tools = {"deny": ["drop", "Erase"], "classes": {"purge": "destroy"}}
    server |= {"prefix": "", "unlisted": "forward", "pin": "off", "tools": tools}
    (folder / "arguments" / "only").mkdir(parents=True)
    rule = {"type": "object", "properties": {"to": {"const": "home"}}}
    (folder / "arguments" / "only" / "send.json").write_text(json.dumps(rule))
    policy = {"files": ["policy.csv"], "arguments": "arguments"}
    keys = client_keys(ann=[])
    with bed(folder, ROWS, {"only": server}, clients={"keys": keys}, policy=policy) as made:
        yield made


def reached(made: Bed, method: str, name: str, **params: object) -> str | None:
    """The name by which the server was asked; None where it was not."""
    before = len(made.seen("only"))
    made.ask("ann", method, name=name, **params)
    after = made.seen("only")[before:]
    return after[0]["params"]["name"] if after else None


@pytest.mark.parametrize("name", ["other", "a.b/c-d_E9", "LIST_NOTHING", "x" * 128])
def test_what_is_like_no_known_name_is_relayed_as_it_is(forwarding: Bed, name: str) -> None:
    assert reached(forwarding, "tools/call", name) == name
    assert reached(forwarding, "prompts/get", name) == name


@pytest.mark.parametrize(
    "name",
    ["wipe ", " wipe", "wi pe", "wipe\t", "wipe\u0000", "\uff57ipe", "wip\u0435", "wipe\u200b", "w\u0131pe", "wipe,x",
     "", "x" * 129, "dr\u006f\u0301p", "\u212aill"],
)  # fmt: skip
def test_other_characters_than_those_of_mcp_are_not_relayed(forwarding: Bed, name: str) -> None:
    assert reached(forwarding, "tools/call", name) is None
    assert reached(forwarding, "prompts/get", name) is None


@pytest.mark.parametrize("name", ["wipe", "WIPE", "Wipe_disk", "drop", "DROP", "erase", "ERASE", "Purge", "PURGE"])
def test_a_denied_name_is_denied_in_all_letters(forwarding: Bed, name: str) -> None:
    assert reached(forwarding, "tools/call", name) is None


@pytest.mark.parametrize("name", ["secret", "SECRET", "Secret"])
def test_so_is_that_of_a_prompt_wherever_it_stands(forwarding: Bed, name: str) -> None:
    assert reached(forwarding, "prompts/get", name) is None
    before = len(forwarding.seen("only"))
    argument = {"name": "a", "value": ""}
    forwarding.ask("ann", "completion/complete", ref={"type": "ref/prompt", "name": name}, argument=argument)
    assert len(forwarding.seen("only")) == before


def test_what_needs_an_approval_is_not_had_without_in_other_letters(forwarding: Bed) -> None:
    assert reached(forwarding, "tools/call", "deploy") is None and reached(forwarding, "tools/call", "DEPLOY") is None


def test_argument_rules_hold_in_all_letters(forwarding: Bed) -> None:
    for name in ("send", "Send"):
        assert reached(forwarding, "tools/call", name, arguments={"to": "away"}) is None
        assert reason(forwarding.call("ann", name, to="away")) == "invalid_arguments"
        assert reached(forwarding, "tools/call", name, arguments={"to": "home"}) == name


def test_a_listed_name_is_meant_by_its_look_alikes(forwarding: Bed) -> None:
    assert reached(forwarding, "tools/call", "List_All") == "list_all"
    assert reached(forwarding, "tools/call", "Twin") == "Twin" and reached(forwarding, "tools/call", "TWIN") is None
