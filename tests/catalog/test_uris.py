"""Public URIs are reversible, only one spelling of a URI is judged, and templates match in bounded time."""

import re
from typing import Any
from urllib.parse import unquote

import pytest
import uritemplate
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.catalog import uris as catalog_uris
from sluicegate.catalog.uris import (
    MAX_STEPS,
    MAX_URI,
    Rewriting,
    TemplateMatcher,
    decodings,
    expansions,
    is_clean,
    literal_prefix,
    own_uri,
    public_uri,
    readings,
    spellings,
)
from sluicegate.catalog.uris import variables as variables_of

prefixes = st.from_regex(r"[a-z][a-z0-9-]{0,19}", fullmatch=True)
schemes = st.sampled_from(
    ["file://", "urn:", "memo:", "ui://", "ui:", "git+ssh://", "gh+file://", "http+unix://", "", "+"]
)
rests = st.text(max_size=30) | st.text(alphabet="a/{}?+:%,", max_size=30)
uris = st.builds(str.__add__, schemes, rests)


def matches(template: str, uri: str) -> bool:
    return TemplateMatcher(uri).matches(template)


@pytest.mark.parametrize(
    ("own", "public"),
    [
        ("file:///a", "gh+file:///a"),
        ("urn:x:y", "gh+urn:x:y"),
        ("memo:x", "gh+memo:x"),
        ("file:///{+path}", "gh+file:///{+path}"),
        ("{scheme}://a", "gh+{scheme}://a"),
        ("ui://app/main.html", "ui://gh+app/main.html"),
        ("gh+file:///a", "gh+gh+file:///a"),
        ("https://a/b", "https://a/b"),
        ("http://a+b/{c}", "http://a+b/{c}"),
        ("HTTPS://a", "HTTPS://a"),
        ("http+unix://a", "gh+http+unix://a"),
    ],
)
def test_public_forms(own: str, public: str) -> None:
    assert public_uri("gh", own) == public
    if public != own:
        assert own_uri(public, {"gh"}) == ("gh", own)


@pytest.mark.parametrize("own", ["https://a/b", "ui://app/x"])
def test_a_prefix_in_front_of_what_is_shown_otherwise_is_accepted(own: str) -> None:
    assert own_uri(f"gh+{own}", {"gh"}) == ("gh", own)


@pytest.mark.parametrize(
    "uri",
    ["file:///a", "https://gh+a", "xx+file:///a", "ui://app", "ui://xx+app", "gh", "", "+", "GH+file:///a"],
)
def test_what_is_under_no_prefix_is_nobodys(uri: str) -> None:
    assert own_uri(uri, {"gh"}) is None


def test_an_empty_prefix_rewrites_nothing() -> None:
    assert public_uri("", "file:///a") == "file:///a"
    assert own_uri("+file:///a", {""}) is None


@settings(deadline=None)
@given(prefix=prefixes, others=st.sets(prefixes), uri=uris)
def test_public_uris_are_reversible(prefix: str, others: set[str], uri: str) -> None:
    public = public_uri(prefix, uri)
    assert own_uri(public, others | {prefix}) == (prefix, uri)
    assert Rewriting(prefix).own(public) == uri


@settings(deadline=None)
@given(one=prefixes, two=prefixes, uri=uris, other=uris)
def test_two_servers_never_share_a_public_uri(one: str, two: str, uri: str, other: str) -> None:
    if (one, uri) != (two, other):
        assert public_uri(one, uri) != public_uri(two, other)


def test_plain_uris_are_shown_as_they_are_and_still_accepted_with_the_prefix() -> None:
    rewriting = Rewriting("gh", plain=True)
    assert rewriting.public("file:///a") == "file:///a"
    assert rewriting.own("file:///a") == rewriting.own("gh+file:///a") == "file:///a"
    beside = Rewriting("gh", plain=True, others=frozenset({"bank"}))
    assert beside.public("bank+file:///a") == "gh+bank+file:///a", "it is not shown as another server's"
    assert beside.own("gh+bank+file:///a") == "bank+file:///a" and beside.public("file:///a") == "file:///a"


