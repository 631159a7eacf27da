"""The detector that comes along, as a process, behind a real Sluice: what it finds, and what it never lets pass.

The secrets are made up and written in two parts, so that scanners of repositories leave this file alone.
"""

import base64
import json
import os
import random
import subprocess
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import standardwebhooks
from command_line import run
from e2e.sluice_process import COMMAND, ROOT, clean_environment
from peers.fleet import free_port, running
from policy_bed import Bed, Json, bed, client_keys, reason, recorder
from waiting import until_so

from sluicegate.detector.secrets import Scanner

ROWS = "p, role:user, *, *, *, allow\n"
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
GITHUB = "ghp_" + "a8Kd93jfLw02mXcQpzR7sT5uVbY1eH4iGnJo"
AWS_ID, AWS_KEY = "AKIA" + "QYLPMN5HNBXCZL2T", "wJ4lrXUtnF2MIaK7" + "MDENGkbPxRf1CYzQLMPLqKEY"
PEM = "\n".join(
    ["-----BEGIN RSA PRIVATE " + "KEY-----", *["MIIEpAIBAAKCAQEA1c7+9z5Pad7OejecsQ0bu3aozN3tihPmljnnudb9G3HECdnH"] * 5,
     "-----END RSA PRIVATE " + "KEY-----"]
)  # fmt: skip
HARMLESS = [
    "commit 3f786850e387550fdab836ed7e6dc881de23001b, merged 89e6c98d92887913cadf06b2adb97f26cde4849b",
    "id 0b0ee0b4-83a4-4d25-a4a5-3d2f7ea2c4b1, parent 9f4d1bcb-7b0e-4e44-9e1c-5c1c0f1f8a10",
    base64.b64encode(b"\x89PNG\r\n\x1a\n" + random.Random(1).randbytes(30_000)).decode(),
    "The password is not in this text. Ask the administrator for a token, and keep it secret.",
    "sha512-" + base64.b64encode(random.Random(2).randbytes(64)).decode(),
]


@pytest.fixture(scope="module")
def detector(tmp_path_factory: pytest.TempPathFactory) -> Iterator["tuple[str, Path]"]:
    """Its URL and its log. It checks signatures."""
    with serving(tmp_path_factory.mktemp("detector"), SLUICE_DETECTOR_SECRET=SECRET) as made:
        yield made


@contextmanager
def serving(folder: Path, *arguments: str, **variables: str) -> Iterator["tuple[str, Path]"]:
    url, log = f"http://127.0.0.1:{free_port()}", folder / "detector.log"
    command = [*COMMAND, "detector", "--listen", url.removeprefix("http://"), *arguments]
    with running(command, log, cwd=ROOT, env=clean_environment() | variables, stdout=subprocess.PIPE) as process:
        # A machine that compiles the library's rules for the first time takes half a minute.
        until_so(lambda: process.poll() is not None or "listens on" in log.read_text(), 120, log.read_text)
        assert process.poll() is None, log.read_text()
        yield f"{url}/", log


@contextmanager
def guarded(folder: Path, url: str, **hook: Any) -> Iterator[Bed]:
    servers = {"fs": recorder(folder, "fs", tools=["read"])}
    whole = {"url": url, "on": ["call", "result"], "sees": "whole", "timeout": "10s", "secret": SECRET}
    clients = {"keys": client_keys(user=["role:user"])}
    with bed(folder, ROWS, servers, clients=clients, hooks={"secrets": whole | hook}) as made:
        yield made


def answers(made: Bed, result: Json) -> Json:
    """The result of a call whose server answers that."""
    (made.folder / "fs" / "catalog.json").write_text(json.dumps({"tools": ["read"], "results": {"read": result}}))
    message = made.call("user", "fs__read").json()
    return dict(message["result"])


def texts(*parts: str) -> Json:
    return {"content": [{"type": "text", "text": part} for part in parts]}


def question(on: str = "call", **members: Any) -> bytes:
    held = {"arguments": {}} | ({"result": {}} if on == "result" else {})
    return json.dumps({"version": 1, "on": on, "masked": False, "cut": False, **held, **members}).encode()


