"""Parameters in both eras: what is another spelling of one is refused, and no request has more than MCP gives it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.protocol import legacy_client, modern_client
from sluicegate.protocol.jsonrpc import Json, Request
from sluicegate.protocol.model import Failure
from sluicegate.protocol.parameter_names import MAX_NAME, MAX_PARAMS, _plain, check, look_alike

META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}


@pytest.mark.parametrize(
    ("params", "key"),
    [
        ({"name": "x", "Name": "y"}, "Name"),
        ({"NAME": "y"}, "NAME"),
        ({"name": "x", "argument\u017f": {}}, "argument\u017f"),  # a long s folds to s
        ({"ta\u017f\u212aId": "t"}, "ta\u017f\u212aId"),  # and the sign for kelvin to k
        ({"\uff4eame": "y"}, "\uff4eame"),
        ({"name\x00": "y"}, "name\x00"),
        ({" name": "y"}, " name"),
        ({"na\u200bme": "y"}, "na\u200bme"),
        ({"request_state": "s"}, "request_state"),
        ({"task_id": "t"}, "task_id"),
        ({"meta": {}}, "meta"),
        ({"ref": {"type": "ref/prompt", "name": "x", "Name": "y"}}, "Name"),
        ({"ref": {}, "argument": {"name": "x", "value": "", "NAME": "y"}}, "NAME"),
        ({"ref": {}, "argument": {"name": "x", "va_lue": ""}}, "va_lue"),
        ({"ref": {}, "argument": {}, "context": {"Arguments": {"path": "/"}}}, "Arguments"),
    ],
)
def test_another_spelling_of_a_parameter_is_refused(params: Json, key: str) -> None:
    method = "completion/complete" if "ref" in params else "tools/call"
    assert check(method, dict(params)) == f"{key!a} is no key here"
    request = Request(1, method, {**params, "_meta": META})
    assert isinstance(modern_client.parse(request, None), modern_client.Rejection)
    refused = legacy_client.parse(Request(1, method, params), "2025-11-25", None)
    assert isinstance(refused, Failure) and refused.code == -32602 and refused.message.isprintable()


@pytest.mark.parametrize(
    "params",
    [{}, {"name": "x", "arguments": {"Name": 1, "name": 2}}, {"ref": "name"},
     {"taskId": "t", "cursor": "c", "requestState": "s", "inputResponses": {}, "level": "info"}],
)  # fmt: skip
def test_what_methods_have_and_what_is_only_unknown_is_let_through(params: Json) -> None:
    assert check("tasks/get", more := {**params, "names": [], "x-name": 1, "": 2}) is None
    assert more == {**params, "names": [], "x-name": 1, "": 2}


@pytest.mark.parametrize(
    ("method", "own"),
    [("tools/call", {"name": "x", "arguments": {"a": 1}}), ("prompts/get", {"name": "x", "arguments": {}}),
     ("resources/read", {"uri": "a:b"}), ("completion/complete", {"ref": {}, "argument": {}, "context": {}})],
)  # fmt: skip
def test_a_request_about_one_thing_has_no_parameters_that_nobody_judged(method: str, own: Json) -> None:
    params = {**own, "force": True, "input": {"path": "/"}, "cursor": "c"}
    assert _both_eras(method, params) == [own, own]


def _both_eras(method: str, params: Json) -> list[object]:
    modern = modern_client.parse(Request(1, method, {**params, "_meta": META}), None)
    legacy = legacy_client.parse(Request(1, method, params), "2025-11-25", None)
    return [one.params if isinstance(one, modern_client.Parsed) else one for one in (modern, legacy)]


@pytest.mark.parametrize("method", ["tools/call", "prompts/get"])
@pytest.mark.parametrize("arguments", [[["replicas", 300]], "replicas=300", 300, [], "", 0, False])
def test_arguments_are_an_object(method: str, arguments: object) -> None:
    modern, legacy = _both_eras(method, {"name": "x", "arguments": arguments})
    assert isinstance(modern, modern_client.Rejection) and isinstance(legacy, Failure)
    assert (modern.response.error or {})["message"] == legacy.message == "Invalid params: arguments must be an object"


def test_arguments_that_are_null_are_none() -> None:
    assert _both_eras("tools/call", {"name": "x", "arguments": None}) == [{"name": "x"}, {"name": "x"}]


def test_look_alikes_are_found_among_many_keys_with_line_breaks() -> None:
    words = frozenset({"replicas", "dry_run"})
    for key in ("Replicas", "repl\nicas", "\nreplicas", "replicas\n", "dryRun", "re\u00adplicas"):
        assert look_alike({"a\nb": 1, "replicas": 2, key: 3, "z": 4}, words) == key
    assert look_alike({"a\nreplicas\nb": 1, "replica": 2, "replicas": 3}, words) is None


def test_names_are_judged_in_time_that_grows_with_their_length() -> None:
    # `unicodedata.normalize` takes the square of a run of combining marks: no such run reaches it.
    marks = "\u0301\u0327" * 200
    assert look_alike({f"na{marks}me": 1}, frozenset({"name"})) == f"na{marks}me"
    assert look_alike({f"na{marks}ne": 1}, frozenset({"name"})) is None
    assert look_alike({"\ufdfa" * 500: 1}, frozenset({"name"})) is None
    long = "x" * (MAX_NAME + 1)
    assert look_alike({long: 1}, frozenset({"name"})) == long, "too long to be judged"
    assert look_alike({long: 1}, frozenset({long})) is None


def test_a_request_has_so_many_parameters() -> None:
    assert check("ping", {f"x{number}": 1 for number in range(MAX_PARAMS)}) is None
    assert check("ping", {f"x{number}": 1 for number in range(MAX_PARAMS + 1)}) == "more than 100 parameters"
    long = "é" * 1_000_000
    assert check("ping", {long: 1}) == f"{'é' * MAX_NAME!a} is no key here"


@pytest.mark.parametrize("key", ["prıority", "PRİORITY", "Priority", "pri\u00adority", "priorıty"])
def test_a_name_in_other_capitals_is_a_look_alike(key: str) -> None:
    assert look_alike({key: 1}, frozenset({"priority"})) == key


def test_a_reference_has_so_many_members() -> None:
    few, many = ({"type": "ref/prompt", **{f"a.{n}": 0 for n in range(count)}} for count in (90, 20_000))
    assert check("completion/complete", {"ref": few, "argument": {}}) is None
    assert check("completion/complete", {"ref": many, "argument": {}}) == "more than 100 members of ref"


@given(st.text(max_size=20))
def test_a_name_in_ascii_reads_as_it_does_beside_others(name: str) -> None:
    """The quick reading of names in ASCII is that of all names."""
    assert _plain([name, "é"])[:-1] == _plain([name])


def test_names_that_are_not_ascii_are_compared_up_to_a_bound() -> None:
    few, many = ({"name": "x", **{chr(0xAC00 + n) * 500: 0 for n in range(count)}} for count in (30, 40))
    assert check("completion/complete", {"ref": few, "argument": {}}) is None
    assert "is no key here" in str(check("completion/complete", {"ref": many, "argument": {}}))
    assert check("completion/complete", {"ref": {f"k{n}" * 50: 0 for n in range(40)}, "argument": {}}) is None


@pytest.mark.parametrize(("token", "is_one"), [
    ("", True), ("t" * 1024, True), ("t" * 1025, False), (0, True), (-(2**63) + 1, True), (2**63, False), (True, False),
    (1.0, False), (None, False), ([], False),
])  # fmt: skip
def test_a_progress_token_is_as_long_as_an_id_may_be(token: Any, is_one: bool) -> None:
    """A task keeps it: 1,000 of 4 MB filled memory."""
    meta = {**META, "progressToken": token}
    modern = modern_client.parse(Request(1, "tools/list", {"_meta": meta}), None)
    legacy = legacy_client.parse(Request(1, "tools/list", {"_meta": {"progressToken": token}}), "2025-11-25", None)
    refused = isinstance(modern, modern_client.Rejection), isinstance(legacy, Failure)
    assert refused == (not is_one, not is_one)