# ---------------------------------------------------------------- one spelling


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a/b.txt", "file:///a/b/", "file:///a/.hidden", "file:///a/..b", "file:///...", "file:///a b",
        "file:///caf%C3%A9", "file:///a%20b", "file:///100%25", "file://host/a", "file:///A/B", "file:/a",
        "db://u%5Bx@host:1/t?q=1#f", "postgres://User@host/T", "http://localhost/a", "test://static-text",
        "urn:X:y", "URN:x", "memo:x..y", "memo:..", "memo:%41", "Notes: today", "git+ssh://host/a", "ui://app/x",
        "x://[::1]/a", "x:///", "", "plain", "file:///a%252520b", "x://h/?to=%253A", "file:///a%25of", "file:///a;b",
        "https://u@api.x:8443/a?q#f", "https://api.x:443/a", "https://xn--bcher-kva.de/a", "http://10.0.0.1:80/", "ftp://h",
        "https://[::1]:443/a", "wss://[2001:db8::1]/", "https://1.2.3.4.example/", "x://h:/a", "x://h:012/", "x:h", "x://é/",
        "file:///..a;b", "s3://bucket//key", "gh+https://a.test/x/https://b.test/y", "memo:a%252541",
    ],
)  # fmt: skip
def test_a_uri_in_its_one_spelling_is_clean(uri: str) -> None:
    assert is_clean(uri)


@pytest.mark.parametrize(
    "uri",
    [
        "file:///a/../b", "file:///a/..", "file:///./a", "file:///a/.", "file:///a/../", "file://../a", "x:/..",
        "x:../a", "x:a/../b", "file:///a?x/../b", "file:///a?/../b", "file:///a#/../b", "file:///a/..?x", "../a",
        "file:///a/%2e%2e/b", "file:///a/%2E./b", "file:///a%2Fb", "file:///a%2fb", "memo:a%2f..%2fb",
        "file:///%41", "file:///%7e", "file:///%5f", "file:///%30", "file:///a?x=%61", "file:///a%5Cb", "memo:%5c",
        "FILE:///a", "File:///a", "x://Host/a", "x://u@Host/a", "x://HOST", "x://\u00c9/a",
        "file://localhost/a", "file://localhost", "file://localhost:1/a", "gh+file://localhost/a",
        "file:///a\\b", "memo:a\\b", "file:///a/.\t./b", "file:///a\n", "\x00file:///a", " file:///a", "file:///a ",
        "fi\tle:///a", "file:///a/%252e%252e/b", "file:///a/%25252E/b", "file:///a%252fb", "file:///a%255cb",
        "file:///%2541", "file:///a%00.txt", "file:///a%2500", "memo:a%00", "memo:%0a", "memo:%7f", "memo:a%252f..",
        "file:///a/..;/b", "file:///a/..;x=1/b", "file:///a/..;", "x:/.;/a", "file:///a/..%3b/b", "file:///a/..%253b",
        "memo:\u200bx", "memo:x\ufeff", "file:///a\xa0b", "file:///a/..%3Fx", "file:///a/..%23x",
        "https://api.x:/a", "https://api.x:0443/a", "https:api.x/a", "https:/api.x/a", "https:///api.x/a",
        "https:", "https://", "https:h", "https://?a", "https://api\u3002x/a", "https://\uff41pi.x/a", "https://api\ufe0f.x/a",
        "https://b\xfccher.de/", "https://b%C3%BCcher.de/", "https://api.x:8x/", "http://0x7f.1/", "http://127.1/",
        "http://2130706433/", "http://010.0.0.1/", "http://10.0.0.1./", "http://[0:0::1]/", "http://[::1%25eth0]/",
        "http://[::ffff:a00:1]/", "http://[::ffff:10.0.0.1]/", "gh+https:/api.x/a", "ws:h", "ftp:/h", "HTTPS:h",
        "https://api.x:٤٤٣/a", "https://[::1]x/a", "https://[::1/a", "http://1.2.3.0x/", "http://0x/", "http://256.1.1.1/",
        "file:///a//b", "file:////etc", "file:///a//", "git+file:///a//b", "file:/a//b", "file:a//b", "git+file:/a//b",
        "%20file:///a", "file%3A///a",
        "file%253A///a", "%EF%BB%BFfile:///a", "fi%09le:///a",
    ],
)  # fmt: skip
def test_another_spelling_is_not_clean(uri: str) -> None:
    assert not is_clean(uri)