def post(url: str, body: bytes, secret: str = SECRET) -> httpx.Response:
    now = datetime.now(UTC)
    signature = standardwebhooks.Webhook(secret).sign("id", now, body.decode("utf-8", "replace"))
    stamp = {"webhook-id": "id", "webhook-timestamp": str(int(now.timestamp())), "webhook-signature": signature}
    return httpx.post(url, content=body, headers=stamp, timeout=20)


def test_secrets_in_results_and_arguments_do_not_pass_and_the_rest_does(tmp_path: Path, detector: Any) -> None:
    url, log = detector
    with guarded(tmp_path, url) as made:
        for secret in (GITHUB, PEM, f"access key {AWS_ID}\naws_secret_access_key = {AWS_KEY}"):
            result = answers(made, texts("before", f"here: {secret}", "behind"))
            shown = [block["text"] for block in result["content"]]
            assert shown == ["before", "[redacted by the hook secrets]", "behind"]
            assert result["_meta"]["dev.sluice/redacted"] == {"secrets": ["/content/1/text"]}
            before = len(made.seen("fs"))
            denied = made.call("user", "fs__read", note={"a/b": ["x", secret]})
            assert reason(denied) == "denied"
            assert "there is a secret in the arguments:" in denied.text
            assert len(made.seen("fs")) == before
            assert not any(part in denied.text for part in (GITHUB, AWS_ID, AWS_KEY, PEM[40:90]))
        for text in HARMLESS:
            assert answers(made, texts(text))["content"] == texts(text)["content"]
            assert reason(made.call("user", "fs__read", text=text)) == ""
        said = next(one for one in made.audit() if one["type"] == "outcome" and "hooks" in one)["hooks"][-1]
        assert (said["verdict"], "github-pat" in said["reason"]) == ("redact", True)
    kept = log.read_text() + (tmp_path / "sluice.log").read_text()
    assert not any(part in kept for part in (GITHUB, AWS_ID, AWS_KEY, PEM[40:90]))


def test_both_keys_of_a_pair_are_found_in_members_of_their_own(tmp_path: Path, detector: Any) -> None:
    with guarded(tmp_path, detector[0]) as made:
        keys = {"AccessKeyId": AWS_ID, "SecretAccessKey": AWS_KEY, "Expiration": "2026-01-01T00:00:00Z"}
        result = answers(made, texts("ok") | {"structuredContent": {"Credentials": keys}})
        mark = "[redacted by the hook secrets]"
        assert result["structuredContent"]["Credentials"] == keys | {"AccessKeyId": mark, "SecretAccessKey": mark}
        assert result["content"] == [{"type": "text", "text": "ok"}]


def test_what_cannot_be_redacted_is_withheld(tmp_path: Path, detector: Any) -> None:
    url = detector[0]
    for result in (
        texts("ok") | {"structuredContent": {GITHUB: 1}},
        texts(*[f"{number} {GITHUB}" for number in range(101)]),
        texts("ok") | {"structuredContent": {"n" * 600: GITHUB}},
    ):
        said = post(url, question("result", result=result)).json()
        assert (said["verdict"], GITHUB in str(said)) == ("withhold", False)
    with guarded(tmp_path, url) as made:
        withheld = answers(made, texts("ok") | {"structuredContent": {GITHUB: 1}})
        assert withheld["_meta"]["dev.sluice/reason"] == "result_withheld"


def test_a_detector_that_is_shown_masked_or_cut_values_lets_nothing_pass(tmp_path: Path, detector: Any) -> None:
    url = detector[0]
    for shown in ({"masked": True}, {"cut": True}, {"masked": None}):
        assert post(url, question("call", **shown)).json()["verdict"] == "deny"
        assert post(url, question("result", **shown)).json()["verdict"] == "withhold"
    with guarded(tmp_path, url, sees="masked") as made:
        assert "set sees: whole at this hook" in made.call("user", "fs__read").text


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400), (b"no JSON", 400), (b"[]", 400), (b"[" * 5_000, 400), (b"{}", 400), (b"\xff", 401),
        (b'{"on": "call", "on": "result", "result": {}, "arguments": {}, "masked": false, "cut": false}', 400),
        (question("approval"), 400), (question("call", arguments=[]), 400), (question("result", result=None), 400),
        (question("call", arguments={"many": [1] * 300_000}), 400),
        (question("call", arguments={"long": "a" * 9 * 1024 * 1024}), 413),
    ],
    ids=lambda value: None if isinstance(value, int) else f"{len(value)} bytes",
)  # fmt: skip
def test_what_it_cannot_read_has_no_verdict(detector: Any, body: bytes, status: int) -> None:
    answer = post(detector[0], body)
    assert (answer.status_code, "verdict" in answer.text) == (status, False)


