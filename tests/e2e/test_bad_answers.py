"""What a client says where it was asked, and what a server asks where it should not: each is refused as it should be,
reaches nobody else, and the next call is as if nothing had been. Over the wire, for no SDK sends such things.

What the servers saw stands in a file of each: a refused retry is nothing that they see.
"""

import json
import sys
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest
from e2e.sluice_process import Sluice, sluice
from e2e.wire import META, MODERN

from sluicegate.protocol.model import REASON
from sluicegate.store.keys import KeyRing, Sealer

Json = dict[str, Any]
SERVER = [sys.executable, str(Path(__file__).parent / "mischief_server.py")]
KEYS = {name: f"the key of {name}, used nowhere else" for name in ("ada", "eve")}
ASKS: Json = {"elicitation": {"form": {}}, "sampling": {}, "roots": {}}


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sluice]:
    folder = tmp_path_factory.mktemp("answers")
    keys = {name: {"hash": f"sha256:{sha256(key.encode()).hexdigest()}"} for name, key in KEYS.items()}
    servers: Json = {
        f"{era}{number}": {"command": SERVER[0], "args": [*SERVER[1:], era, str(folder / f"{era}{number}.seen")]}
        for era in ("legacy", "modern")
        for number in (1, 2)
    }
    with sluice({"servers": servers, "clients": {"keys": keys}}, folder, watched=True) as running:
        yield running
        assert "Traceback" not in running.log()


class Client:
    """One modern client; each request stands alone."""

    def __init__(self, process: Sluice, name: str = "ada") -> None:
        self.url = process.url
        self.name = name

    def request(self, method: str, **params: Any) -> Json:
        meta = META | {"io.modelcontextprotocol/clientCapabilities": ASKS}
        headers = {
            "accept": "application/json, text/event-stream", "authorization": f"Bearer {KEYS[self.name]}",
            "mcp-protocol-version": MODERN, "mcp-method": method, "mcp-name": str(params.get("name")),
        }  # fmt: skip
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
        response = httpx.post(self.url, json=body, headers=headers, timeout=30, trust_env=False)
        if response.headers["content-type"] == "application/json":
            return dict(response.json())
        return dict([json.loads(line[5:]) for line in response.text.splitlines() if line.startswith("data:")][-1])

    def call(self, tool: str, arguments: Json | None = None, **retry: Any) -> Json:
        return self.request("tools/call", name=tool, arguments=arguments or {}, **retry)

    def asked(self, tool: str, arguments: Json | None = None) -> tuple[list[str], str]:
        result = self.call(tool, arguments)["result"]
        assert result["resultType"] == "input_required", result
        return list(result["inputRequests"]), result["requestState"]

    def text(self, tool: str, arguments: Json | None = None, **retry: Any) -> str:
        result = self.call(tool, arguments, **retry)["result"]
        assert result["resultType"] == "complete", result
        return str(result["content"][0]["text"])


def seen(process: Sluice, server: str) -> list[str]:
    """What the server was sent so far."""
    file = process.config.with_name(f"{server}.seen")
    return file.read_text().splitlines() if file.exists() else []


ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
BOTH = pytest.mark.parametrize("server", ["legacy1", "modern1"])


def assert_still_well(client: Client, server: str) -> None:
    keys, state = client.asked(f"{server}__form")
    assert client.text(f"{server}__form", inputResponses=dict.fromkeys(keys, ADA), requestState=state) == "Ada"


# ---------------------------------------------------------------- answers that are none


