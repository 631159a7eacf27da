"""Which URLs of a peer may be used, and for what. Judged as texts: two readers of one URL must not differ about it."""

import re
from functools import lru_cache
from typing import Final
from urllib.parse import SplitResult, urlsplit

from sluicegate.oauth import Unfit, shown

MAX_URL: Final = 2048
_MAX_HOST: Final = 261  # a name and a port
_PORTS: Final = {"http": 80, "https": 443}
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_PLAIN: Final = re.compile(r"[\x21-\x7e]+")
# What a browser is opened with may pass a shell on its way there: nothing that one obeys (CVE-2025-6514).
_OPENABLE: Final = re.compile(r"https?://[A-Za-z0-9.\-\[\]:]+(/[A-Za-z0-9\-._~/%!*+,:@=]*)?(\?[A-Za-z0-9\-._~/%!*+,:@=&?]*)?")
_AMBIGUOUS: Final = re.compile(r"%2[ef]|%5c|%00|//|\\", re.IGNORECASE)
_DOTS: Final = frozenset({".", ".."})


def split(url: str) -> SplitResult:
    """Raises `Unfit` for what is no absolute http(s) URL of the plain form: printable ASCII, a host, no user."""
    if len(url) > MAX_URL or not _PLAIN.fullmatch(url) or "\\" in url:
        raise Unfit("not a URL of the plain form")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise Unfit("not a URL of the plain form") from None
    is_plain = parts.scheme in _PORTS and parts.hostname and "@" not in parts.netloc and "#" not in url
    if not is_plain or len(parts.netloc) > _MAX_HOST:
        raise Unfit(f"not a URL of the plain form: {shown(url)}")
    return parts


def origin(url: str) -> str:
    """Scheme, host in lower case and port, as one text. Raises `Unfit`."""
    parts = split(url)
    return f"{parts.scheme}://{parts.hostname}:{parts.port or _PORTS[parts.scheme]}"


def root(url: str) -> str:
    """The URL without path and query, in its own spelling. Raises `Unfit`."""
    parts = split(url)
    return f"{parts.scheme}://{parts.netloc}"


def host(url: str) -> str:
    return split(url).netloc.lower()


def secure(url: str, what: str) -> str:
    """The URL itself, where it is https, or http on loopback. Raises `Unfit`."""
    parts = split(url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise Unfit(f"its {what} is not https")
    return url


def openable(url: str, what: str = "authorization endpoint") -> str:
    """The URL itself, where a browser may be sent to it. Raises `Unfit`."""
    if not _OPENABLE.fullmatch(url):
        raise Unfit(f"its {what} is no URL that may be opened")
    return secure(url, what)


@lru_cache(maxsize=1024)  # asked for each token of each server
def covers(resource: str, url: str) -> bool:
    """Whether `resource` is the server at `url`: the same origin, and its path or a prefix of it that ends where a
    segment ends (2026-07-28 basic/authorization; RFC 8707 2)."""
    try:
        theirs, ours = split(resource), split(url)
        if origin(resource) != origin(url) or (theirs.query and theirs.query != ours.query):
            return False
    except Unfit:
        return False
    if any(_AMBIGUOUS.search(path) or not _DOTS.isdisjoint(path.split("/")) for path in (theirs.path, ours.path)):
        return theirs.path == ours.path and theirs.path.find("..") < 0
    return f"{ours.path.rstrip('/')}/".startswith(f"{theirs.path.rstrip('/')}/")


def well_known(url: str, name: str, *, appended: bool = False) -> str:
    """RFC 8414 3.1 and RFC 9728 3.1 put the well-known part before the path, OpenID Connect Discovery 4 after it."""
    path = split(url).path.rstrip("/")
    if appended:
        return f"{root(url)}{path}/.well-known/{name}"
    return f"{root(url)}/.well-known/{name}{path}"
