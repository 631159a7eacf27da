"""Which Host and Origin pass at each port, and what a request that was forwarded says: as tables."""

import pytest

from sluicegate.http.forwarded_headers import ForwardedHeaders, is_forwarded
from sluicegate.http.hosts import (
    ADMIN_PORT,
    MCP_PORT,
    Address,
    HostOriginPolicy,
    HostRefusal,
    ServedNames,
    _authority,
    authority,
    is_loopback,
)

NAMES = ServedNames(("mcp.test", "alt.test:8443"), ("https://App.test/",), "https://pub.test/base/mcp", ("10.0.0.0/8",))
MCP, ADMIN = HostOriginPolicy(NAMES, MCP_PORT), HostOriginPolicy(NAMES, ADMIN_PORT)
LOCAL, LAN, SIX = ("127.0.0.1", 7411), ("192.168.1.5", 7411), ("fd00::5", 80)
HOST = HostRefusal(400, "exactly one well-formed Host header is required")
UNKNOWN = HostRefusal(421, "this Host is not served here: see listen.allowed_hosts")
ORIGIN = HostRefusal(403, "this Origin is not allowed: see listen.allowed_origins")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("MCP.test", ("mcp.test", None)), ("mcp.test:80", ("mcp.test", 80)), ("a_b-c.d", ("a_b-c.d", None)),
        ("[::1]:7411", ("::1", 7411)), ("[0:0:0:0:0:0:0:1]", ("::1", None)), ("127.0.0.1:1", ("127.0.0.1", 1)),
        ("x:65535", ("x", 65535)), ("x:65536", None), ("x:", None), ("x:123456", None), ("u@x", None), ("", None),
        ("[x]", None), ("[127.0.0.1]:1", ("127.0.0.1", 1)), ("[1.2]", None), ("x/y", None), ("a" * 254, None),
        ("x:0", ("x", 0)),
    ],
)  # fmt: skip
def test_an_authority_is_a_host_and_perhaps_a_port(text: str, parts: tuple[str, int | None] | None) -> None:
    assert authority(text) == parts


def test_loopback_is_a_name_or_an_address_and_nothing_that_looks_like_one() -> None:
    assert all(map(is_loopback, ("localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]")))
    assert not any(map(is_loopback, ("localhost.test", "127.0.0.1.test", "10.0.0.1", "::2", "", "0.0.0.0")))


@pytest.mark.parametrize(
    ("host", "server", "served"),
    [
        ("mcp.test", None, True), ("MCP.test:99", None, True), ("alt.test:8443", None, True), ("pub.test", None, True),
        ("alt.test", None, False), ("alt.test:1", None, False), ("XXXX", None, False), ("evil.test", LOCAL, False),
        ("localhost:1", LOCAL, True), ("[::1]", LOCAL, True), ("localhost", None, False), ("localhost", LAN, False),
        ("127.0.0.1", LAN, False), ("192.168.1.5:7411", LAN, True), ("192.168.1.5", LAN, False),
        ("192.168.1.5:80", LAN, False), ("192.168.1.6:7411", LAN, False), ("192.168.1.5:7411", LOCAL, False),
        ("[fd00::5]", SIX, True), ("[fd00::5]:80", SIX, True), ("[fd00::5]:81", SIX, False), ("[fd00::6]", SIX, False),
        ("evil.test:7411", LAN, False), ("evil.test", SIX, False), ("x", ("not an address!", 80), False),
    ],
)  # fmt: skip
def test_a_host_is_configured_or_loopback_at_loopback_or_the_sockets_own(
    host: str, server: Address | None, served: bool
) -> None:
    headers = [(b"accept", b"x"), (b"host", host.encode())]
    for policy in (MCP, ADMIN):
        assert policy.check(headers, server, "/mcp") == (None if served else UNKNOWN)
        assert policy.is_known(headers, server) is served


def test_one_host_that_is_well_formed_is_required() -> None:
    for headers in ([], [(b"host", b"a b")], [(b"host", b"mcp.test")] * 2, [(b"x-host", b"mcp.test")]):
        assert MCP.check(headers, None, "/mcp") == HOST == ADMIN.check(headers, None, "/livez")
        assert MCP.is_known(headers, None) is False


def test_whoever_asks_for_health_may_use_any_name() -> None:
    served = {"/livez": None, "/readyz": None, "/metrics": None, "/livez/x": UNKNOWN, "/": UNKNOWN}
    for path, refusal in served.items():
        assert ADMIN.check([(b"host", b"10.1.1.1:99")], LAN, path) == refusal
        assert MCP.check([(b"host", b"10.1.1.1:99")], LAN, path) == UNKNOWN
    page = [(b"host", b"10.1.1.1"), (b"origin", b"http://10.1.1.1")]
    assert ADMIN.check(page, LAN, "/livez") == ORIGIN  # a page's own host is ours only if it names us


