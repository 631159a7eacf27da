"""Wycheproof's signed tokens, its result flags honoured: nothing that is invalid is taken.

Their payloads are no claims, so the header is judged by `read` on a payload of ours, the signature on theirs. What is
refused of the valid ones is said here, one reason for each, so that it is refused by intention.
"""

from typing import Any

import pytest
from collected import WYCHEPROOF, signed_tokens

from sluicegate.listen.auth.jws import Jws, fits, is_signed_by, looks_like_one, read

GROUPS = signed_tokens()
pytestmark = pytest.mark.skipif(WYCHEPROOF is None, reason="SLUICE_WYCHEPROOF is no copy of its tokens: see README.md")


def takes(token: str, key: dict[str, Any]) -> bool:
    opened = opened_as_ours(token)
    return opened is not None and is_signed_by(Jws(opened.header, {}, token.encode()), key)


def opened_as_ours(token: str) -> Jws | None:
    return read(f"{token.split('.')[0]}.e30.AA".encode()) if looks_like_one(token.encode()) else None


def why_not(token: str, key: dict[str, Any]) -> str:
    if not looks_like_one(token.encode()):
        return "not compact"
    opened = opened_as_ours(token)
    if opened is None:
        return "header"
    return "" if fits(key, opened.algorithm) else f"{opened.algorithm} with {key['kty']} {key.get('alg')}"


@pytest.mark.parametrize("at", range(len(GROUPS)), ids=[f"{n}-{group['comment']}" for n, group in enumerate(GROUPS)])
def test_only_what_is_valid_is_taken(at: int) -> None:
    group = GROUPS[at]
    for test in group["tests"]:
        assert test["result"] in ("valid", "invalid")
        if takes(test["jws"], group["key"]):
            assert test["result"] == "valid", test


REFUSED = {
    "HS256 with oct HS256": "made with a secret, which an issuer would share with us",
    "ES512 with EC ES521": "the key is for an algorithm that does not exist",
    "PS384 with RSA PS256": "the key is for another algorithm",
    "not compact": "the JSON serialization is no bearer token",
}


def test_what_is_valid_is_taken_unless_there_is_a_reason() -> None:
    valid = [(t["jws"], group["key"]) for group in GROUPS for t in group["tests"] if t["result"] == "valid"]
    refused = [one for one in valid if not takes(*one)]
    assert {why_not(*one) for one in refused} == REFUSED.keys()
    assert len(valid) - len(refused) == 26