def test_what_takes_too_long_to_search_does_not_pass(detector: Any) -> None:
    """Which it is depends on the machine: so many secrets are found in time, or the search ends."""
    long = f"aws_secret_access_key = {AWS_KEY}\n" * 100_000
    assert post(detector[0], question("call", arguments={"long": long})).json()["verdict"] == "deny"
    assert post(detector[0], question()).json() == {"verdict": "allow"}


def test_a_long_name_takes_memory_once_and_not_for_each_item_of_its_list() -> None:
    scanner, name = Scanner(), "n" * 1_000_000
    question = {name: ["a"] * 2_000, "b": {name: [["a"] * 500, GITHUB]}, "name/of the\nlist": [GITHUB] * 2}
    tracemalloc.start()
    try:
        found = scanner.places(question, 100, 512)
        assert tracemalloc.get_traced_memory()[1] < 20 * len(name), "the question has two such names"
        assert (found.kinds, found.pointers) == (("github-pat",), None), "one is longer than a pointer may be"
    finally:
        tracemalloc.stop()
    for most, longest, pointers in ((2, 11, ["/a~1b/0/c~0", "/a~1b/1"]), (1, 11, None), (2, 10, None)):
        named = scanner.places({"a/b": [{"c~": GITHUB}, GITHUB]}, most, longest).pointers
        assert (named and sorted(named)) == pointers
    for hidden in ({f"{'n' * 500}_aws_secret_access_key": [AWS_ID, AWS_KEY]}, {f"{GITHUB} {'n' * 500}": ["a"]}):
        assert scanner.places(hidden, 100, 1_000).kinds


def test_a_wrong_signature_has_no_verdict(tmp_path: Path, detector: Any) -> None:
    url = detector[0]
    other = "whsec_" + base64.b64encode(b"another secret that is long enough").decode()
    assert httpx.post(url, content=question(), timeout=20).status_code == 401
    assert post(url, question(), other).status_code == 401
    assert post(url, question()).json() == {"verdict": "allow"}
    assert httpx.get(url, timeout=20).status_code == 405
    with guarded(tmp_path, url, secret=other) as made:
        assert "gave no verdict: HTTP 401" in made.call("user", "fs__read").text
        assert made.seen("fs") == []


def test_many_at_once_have_each_their_own_answer(detector: Any) -> None:
    def ask(number: int) -> Any:
        text = f"{number} {GITHUB}" if number % 3 == 0 else HARMLESS[number % len(HARMLESS)]
        return post(detector[0], question("result", result={"a": {"b~/": [number, text]}})).json()

    with ThreadPoolExecutor(16) as pool:
        said = list(pool.map(ask, range(60)))
    assert [one.get("redact") for one in said] == [["/a/b~0~1/1"] if at % 3 == 0 else None for at in range(60)]


def test_results_are_withheld_whole_where_that_is_wanted(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    with serving(tmp_path, "--withhold", "--secret-file", str(file)) as (url, _):
        said = post(url, question("result", result=texts(GITHUB))).json()
        assert said == {"verdict": "withhold", "reason": "there is a secret in the result: github-pat"}


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    (tmp_path / "kingfisher_sdk.py").write_text("raise ImportError('as where the extra is not installed')")
    missing = subprocess.run(
        [*COMMAND, "detector"], capture_output=True, text=True, cwd=ROOT,
        env=clean_environment() | {"PYTHONPATH": os.pathsep.join([str(tmp_path), "proxy"])},
    )  # fmt: skip
    assert (missing.returncode, "install sluicegate[detector]" in missing.stderr) == (2, True)
    for words, says in (
        (("--listen", "0.0.0.0:7412"), "a secret is needed"), (("--listen", "here"), "not an address"),
        (("--secret-file", "/nowhere/secret"), "No such file"),
    ):  # fmt: skip
        refused = run(tmp_path, "detector", *words)
        assert (refused.returncode, says in refused.stderr) == (2, True), refused.stderr
