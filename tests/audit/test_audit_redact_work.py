"""The work of redaction grows with the text and no faster: each line of it that runs is counted, which takes long, so
that `--quick` leaves this file out."""

import sys
from types import FrameType
from typing import Any

import pytest

from sluicegate.audit import bounded, credentials, forms, names, randomness, values, vendors
from sluicegate.audit.redact import Redactor

SHAPES = (
    "key of the token ", "-eyJaaaaaaa", "eyJ", "-----BEGIN PRIVATE KEY-----x", "https://", "a@",
    "password: hunter2 ", "\"password\": \"", "password: '\n", "\\\\\\\"password\\\\\\\": \\\\\\\"", "-p ",
    "mysql -pa ", "a=", "token.", "<password ", "password=a;a", "<password></k><k>", "password \n value",
    "password: |\n a\n", "password: [\"", "password: a\n", "token           ", "\\", "\"", "Bearer ",
    "-u aaaaaaaaaa:", "a", "[", "{\"", "?key=", "password==", "ghp_aaaa ", "zip -a -a ", "p\u0430sswd: ",
    "echo a | ", "echo ", "password a ", "password:\n", "code\naaaa1!\n", "a|password\n", "password,a\n1,b\n",
    "insert into a(password) values ('a'),", "(1,'a'),", "<input ", "a:22:", "htpasswd -b ", "your code ",
    "login ", "auth(a,", "${", "${a", "{{", "$(", "kind: Secret\ndata:\n a: "
     "b\n", "\u5bc6\u7801 ", "jwt.sign(a", "curl -u a",
    "xxxx", "password is a ", "password the ", "the a", "aaaaaaaaaaaaa1 ", "'a' as ", "AUTH ",
    "/reset/", "/reset?a=b&", "/reset?" + "a=b&" * 3, "<<EOF\n", "> token ", "chpasswd <<", "pgp_sym_decrypt(a,",
    '"random_password" ', "PlainAuth('',", "password%3D", "%22", "token\" { ", "?token=", "&sig=", "://aaaa1", "sig=",
    "accounts: [", "password: &[u8", "Aa0+" * 21 + "A", "a::b", "insert into a(password) values\n", "bearer ",
    "echo a>a ",
    "echo a > token ", 'expect "assword:" ', "seed phrase: " + "abandon " * 5, "Authorization: a ", "Unseal Key 1",
    "QUJD", "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVo= ", "1\tAAAA\n", "-----BEGIN PRIVATE KEY-----\n1\tAAAAAAAAAAAAAAAA\n",
    "net use \\\\a ", "A1b2C3d4E5f6G7h8J9k0L1m2 ", "-----BEGIN CERTIFICATE-----\n", "///////////////////// ",
    "a,password\n1,2,3\n", 'a,password\n"', "key: A1b2C3d4E5f6G7h8J9k0 ",
    '"pass\\u0077ord":"a', '"\\u0077', "?pass%77ord=", "?%77", "%3A%2F%2F", "%3A%2F%2Fa%3Ab", "://aA1",
    "password: &a ", "? token\n",
    "password&gt;", "value=\"a\" ", "Digest nonce=", "curl -b ", "curl ", "vault kv put a ", "vault kv put a b=c ",
    "vault kv put a " + "user=annamarialouisa " * 20,
    "put-parameter ", "put-parameter SecureString ", "AUTH PLAIN ", "a1 LOGIN \"annamarialouisa\" ",
    "ACL SETUSER ", "Digest ",
)  # fmt: skip


DETECTORS = {module.__file__ for module in (credentials, forms, names, randomness, values, vendors)}


def lines_run(text: str) -> int:
    """How many lines of the detectors' code run for a text."""
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if frame.f_code.co_filename in DETECTORS else None

    before = sys.gettrace()
    bounded.begin()
    bounded.extend(10_000_000)  # a trace takes far more time than the lines that it counts
    sys.settrace(trace)
    try:
        credentials.find(text, names.is_secret_name)
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("shape", SHAPES)
def test_twice_the_text_is_at_most_twice_the_work(shape: str) -> None:
    text = shape * (8_192 // len(shape))
    assert lines_run(text * 2) <= 2 * lines_run(text) + 50
    Redactor(b"k" * 32).written(shape * (100_000 // len(shape)))  # one quadratic pattern would take minutes
    assert lines_run(text * 32) < 60_000 + 8 * len(text * 32)
