"""What poses as a parameter is refused in both eras; what is only unknown travels on."""

import pytest

from sluicegate.call import Failure
from sluicegate.era import legacy_client, modern_client
from sluicegate.era.params import posing
from sluicegate.message import Json, Request

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
    ],
)
def test_another_spelling_of_a_parameter_is_refused(params: Json, key: str) -> None:
    assert posing(params) == key
    request = Request(1, "tools/call", {**params, "_meta": META})
    assert isinstance(modern_client.parse(request, None), modern_client.Rejection)
    refused = legacy_client.parse(Request(1, "tools/call", params), "2025-11-25", None)
    assert isinstance(refused, Failure) and refused.code == -32602 and refused.message.isprintable()


@pytest.mark.parametrize(
    "params",
    [{}, {"name": "x", "arguments": {"Name": 1, "name": 2}}, {"names": []}, {"x-name": 1, "": 2}, {"ref": "name"},
     {"taskId": "t", "cursor": "c", "requestState": "s", "inputResponses": {}, "level": "info"}],
)  # fmt: skip
def test_what_is_only_unknown_travels_on(params: Json) -> None:
    assert posing(params) is None