@pytest.mark.parametrize(
    ("uri", "other"),
    [
        ("file:/etc/x", "file:///etc/x"), ("file:etc/x", "file:///etc/x"), ("file://any/etc/x", "file:///etc/x"),
        ("file://127.0.0.1/etc/x", "file:///etc/x"), ("file:///etc/x?", "file:///etc/x"),
        ("file:///etc/x?a#b", "file:///etc/x"), ("file:///etc/x/", "file:///etc/x"), ("file:///etc/x#", "file:///etc/x"),
        ("SECRET:one", "secret:one"), ("Secret:one?", "secret:one"), ("s%65cret:one", "secret:one"),
        ("memo:%41", "memo:A"), ("db://u@h/t", "db://h/t"), ("db://h:/t", "db://h/t"), ("db://h./t", "db://h/t"),
        ("https://h:443/t", "https://h/t"), ("https://h/t", "https://h:443/t"), ("https://u@h:443/t", "https://h/t"),
        ("https://[::1]:443/t", "https://[::1]/t"), ("https://u@[::1]/t", "https://[::1]:443/t"),
        ("x://[::1]:01/t", "x://[::1]:1/t"), ("x://[::1]:/t", "x://[::1]/t"), ("db://h:01/t", "db://h:1/t"),
        ("https://xn--bcher-kva.de./t", "https://bücher.de/t"), ("git+https://h:443/t", "git+https://h/t"),
        ("db://u:p@h.:/t/?q", "db://h/t"), ("git+file:/a", "git+file:///a"),
        ("https://h", "https://h/"), ("https://h?q", "https://h/?q"), ("https://h#f", "https://h/"),
        ("https://h/?q", "https://h?q"), ("https://u@h:443?q#f", "https://h/"), ("db://h?q", "db://h/?q"),
        ("https://h//t", "https://h/t"), ("https://h:443/a///b//", "https://h/a/b"), ("db://h//t?q", "db://h/t"),
        ("memo:a//b", "memo:a/b"), ("s3://b/k//", "s3://b/k"), ("x:////t", "x:///t"), ("//h//t", "//h/t"),
    ],
)  # fmt: skip
def test_what_servers_take_a_uri_for_is_judged_too(uri: str, other: str) -> None:
    assert other in readings(uri)


@pytest.mark.parametrize(
    ("uri", "others"),
    [
        ("file:///caf%C3%A9", ["file:///café"]), ("file:///caf%c3%a9", ["file:///café"]),
        ("file:///nai\u0308ve", ["file:///naïve"]), ("memo:my%20docs", ["memo:my docs"]),
        ("file:///a%281%29", ["file:///a(1)"]), ("https://h/a%2Bb", ["https://h/a+b"]),
        ("file:///a%2520b", ["file:///a%20b", "file:///a b"]), ("file:///caf%E9", ["file:///caf\udce9", "file:///café"]),
        ("https://h/?q=my+docs", ["https://h/?q=my docs"]), ("https://h/a+b", []), ("file:///a/b", []),
    ],
)  # fmt: skip
def test_what_servers_read_that_decode(uri: str, others: list[str]) -> None:
    assert set(decodings(uri)) - {uri} == set(others)


def test_what_is_decoded_is_bounded() -> None:
    assert len(decodings("file:///" + "%25" * 1_300 + "41")) <= 16
    longest = "https://xn--" + "a" * 4_000 + "/"
    assert is_clean(longest) and all(other.isascii() for other in readings(longest)), "no name of the DNS"


@pytest.mark.parametrize("uri", ["file:///a/b.txt", "memo:x", "db://h:1/t", "urn:a:b", "plain", "x://h/a%20b", ""])
def test_most_uris_are_taken_for_nothing_else(uri: str) -> None:
    assert readings(uri) == []