@pytest.mark.parametrize(
    ("origin", "host", "mcp", "admin"),
    [
        ("https://app.test", "mcp.test", True, True), ("HTTPS://APP.TEST", "mcp.test", True, True),
        ("https://app.test/", "mcp.test", False, False), ("http://app.test", "mcp.test", False, False),
        ("https://app.test:1", "mcp.test", False, False), ("null", "mcp.test", False, False),
        ("http://mcp.test", "mcp.test", True, True), ("http://mcp.test:80", "mcp.test", True, True),
        ("http://mcp.test", "mcp.test:80", True, True), ("http://mcp.test:81", "mcp.test", False, False),
        ("https://mcp.test", "mcp.test:443", True, True), ("https://mcp.test:443", "mcp.test", True, True),
        ("HTTPS://MCP.test", "mcp.test:443", True, True), ("https://mcp.test", "mcp.test:80", False, False),
        ("ftp://mcp.test", "mcp.test", False, False), ("http://mcp.test/x", "mcp.test", False, False),
        ("http://localhost:3000", "127.0.0.1:7411", True, False),
        ("http://localhost:7411", "localhost:7411", True, True),
        ("http://localhost:3000", "mcp.test", False, False), ("http://evil.test", "localhost:7411", False, False),
        ("http://evil.test:7411", "localhost:7411", False, False),
    ],
)  # fmt: skip
def test_a_page_may_ask_from_where_it_is_served_or_allowed(origin: str, host: str, mcp: bool, admin: bool) -> None:
    headers = [(b"host", host.encode()), (b"origin", origin.encode())]
    for policy, may in ((MCP, mcp), (ADMIN, admin)):
        assert policy.check(headers, LOCAL, "/mcp") == (None if may else ORIGIN)
        assert policy.check([*headers, (b"origin", origin.encode())], LOCAL, "/mcp") == ORIGIN


def test_only_an_allowed_origin_may_read_and_send_what_it_asks_for() -> None:
    read = [(b"access-control-allow-origin", b"https://APP.test"), (b"vary", b"Origin"),
            (b"access-control-expose-headers", b"Mcp-Session-Id, WWW-Authenticate")]  # fmt: skip
    send = [*read, (b"access-control-max-age", b"600"),
            (b"access-control-allow-methods", b"POST, GET, DELETE, OPTIONS")]  # fmt: skip
    assert sorted(MCP.cors(b"https://APP.test")) == sorted(read)
    assert MCP.cors(None) == MCP.cors(b"http://localhost") == MCP.preflight(b"http://localhost", b"x") == []
    for bad in (None, b"", b"a\nb", b"x" * 2049):
        assert sorted(MCP.preflight(b"https://APP.test", bad)) == sorted(send)
    granted = [*send, (b"access-control-allow-headers", b"mcp-param-a, b")]
    assert sorted(MCP.preflight(b"https://APP.test", b"mcp-param-a, b")) == sorted(granted)


def test_a_policy_without_names_serves_none() -> None:
    bare = HostOriginPolicy(ServedNames(), MCP_PORT)
    assert not any(bare.is_known([(b"host", name)], None) for name in (b"XXXX", b"localhost", b"mcp.test"))


@pytest.mark.parametrize(
    ("url", "path", "host", "beside"),
    [(None, None, None, ""), ("https://p.test", "/", "p.test", ""), ("https://p.test/mcp", "/mcp", "p.test", ""),
     ("https://p.test:8443/a/b/mcp?x", "/a/b/mcp", "p.test:8443", "/a/b")],
)  # fmt: skip
def test_a_public_url_has_a_host_a_path_and_what_stands_before_it(
    url: str | None, path: str | None, host: str | None, beside: str
) -> None:
    names = ServedNames(public_url=url)
    assert (names.public_path, names.public_host, ForwardedHeaders(names).beside) == (path, host, beside)


def test_any_header_of_a_proxy_is_a_sign_that_there_is_one() -> None:
    for name in (b"forwarded", b"via", b"x-real-ip", b"x-forwarded-for", b"x-forwarded-anything", b"cdn-loop",
                 b"cf-connecting-ip", b"true-client-ip", b"x-client-ip", b"fly-client-ip"):  # fmt: skip
        assert is_forwarded([(b"host", b"x"), (name, b"")])
    assert not is_forwarded([(b"host", b"x"), (b"x-forwarded", b""), (b"not-x-forwarded-for", b"")])


