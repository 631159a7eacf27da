"""A server of the MCP registry as a section of the config.

Strangers wrote what the registry says. Nothing of it chooses a program, reads a variable or a file of the person, or
becomes an option of what starts the server.

The API is version v0.1 of the generic registry API, an entry is a `server.json` of 2025-12-11.
"""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

import anyio
import httpx

from sluicegate.cli.output import Code, Unreachable, json_object, printable, stop
from sluicegate.desktop.variables import as_text
from sluicegate.http.hosts import is_loopback

Json = dict[str, Any]

BASE: Final = "https://registry.modelcontextprotocol.io"
MAX_ANSWER: Final = 1024 * 1024
MAX_SHOWN: Final = 8192
MAX_VARIABLES: Final = 200  # which may stand in one another
TIMEOUT: Final = 15.0
_NAME = re.compile(r"([A-Za-z0-9.-]{1,100}/[A-Za-z0-9._-]{1,100})(?:@([0-9A-Za-z][0-9A-Za-z.+_-]{0,254}))?")
_VERSION = re.compile(r"[0-9][0-9A-Za-z.+_-]{0,127}")
_OFFICIAL: Final = "io.modelcontextprotocol.registry/official"
_VARIABLE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True)
class _Runner:
    """What starts packages of one kind. `identifier` is a name that cannot be taken for an option, URL or path."""

    words: tuple[str, ...]
    identifier: re.Pattern[str]
    bases: frozenset[str]


_RUNNERS: Final = {
    "npm": _Runner(("npx", "-y"), re.compile(r"(?:@[a-z0-9~][\w.~-]*/)?[a-z0-9~][\w.~-]*", re.ASCII | re.IGNORECASE),
                   frozenset({"https://registry.npmjs.org"})),
    "pypi": _Runner(("uvx",), re.compile(r"[a-z0-9](?:[\w.-]*[a-z0-9])?", re.ASCII | re.IGNORECASE),
                    frozenset({"https://pypi.org", "https://pypi.org/simple"})),
}  # fmt: skip
_STEERING: Final = re.compile(
    r"(?:npm_|npx_|node_|yarn_|pnpm_|bun_|deno_|corepack_|uv_|uvx_|pip_|python|virtual_env|conda|ld_|dyld_|malloc_|glibc_"
    r"|gconv_|git_|ssh_|ssl_|openssl_|xdg_|bash|zdotdir)"
    r"|(?:path|pathext|home|env|ifs|shell|userprofile|appdata|localappdata|comspec|systemroot|windir|tmpdir|temp|tmp"
    r"|.*_proxy|.*_ca_bundle|prefix|init_cwd|perl5.*|ruby.*)$|(?![a-z_][a-z0-9_]*$)",
    re.IGNORECASE | re.ASCII,
)
_HARMLESS: Final = re.compile("NODE_ENV|PYTHONUNBUFFERED|PYTHONIOENCODING|PYTHONUTF8")
_TRANSPORTS: Final = {"streamable-http": "http", "sse": "sse"}


class Unusable(Exception):
    """Why an entry, or a part of it, cannot become a server here."""


@dataclass(frozen=True, slots=True)
class RegistryQuestion:
    """A value that the entry needs from the person. All of its texts are a stranger's."""

    name: str
    about: str
    is_secret: bool
    choices: tuple[str, ...] = ()


@dataclass(slots=True)
class RegistryEntry:
    """A server that was found. `secrets` are those values of it that belong into files, `masked` what of them a person
    may see: where a secret goes to is none."""

    name: str
    version: str
    server: Json = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set, repr=False)
    masked: dict[str, str] = field(default_factory=dict, repr=False)
    notes: list[str] = field(default_factory=list)


_Piece = tuple[str, Literal["text", "reference", "secret"]]
"""A part of a value: text of the registry or of the person, a reference `${...}` that the person wrote, a secret."""


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def find(base: str, text: str) -> Json:
    """The registry's answer about `NAME` or `NAME@VERSION`. Exits where there is none; raises `Unreachable`."""
    match = _NAME.fullmatch(text)
    assert match is not None  # `is_name` said so
    name, version = match[1], match[2] or "latest"
    parts = urlsplit(base)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        stop(Code.USAGE, "the URL of a registry begins with https://")
    url = f"{base.rstrip('/')}/v0.1/servers/{quote(name, safe='')}/versions/{quote(version, safe='')}"
    status, body = _get(url)
    if status == 404:
        stop(Code.NEGATIVE, f"{parts.hostname} has no server {text}")
    try:
        answer = json_object(body.decode("utf-8"))
        detail = answer["server"]
        is_it = status == 200 and detail["name"] == name and version in ("latest", detail["version"])
    except (ValueError, KeyError, TypeError):
        is_it = False
    if not is_it:
        raise Unreachable(f"{parts.hostname} does not answer as a registry does (status {status})")
    return answer