MALFORMED: dict[str, Any] = {
    "null": None, "a list": [], "a word": "yes", "a number": 1, "an answer that is null": {"*": None},
    "a list as answer": {"*": []}, "a word as answer": {"*": "accept"},
}  # fmt: skip
UNFIT: dict[str, Any] = {
    "no action": {"*": {}}, "an action of no kind": {"*": {"action": "perhaps"}},
    "a field that is an object": {"*": {"action": "accept", "content": {"name": {}}}},
    "an answer of another kind": {"*": {"roots": []}},
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("name", [*MALFORMED, *UNFIT])
def test_malformed_answers_are_an_error_and_the_server_sees_none_of_them(
    process: Sluice, server: str, name: str
) -> None:
    """A stateless server learns nothing of it, and the same state is good for an answer that fits. A call that waits at
    a legacy server has ended."""
    client = Client(process)
    keys, state = client.asked(f"{server}__form")
    before = seen(process, server)
    given = {**MALFORMED, **UNFIT}[name]
    answers = dict.fromkeys(keys, given["*"]) if isinstance(given, dict) else given
    error = client.call(f"{server}__form", inputResponses=answers, requestState=state)["error"]
    assert error["code"] == -32602, error
    is_ended = name in UNFIT and server == "legacy1"
    ended = ['answer  "cancel"'] if is_ended else []  # by which a call that waits is ended
    give_up = time.monotonic() + 20
    while seen(process, server)[len(before) :] != ended:
        assert time.monotonic() < give_up, seen(process, server)[len(before) :]
    if name in UNFIT:
        assert error["message"] == f"inputResponses[{keys[0]!r}] is no answer to elicitation/create"
    if not is_ended:
        assert client.text(f"{server}__form", inputResponses=dict.fromkeys(keys, ADA), requestState=state) == "Ada"
    assert_still_well(client, server)


@BOTH
@pytest.mark.parametrize("given", [{}, {"inputResponses": {}}], ids=["absent", "empty"])
def test_what_is_missing_is_asked_again(process: Sluice, server: str, given: Json) -> None:
    client = Client(process)
    _, state = client.asked(f"{server}__form")
    again = client.call(f"{server}__form", requestState=state, **given)["result"]
    assert again["resultType"] == "input_required" and again["requestState"] != state
    retry = {"inputResponses": dict.fromkeys(again["inputRequests"], ADA), "requestState": again["requestState"]}
    assert client.text(f"{server}__form", **retry) == "Ada"


@BOTH
def test_answers_to_what_nobody_asked_are_nobodys(process: Sluice, server: str) -> None:
    client = Client(process)
    keys, state = client.asked(f"{server}__form")
    answers = {"other": {"action": "accept", "content": {"name": "Eve"}}, **dict.fromkeys(keys, ADA)}
    assert client.text(f"{server}__form", inputResponses=answers, requestState=state) == "Ada"
    assert client.text(f"{server}__plain", inputResponses=answers) == "plain"
    new = client.call(f"{server}__form", inputResponses={"*": ADA})["result"]  # without a state it is a new call
    assert new["resultType"] == "input_required"
    assert_still_well(client, server)


# ---------------------------------------------------------------- states that are somebody else's


@BOTH
@pytest.mark.parametrize("wrong", ["principal", "server", "tool", "arguments", "method"])
def test_a_state_is_good_for_its_own_call_alone(process: Sluice, server: str, wrong: str) -> None:
    ada, eve = Client(process), Client(process, "eve")
    keys, state = ada.asked(f"{server}__form", {"who": "me"})
    retry: Json = {"inputResponses": dict.fromkeys(keys, ADA), "requestState": state}
    before = seen(process, server), seen(process, f"{server[:-1]}2")
    said = {
        "principal": lambda: eve.call(f"{server}__form", {"who": "me"}, **retry),
        "server": lambda: ada.call(f"{server[:-1]}2__form", {"who": "me"}, **retry),
        "tool": lambda: ada.call(f"{server}__plain", {"who": "me"}, **retry),
        "arguments": lambda: ada.call(f"{server}__form", {"who": "you"}, **retry),
        "method": lambda: ada.request("prompts/get", name=f"{server}__form", arguments={"who": "me"}, **retry),
    }[wrong]()
    assert said["error"]["code"] == -32602, said
    assert (seen(process, server), seen(process, f"{server[:-1]}2")) == before
    assert ada.text(f"{server}__form", {"who": "me"}, **retry) == "Ada"  # it was not spent


@BOTH
def test_a_state_that_is_too_old_is_refused_and_the_server_sees_nothing(process: Sluice, server: str) -> None:
    """Ten minutes are not waited for: the state is opened with Sluice's own key and sealed again, ten minutes older."""
    client = Client(process)
    keys, state = client.asked(f"{server}__form")
    sealer = Sealer(KeyRing.load(process.config.with_name("state") / "keys", "seal"))
    envelope = sealer.unseal("round", state, "key:ada")
    assert envelope is not None
    retry: Json = {"inputResponses": dict.fromkeys(keys, ADA)}
    before = seen(process, server)
    older = sealer.seal("round", {**envelope, "expires": envelope["expires"] - 601}, "key:ada")
    assert client.call(f"{server}__form", requestState=older, **retry)["result"]["_meta"][REASON] == "outcome_unknown"
    assert seen(process, server) == before
    same_age = sealer.seal("round", envelope, "key:ada")
    assert client.text(f"{server}__form", requestState=same_age, **retry) == "Ada"


# ---------------------------------------------------------------- servers that ask where they should not


def test_a_server_that_asks_outside_of_a_call_is_refused_and_its_calls_go_on(process: Sluice) -> None:
    client = Client(process)
    assert client.text("legacy1__aside") == "begun"
    give_up = time.monotonic() + 60
    while not (said := [words for words in seen(process, "legacy1") if words.startswith("answer aside")]):
        assert time.monotonic() < give_up
    assert said in (['answer aside "nobody"'], ['answer aside "cancel"'])
    assert_still_well(client, "legacy1")


@BOTH
def test_a_flood_of_notifications_holds_up_nobody(process: Sluice, server: str) -> None:
    client, other = Client(process), Client(process, "eve")
    assert client.text(f"{server}__flood") == "flooded"
    for one in (client, other):
        assert_still_well(one, server)


def test_ids_that_a_server_uses_twice_cross_nothing(process: Sluice) -> None:
    """Two open questions of one id: each call ends with its own client's answer, never with the other's."""
    ada, eve = Client(process), Client(process, "eve")
    for _ in range(3):
        asked = [(one, *one.asked("legacy1__same_id", {"who": one.name})) for one in (ada, eve)]
        for one, keys, state in reversed(asked):
            answer = {"action": "accept", "content": {"name": one.name}}
            retry = {"inputResponses": dict.fromkeys(keys, answer), "requestState": state}
            assert one.text("legacy1__same_id", {"who": one.name}, **retry) == f"{one.name} is {one.name}"
    assert_still_well(ada, "legacy1")


def test_answers_that_a_server_gives_unasked_or_twice_are_nobodys(process: Sluice) -> None:
    client = Client(process)
    for _ in range(3):
        assert client.text("legacy1__stutter") == "first"
    assert_still_well(client, "legacy1")