FORWARDED = ForwardedHeaders(NAMES)
LONG = "/" + "a" * 255


@pytest.mark.parametrize(
    ("said", "prefix"),
    [
        ("/outer", "/outer"), ("/a/b/", "/a/b"), (" /a ", "/a"), (LONG, LONG), (LONG + "a", "/base"), ("", "/base"),
        ("/a/../b", "/base"), ("/./a", "/base"), ("/..", "/base"), ("//x", "/base"), ("a", "/base"), ("/a?b", "/base"),
        ("/a b", "/base"), ("https://x/", "/base"), ("/...", "/..."), ("/X", "/X"),
    ],
)  # fmt: skip
def test_a_prefix_of_a_trusted_proxy_is_a_plain_path(said: str, prefix: str) -> None:
    header = (b"x-forwarded-prefix", said.encode())
    assert FORWARDED.prefix("10.1.2.3", [(b"host", b"h"), header]) == prefix
    for peer, headers in (("11.1.2.3", [header]), ("", [header]), ("10.1.2.3", [header] * 2), ("10.1.2.3", [])):
        assert FORWARDED.prefix(peer, headers) == "/base"


@pytest.mark.parametrize(
    ("headers", "known", "other"),
    [
        ({}, "http://h.test", "http://h.test"),
        ({"x-forwarded-proto": "HTTPS"}, "https://h.test", "http://h.test"),
        ({"x-forwarded-proto": "http"}, "http://h.test", "http://h.test"),
        ({"x-forwarded-proto": "ftp"}, "http://h.test", "http://h.test"),
        ({"x-forwarded-host": "o.test:8443", "x-forwarded-proto": "https"}, "https://o.test:8443", "http://h.test"),
        ({"x-forwarded-host": "o.test/x"}, "http://h.test", "http://h.test"),
    ],
)
def test_the_origin_of_a_request_is_what_a_trusted_proxy_says(headers: dict[str, str], known: str, other: str) -> None:
    sent = [(b"host", b"h.test"), *((name.encode(), value.encode()) for name, value in headers.items())]
    assert (FORWARDED.origin("10.1.2.3", sent), FORWARDED.origin("8.8.8.8", sent)) == (known, other)
    assert FORWARDED.origin("8.8.8.8", sent * 2) == "http://"  # of two, none is taken


@pytest.mark.parametrize(
    ("peer", "hops", "client"),
    [
        ("8.8.8.8", ["1.1.1.1"], "8.8.8.8"), ("10.0.0.1", [], "10.0.0.1"), ("10.0.0.1", ["1.1.1.1"], "1.1.1.1"),
        ("10.0.0.1", ["9.9.9.9, 1.1.1.1"], "1.1.1.1"), ("10.0.0.1", ["1.1.1.1 , 10.0.0.2"], "1.1.1.1"),
        ("10.0.0.1", ["1.1.1.1", "10.0.0.2"], "1.1.1.1"), ("10.0.0.1", ["1.1.1.1, x, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"), ("10.0.0.1", ["::1"], "::1"), ("unix", ["1.1.1.1"], "unix"),
    ],
)  # fmt: skip
def test_the_client_is_the_nearest_that_is_no_proxy_of_ours(peer: str, hops: list[str], client: str) -> None:
    headers = [(b"x-real-ip", b"6.6.6.6"), *((b"x-forwarded-for", hop.encode()) for hop in hops)]
    assert FORWARDED.client(peer, headers) == client


def test_of_a_long_list_of_hops_only_the_nearest_are_looked_at() -> None:
    proxies = [f"10.0.0.{n}" for n in range(15)]
    few, many = ["9.9.9.9", *proxies], ["9.9.9.9", "10.9.9.9", *proxies]
    for hops, address in ((few, "9.9.9.9"), (many, "10.9.9.9"), ([""] * 15_000, "10.1.1.1")):
        assert FORWARDED.client("10.1.1.1", [(b"x-forwarded-for", ",".join(hops).encode())]) == address


def test_of_an_untrusted_peer_the_hops_are_not_read() -> None:
    class Unread(bytes):
        def decode(self, *args: object, **kwargs: object) -> str:
            raise AssertionError("it is read")

    assert FORWARDED.client("11.1.1.1", [(b"x-forwarded-for", Unread(b"9.9.9.9"))]) == "11.1.1.1"


def test_an_authority_that_is_too_long_is_not_remembered() -> None:
    before = _authority.cache_info().currsize
    assert authority("a" * 16_000) is None and authority(f"{'a' * 253}:65535") == ("a" * 253, 65535)
    assert _authority.cache_info().currsize <= before + 1