def _get(url: str) -> tuple[int, bytes]:
    """Bounded in size and time. Follows no redirect, and takes no compressed answer, whose size nobody knows."""
    try:
        return anyio.run(_fetch, url)
    except TimeoutError:
        raise Unreachable("the registry's answer is too slow") from None
    except (httpx.HTTPError, httpx.InvalidURL) as error:  # the last of a redirect, which is taken apart all the same
        raise Unreachable(f"the registry cannot be reached: {type(error).__name__}") from None


async def _fetch(url: str) -> tuple[int, bytes]:
    body = b""
    headers = {"Accept-Encoding": "identity", "Accept": "application/json"}
    with anyio.fail_after(TIMEOUT):  # httpx bounds each read, not all of them
        async with httpx.AsyncClient(timeout=TIMEOUT) as client, client.stream("GET", url, headers=headers) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise Unreachable("the registry's answer is compressed, which it was asked not to be")
            async for chunk in response.aiter_raw():
                body += chunk
                if len(body) > MAX_ANSWER:
                    raise Unreachable("the registry's answer is too large")
            return response.status_code, body


def entry(
    answer: Json, given: Mapping[str, str], words: list[str], ask: Callable[[RegistryQuestion], str],
    secrets: Collection[str] = (),
) -> RegistryEntry:
    """The first of its packages, or else of its URLs, that can be used. `given` are values by name, of which those in
    `secrets` are secret; `words` take the place of arguments that the person chooses. Raises `Unusable`."""
    detail = answer["server"]
    found = RegistryEntry(detail["name"], str(detail["version"]))
    status = _dict(_dict(answer.get("_meta")).get(_OFFICIAL)).get("status", "active")
    if status == "deleted":
        raise Unusable("it was deleted from the registry")
    if status != "active":
        found.notes.append(f"the registry calls it {shown(str(status))}")
    reasons = []
    choices = [(_package, one) for one in _dicts(detail.get("packages"))]
    choices += [(_remote, one) for one in _dicts(detail.get("remotes"))]
    for make, part in choices:
        try:
            make(part, _Values(found, given, ask, secrets), words)
        except Unusable as error:
            reasons.append(str(error))
            continue
        if len(str(found.server)) > MAX_SHOWN:
            raise Unusable("what it starts is longer than a person can look through")
        return found
    raise Unusable("; ".join(reasons) or "it has neither packages nor URLs")