@settings(deadline=None)
@given(st.text(alphabet="ab/.%25eFfb03;?#\\", max_size=30))
def test_a_clean_path_has_no_dot_segment_and_no_control_however_often_a_server_decodes(path: str) -> None:
    uri = f"file:///{path}"
    decoded = path
    while is_clean(uri):
        assert not {".", ".."} & {segment.partition(";")[0] for segment in re.split(r"[/\\\\?#]", decoded)}
        assert not re.search(r"[\x00-\x1f\x7f]", decoded)
        decoded, before = unquote(decoded), decoded
        if decoded == before:
            break


# ---------------------------------------------------------------- templates


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{path}", "file:///a"),
        ("file:///{path}", "file:///"),
        ("file:///{+path}", "file:///a/b?c#d"),
        ("file:///{path*}", "file:///a,b"),
        ("x://{a}/{b}.txt", "x://1/2.3.txt"),
        ("x://a{/p*}", "x://a/b/c"),
        ("x://a{/p}", "x://a"),
        ("x://a{?q,r}", "x://a?q=1&r=2%2F"),
        ("x://a?z=1{&q}", "x://a?z=1&q=2"),
        ("x://a{#f}", "x://a#b/c"),
        ("x://a{;v}", "x://a;v=1"),
        ("x://a{.ext}", "x://a.tar.gz"),
        ("x://{user-id:3}", "x://abc"),
        ("{+any}", ""),
        ("x://a", "x://a"),
        ("x://{a}{b}", "x://aaa"),
    ],
)
def test_an_expansion_matches_its_template(template: str, uri: str) -> None:
    assert matches(template, uri)
    assert matches(public_uri("gh", template), public_uri("gh", uri))


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("file:///{path}", "file:///a/b"),
        ("file:///{path}", "file:///a?b"),
        ("file:///{path}", "other:///a"),
        ("x://{a}/{b}.txt", "x://1/2.md"),
        ("x://a{/p}", "x://ab"),
        ("x://a{?q}", "x://a&q=1"),
        ("x://a{?q}", "x://a?q=1#f"),
        ("x://a", "x://a/"),
        ("x://{a", "x://{a"),
        ("x://a}", "x://a}"),
        ("x://{}", "x://"),
        ("x://{!a}", "x://"),
        ("x://{a b}", "x://1"),
        ("x://{{a}}", "x://{1}"),
        ("x://" + "{a}" * 33, "x://"),
        ("x://" + "a" * 3000, "x://" + "a" * 3000),
        ("{+a}", "a" * 5000),
    ],
)
def test_what_is_no_expansion_does_not_match(template: str, uri: str) -> None:
    assert not matches(template, uri)


values = (
    st.text(max_size=6)
    | st.lists(st.text(max_size=4), max_size=3)
    | st.dictionaries(st.text(min_size=1, max_size=3), st.text(max_size=3), max_size=2)
)
variables = st.sampled_from(["a", "b", "c*", "d.e", "f:2"])
expressions = st.builds(
    lambda operator, names: "{" + operator + ",".join(names) + "}",
    st.sampled_from(["", "+", "#", ".", "/", ";", "?", "&"]),
    st.lists(variables, min_size=1, max_size=3),
)
templates = st.builds("".join, st.lists(st.sampled_from(["x://", "/", "a", "?z=1", "urn:"]) | expressions, max_size=6))


@settings(deadline=None)
@given(
    template=templates,
    given_values=st.fixed_dictionaries(
        {}, optional={n: values for n in ("a", "b", "c", "d.e")} | {"f": st.text(max_size=4)}
    ),
)
def test_every_expansion_of_a_template_matches_it(template: str, given_values: dict[str, Any]) -> None:
    assert matches(template, uritemplate.expand(template, given_values))


def test_a_hostile_template_is_matched_without_backtracking() -> None:
    # Exponential in a backtracking matcher: 32 gaps over 4,095 equal characters, and no match.
    assert not matches("{+a}a" * 32, "a" * 1_499 + "b")
    assert matches("{+a}a" * 32, "a" * 1_500)


