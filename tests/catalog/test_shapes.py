"""A shape changes what clients see of a definition, and what they may give."""

from hypothesis import given
from hypothesis import strategies as st
from listed import listing

from sluicegate.catalog.snapshot import ServerNaming
from sluicegate.protocol.jsonrpc import Json
from sluicegate.protocol.model import Kind
from sluicegate.protocol.shape import Shape

TOOL: Json = {
    "name": "list_issues", "title": "Issues", "description": "Lists.",
    "annotations": {"title": "I", "readOnlyHint": True},
    "inputSchema": {"type": "object", "properties": {"owner": {"type": "string"}, "page": {"type": "integer"}},
                    "required": ["owner"], "additionalProperties": False},
}  # fmt: skip


def naming(prefix: str = "gh", **shapes: Shape) -> ServerNaming:
    named: dict[tuple[Kind, str], Shape] = {("tool", own): shape for own, shape in shapes.items()}
    return ServerNaming("gh", prefix, 50, shapes=named)


def test_names_texts_and_fixed_arguments_are_shown_as_the_operator_wants() -> None:
    shape = Shape("issues", {"title": "Acme's", "description": "Of Acme."}, {"owner": "acme"}, frozenset({"owner"}))
    (entry,) = listing(naming(list_issues=shape), "tools/list", [TOOL], 0).entries
    assert entry.shown == {
        "name": "gh__issues", "title": "Acme's", "description": "Of Acme.",
        "annotations": {"title": "Acme's", "readOnlyHint": True},
        "inputSchema": {"type": "object", "properties": {"page": {"type": "integer"}}, "additionalProperties": False},
    }  # fmt: skip
    assert (entry.target.own, entry.target.public, entry.target.item) == ("list_issues", "gh__issues", TOOL)
    bare = listing(naming("", list_issues=shape), "tools/list", [TOOL], 0).entries[0]
    assert bare.shown["name"] == "issues"


def test_another_shape_is_another_definition_to_clients_and_the_same_to_pins() -> None:
    titled = Shape(texts={"title": "x"})
    plain, shaped, again = (
        listing(one, "tools/list", [TOOL], 0).entries[0]
        for one in (naming(), naming(list_issues=titled), naming(list_issues=titled))
    )
    assert plain.digest != shaped.digest == again.digest
    assert plain.target.item == shaped.target.item


def test_a_name_that_the_operator_gave_is_nobody_elses() -> None:
    """A server that lists a tool of that name later takes nothing over."""
    shape = Shape("issues")
    other = {"name": "issues", "inputSchema": {"type": "object"}}
    for items in ([TOOL, other], [other, TOOL]):
        made = listing(naming(list_issues=shape), "tools/list", items, 0)
        assert {entry.target.public: entry.target.own for entry in made.entries} == {"gh__issues": "list_issues"}
        assert made.left_out == ("tools/list: 'issues': its public name is taken by another",)
    alone = listing(naming(list_issues=shape), "tools/list", [other], 0)
    assert alone.entries == (), "also where the shaped one is not listed"


def test_an_old_name_is_free_for_another_shape() -> None:
    shapes = naming(a=Shape("b"), b=Shape("a"))
    made = listing(shapes, "tools/list", [{"name": "a"}, {"name": "b"}], 0)
    assert {entry.target.public: entry.target.own for entry in made.entries} == {"gh__b": "a", "gh__a": "b"}


def test_prompts_and_definitions_of_any_form() -> None:
    prompt: Json = {"name": "sum", "arguments": [{"name": "owner", "required": True}, {"name": "month"}, "odd"]}
    shape = Shape(hidden=frozenset({"owner"}))
    assert shape.shown(prompt)["arguments"] == [{"name": "month"}, "odd"]
    for schema in (None, [], {"properties": 1, "required": 1}, {"required": ["owner"]}):
        shown = shape.shown({"name": "x", "inputSchema": schema})
        assert "owner" not in str(shown)


def test_hidden_arguments_are_in_no_part_of_the_schema() -> None:
    page: Json = {"page": {"type": "integer"}}
    part: Json = {"properties": {"owner": {"type": "string"}, **page}, "required": ["owner", "page"]}
    left: Json = {"properties": page, "required": ["page"]}
    schema: Json = {
        **part, "allOf": [part, {"anyOf": [part, True]}], "oneOf": [{"required": ["owner"]}, {"required": ["id"]}],
        "then": part, "dependentRequired": {"page": ["owner", "id"], "owner": ["page"]},
        "dependentSchemas": {"owner": {}, "page": part}, "dependencies": {"owner": ["id"], "id": ["owner", "page"]},
        "examples": [{"owner": "x", "page": 1}], "default": {"owner": "x"},
    }  # fmt: skip
    shown = Shape(hidden=frozenset({"owner"})).shown({"name": "x", "inputSchema": schema})["inputSchema"]
    assert "owner" not in str(shown)
    assert shown == {
        **left, "allOf": [left, {"anyOf": [left, True]}], "oneOf": [{}, {"required": ["id"]}], "then": left,
        "dependentRequired": {"page": ["id"]}, "dependentSchemas": {"page": left}, "dependencies": {"id": ["page"]},
        "examples": [{"page": 1}], "default": {},
    }  # fmt: skip
    kept = {"if": part, "not": {"required": ["owner"]}, "properties": {"page": {"properties": {"owner": {}}}}}
    same = Shape(hidden=frozenset({"owner"})).shown({"name": "x", "inputSchema": kept})["inputSchema"]
    assert same == kept, "an inner `owner` is another one; a condition without it would say something else"


arguments = st.none() | st.dictionaries(st.sampled_from(["owner", "page", "token"]), st.integers() | st.none())


@given(arguments)
def test_what_is_hidden_comes_from_no_client(given_: Json | None) -> None:
    shape = Shape(fixed={"owner": "acme"}, hidden=frozenset({"owner", "token"}))
    filled = shape.filled(given_)
    assert filled["owner"] == "acme"
    assert bool(shape.refused(given_)) is bool({"owner", "token"} & (given_ or {}).keys())
    assert Shape(hidden=frozenset({"token"})).filled({"page": 1}) == {"page": 1}

def test_another_spelling_of_a_hidden_argument_is_refused() -> None:
    shape = Shape(hidden=frozenset({"owner"}))
    for name in ("OWNER", "Owner", "\uff4fwner", "owner"):
        assert shape.refused({"page": 1, name: "x"}) == name
    assert shape.refused({"owners": 1}) == "" and Shape().refused({"OWNER": 1}) == ""