@dataclass(slots=True)
class _Values:
    """The inputs of an entry, filled: fixed by it, given, its defaults, or asked."""

    entry: RegistryEntry
    given: Mapping[str, str]
    ask: Callable[[RegistryQuestion], str]
    secrets: Collection[str]
    _steps: int = 0

    def fill(self, name: str, about: Json) -> str | None:
        """None where nothing is needed."""
        pieces = self._pieces(name, about)
        return None if pieces is None else self._joined(pieces)

    def pairs(self, inputs: Any) -> dict[str, str]:
        named = ((str(one.get("name", "")), one) for one in _dicts(inputs))
        return {name: value for name, one in named if (value := self.fill(name, one)) is not None}

    def substituted(self, text: str, variables: Any) -> str:
        return self._joined(self._substituted(text, _dict(variables)))

    def _pieces(self, name: str, about: Json) -> list[_Piece] | None:
        fixed, default = about.get("value"), about.get("default")
        if isinstance(fixed, str):
            return self._substituted(fixed, _dict(about.get("variables")))
        choices = tuple(_texts(about.get("choices")))
        is_secret = name in self.secrets or about.get("isSecret") is True
        if name in self.given:
            value = self.given[name]
        elif isinstance(default, str):
            return [(default, "text")]
        elif about.get("isRequired") is True:
            value = self.ask(RegistryQuestion(name, str(about.get("description", "")), is_secret, choices))
        else:
            return None
        if choices and value not in choices:
            raise Unusable(f"{name} is one of {', '.join(choices)}")
        if name in self.given and name not in self.secrets and "${" in value:
            # what it stands for is nowhere in the config
            return [(value, "reference")]
        return [(value, "secret" if is_secret else "text")]

    def _substituted(self, text: str, variables: Json) -> list[_Piece]:
        """What is in braces and no variable stays."""
        pieces: list[_Piece] = []
        end = 0
        for match in _VARIABLE.finditer(text):
            about = variables.get(match[1])
            self._steps += 1
            if self._steps > MAX_VARIABLES:
                raise Unusable(f"it has more than {MAX_VARIABLES} variables")
            inner = self._pieces(match[1], about) if isinstance(about, dict) else None
            if inner is not None:
                pieces += [(text[end : match.start()], "text"), *inner]
                end = match.end()
        return [*pieces, (text[end:], "text")]

    def _joined(self, pieces: list[_Piece]) -> str:
        """The value as the config has it. Texts become plain when they are together: of two that mean nothing, one may
        end with `$` and the other begin with a brace."""
        kinds = {kind for text, kind in pieces if text}
        if "secret" in kinds:
            if "reference" in kinds:
                raise Unusable("one of its values has a reference beside a secret")
            value = "".join(text for text, _ in pieces)
            self.entry.masked[value] = "".join("***" if kind == "secret" else text for text, kind in pieces)
            self.entry.secrets.add(value)
            return value
        runs = [(kind, "".join(text for text, _ in run)) for kind, run in groupby(pieces, lambda piece: piece[1])]
        if any(text.endswith("$") for (kind, text), _ in pairwise(runs) if kind == "text"):
            raise Unusable("one of its values has a $ before a reference")
        return "".join(as_text(text) if kind == "text" else text for kind, text in runs)

    def arguments(self, inputs: Any, words: list[str]) -> Iterator[str]:
        """One word each, so that no value is split into two."""
        for about in _dicts(inputs):
            name = str(about.get("name") or about.get("valueHint") or "argument")
            if about.get("type") == "named":
                if (pieces := self._pieces(name, about)) is not None:
                    yield self._joined([(f"{name}=", "text"), *pieces])
            elif words and "value" not in about:
                yield from words
                words.clear()
            elif (value := self.fill(name, about)) is not None:
                yield value
        yield from words


def _package(about: Json, values: _Values, words: list[str]) -> None:
    kind = str(about.get("registryType"))
    runner = _RUNNERS.get(kind)
    if runner is None:
        raise Unusable(f"Sluice starts no packages of the kind {kind}")
    identifier, version = about.get("identifier"), about.get("version")
    if _dict(about.get("transport")).get("type") != "stdio":
        raise Unusable("its package does not speak over stdio")
    if str(about.get("registryBaseUrl") or min(runner.bases)).rstrip("/") not in runner.bases:
        raise Unusable(f"its package is not at the usual place for {kind}")
    if not isinstance(identifier, str) or not runner.identifier.fullmatch(identifier):
        raise Unusable("the name of its package cannot be one")
    if not isinstance(version, str) or not _VERSION.fullmatch(version):
        raise Unusable("its package has no exact version")
    if any(one.get("value") not in ("-y", "--yes") for one in _dicts(about.get("runtimeArguments"))):
        raise Unusable(f"its package gives {runner.words[0]} options of its own")
    args = [*runner.words[1:], f"{identifier}@{version}"]
    args += values.arguments(about.get("packageArguments"), list(words))
    values.entry.server = {"command": runner.words[0], "args": args}
    if env := values.pairs(about.get("environmentVariables")):
        if steering := [name for name in env if _steers(name)]:
            raise Unusable(f"its package sets {', '.join(steering)}, which belongs to what starts it")
        values.entry.server["env"] = env


def _remote(about: Json, values: _Values, words: list[str]) -> None:
    url, kind = about.get("url"), _TRANSPORTS.get(str(about.get("type")))
    if kind is None or not isinstance(url, str):
        raise Unusable("its URL is not one of Streamable HTTP or HTTP+SSE")
    if words:
        raise Unusable("a URL takes no arguments")
    filled = values.substituted(url, about.get("variables"))
    if not filled.startswith("https://"):
        raise Unusable("its URL does not begin with https://")
    values.entry.server = {"url": filled, "transport": kind}
    if headers := values.pairs(about.get("headers")):
        values.entry.server["headers"] = headers


def _steers(name: str) -> bool:
    """Whether a variable belongs to what starts the package (npx, uvx, their languages, the loader, a shell), and not
    to the package. Names have no case here: npm reads them so."""
    return _HARMLESS.fullmatch(name) is None and _STEERING.match(name) is not None


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Json]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []


def shown(text: str) -> str:
    """A stranger's text in one line of a terminal, of a length that leaves the rest to be seen."""
    return printable(text if len(text) <= 300 else f"{text[:300]}... ({len(text):,} characters)")