def test_the_work_of_matching_is_that_of_all_templates_together() -> None:
    matcher = TemplateMatcher("a/" * 2_000)
    hostile = ["{+a}{+b}{+c}a" * 8 + f"/{number}{{d}}" for number in range(1_000)]
    assert not any(map(matcher.matches, hostile)) and MAX_STEPS < matcher.steps < MAX_STEPS + 5_000
    assert not matcher.matches("{+all}"), "what comes then matches nothing"
    others = TemplateMatcher("file:///a/b")
    assert not any(others.matches(f"memo:{number}/{{a}}") for number in range(1_000)) and others.steps == 1_000
    assert others.matches("file:///{+path}")


def test_a_template_that_is_too_long_is_not_remembered() -> None:
    before = catalog_uris._parsed.cache_info().currsize
    assert variables_of("x:" + "{a}" * 100_000) == set()
    assert catalog_uris._parsed.cache_info().currsize == before


def test_a_template_with_one_variable_many_times_is_malformed() -> None:
    assert not matches("memo:{" + ",".join("x" * 65) + "}", "memo:a")
    assert expansions("memo:{" + ",".join("x" * 65) + "}", {"x": "a"}) == set()
    assert expansions("memo:{" + ",".join("x" * 64) + "}", {"x": "a"}) == {"memo:" + ",".join("a" * 64)}


@pytest.mark.parametrize(
    ("template", "uri"),
    [
        ("x://h{/a,b}", "x://h/1/2"), ("x://h/f{.a,b}", "x://h/f.1.2"), ("x://h{;a,b}", "x://h;a=1;b=2"),
        ("x://h{?a,b,c}", "x://h?a=1&b=2"), ("x://h?z=0{&a,b}", "x://h?z=0&a=1&b=2"), ("x://h{#a,b}", "x://h#1,2"),
        ("x://h/{a,b}", "x://h/1,2"), ("x://h{?a*}", "x://h?a=1"), ("x://h{?c}", "x://h"), ("x://h{+a,b}", "x://h1,2"),
    ],
)  # fmt: skip
def test_expansions_have_the_form_of_their_operator(template: str, uri: str) -> None:
    assert expansions(template, {"a": "1", "b": "2"}) == {uri} and matches(template, uri)


def test_no_expansion_is_longer_than_a_uri_may_be() -> None:
    whole = "a" * (MAX_URI - len("memo:"))
    assert expansions("memo:{x}", {"x": whole}) == {"memo:" + whole} and is_clean("memo:" + whole)
    assert not is_clean("memo:a" + whole)
    for value in (whole + "a", "é" * 2_000, "a" * 100_000):  # encoded it counts, too
        assert expansions("memo:{x}", {"x": value}) == set()
    assert expansions("memo:{x}", {"x": "a", "y": "a" * 100_000}) == set()
    assert expansions("memo:{?x}", {"x": whole[:-2]}) == set() != expansions("memo:{?x}", {"x": whole[:-3]})
    assert expansions("memo:{" + ",".join("x" * 64) + "}", {"x": whole}) == set()


def test_values_that_are_known_already_are_encoded_once() -> None:
    known = spellings({"dir": "a b", "x": "other"})
    assert known == ({"dir": "a b", "x": "other"}, *[{"dir": "a%20b", "x": "other"}] * 2)
    assert expansions("f:///{dir}/{x}", {"x": "c/d"}, known) == expansions("f:///{dir}/{x}", {"dir": "a b", "x": "c/d"})


def test_the_variables_of_a_template_are_those_that_its_expressions_name() -> None:
    assert variables_of("f:{a}/{+b,c*}{?d:3,e-f}{#a}") == {"a", "b", "c", "d", "e-f"}
    for none in ("f:///a", "f:{a b}", "f:{}", "f:{a", "f:{a}" * 33):
        assert variables_of(none) == set()


def test_the_literal_prefix_ends_at_the_first_expression() -> None:
    assert literal_prefix("file:///a/{+path}/{b}") == "file:///a/"
    assert literal_prefix("memo:x") == "memo:x"
