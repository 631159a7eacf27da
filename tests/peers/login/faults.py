"""What an endpoint may do instead of answering. Each takes `times`: how often; by omission until it is taken away.

site.faults["token"] = failing(503, times=2)
site.faults["token.refresh_token"] = losing()           requests of that `grant_type` alone
site.faults["mcp.tools/call"] = redirecting(other, 307)   messages of that method alone
site.faults["authority"] = closing()                    all of the authorization server, its metadata too
site.faults["resource"] = failing(502)                  all else
"""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(slots=True)
class Fault:
    ending: Literal["answer", "says", "close", "silence", "floods"]
    times: int | None = None
    seconds: float = 0  # it waits so long first
    acts: bool = False  # the request is dealt with before
    status: int = 500
    body: str | dict[str, object] = ""
    headers: dict[str, str] = field(default_factory=dict)
    size: int = 0


def failing(status: int = 500, body: str | dict[str, object] = "it failed", times: int | None = None) -> Fault:
    return Fault("says", times, status=status, body=body, headers={} if isinstance(body, dict) else _type("text/plain"))


def refusing(error: str, status: int = 400, times: int | None = None) -> Fault:
    """An error as OAuth has it: `refusing("invalid_grant")`."""
    return Fault("says", times, status=status, body={"error": error, "error_description": f"it says {error}"})


def html(times: int | None = None, status: int = 200) -> Fault:
    """The page of a captive portal, or of a proxy."""
    page = "<!doctype html><p>Log in to the network"
    return Fault("says", times, status=status, body=page, headers=_type("text/html"))


def telling(body: str | dict[str, object], content_type: str = "application/json", times: int | None = None) -> Fault:
    """Any other answer of status 200."""
    return Fault("says", times, status=200, body=body, headers=_type(content_type))


def redirecting(location: str, status: int = 302, times: int | None = None) -> Fault:
    return Fault("says", times, status=status, headers={"location": location})


def flooding(size: int = 1 << 30, times: int | None = None) -> Fault:
    """So many bytes, as JSON by their type."""
    return Fault("floods", times, size=size)


def closing(times: int | None = None) -> Fault:
    """The connection ends without an answer, and nothing is done."""
    return Fault("close", times)


def losing(times: int | None = 1) -> Fault:
    """The request is dealt with, and its answer gets lost: a refresh token is rotated, and nobody learns the next."""
    return Fault("close", times, acts=True)


def silent(times: int | None = None) -> Fault:
    """Neither an answer nor an end."""
    return Fault("silence", times)


def slow(seconds: float, times: int | None = None) -> Fault:
    """The right answer, late."""
    return Fault("answer", times, seconds=seconds)


def _type(name: str) -> dict[str, str]:
    return {"content-type": name}
