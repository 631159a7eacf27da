"""A desktop client's file as servers of ours. Pure: bytes in; servers, and sentences about the rest, out.

Reads the JSON that Claude Desktop, Claude Code, Cursor, VS Code, Windsurf, Zed, Gemini and Cline write, the TOML of
Codex and the YAML of Goose, by the shape of each entry alone. A sentence never repeats a value: it may be a secret.
"""

import json
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PureWindowsPath
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from sluicegate.config import RESERVED, is_server_key
from sluicegate.desktop.variables import as_text, is_secret, options, ours

Json = dict[str, Any]
Note = Callable[[str], None]

ROOTS: Final = ("mcpServers", "servers", "context_servers")
OTHER_ROOTS: Final = {".toml": ("mcp_servers",), ".yaml": ("extensions",), ".yml": ("extensions",)}
URLS: Final = ("httpUrl", "serverUrl", "url", "uri")
ALLOWS: Final = ("includeTools", "enabledTools", "enabled_tools")
DENIES: Final = ("excludeTools", "disabledTools", "disabled_tools")
APPROVALS: Final = ("autoApprove", "alwaysAllow", "trust")
LOGINS: Final = ("oauth", "auth", "authProviderType", "headersHelper")
TRANSPORTS: Final = ("type", "transport", "transportType")
READ: Final = frozenset(
    {"command", "args", "env", "cwd", "headers", "disabled", "enabled", "timeout", *URLS, *ALLOWS, *DENIES, *TRANSPORTS}
)
QUIET: Final = frozenset({"name", "description", "source", "gallery", "version", "icon", "note", "bundled"})
OTHER_NAMES: Final = {
    "cmd": "command",
    "envs": "env",
    "http_headers": "headers",
    "tool_timeout_sec": "timeout",
    "available_tools": "enabled_tools",
}
STREAMABLE: Final = frozenset({"http", "streamablehttp"})  # compared without - and _
OURS: Final = frozenset({"sluice", "sluicegate"})

IS_SLUICE: Final = "left out, this is Sluice itself"
IN_PLAIN_TEXT: Final = "a secret in plain text; put it into a variable and write ${env:NAME}"
"""How a note ends that is about a secret."""

_STRING = r'"(?:\\.|[^"\\])*"'
_COMMENT = re.compile(rf"({_STRING})|//[^\n]*|/\*.*?\*/", re.DOTALL)
_COMMA = re.compile(rf"({_STRING})|,(?=\s*[}}\]])")


# What the json module says, in words for people who do not write parsers
_JSON_ERRORS: Final = {
    "Expecting value": "a value is missing here",
    "Expecting property name enclosed in double quotes": "a name in double quotes belongs here",
    "Expecting ':' delimiter": "a colon is missing here",
    "Expecting ',' delimiter": "a comma or a closing bracket is missing before this",
    "Extra data": "something follows the end of the document",
    "Unterminated string starting at": "this text has no closing quotation mark",
    "Invalid control character at": "a text goes over the end of its line, or holds a control character",
    "Invalid \\escape": "a backslash in a text is written \\\\",
}


class NotAClientConfig(Exception):
    """The file cannot be read, or holds no servers: line, column and why."""

    def __init__(self, why: str, line: int = 1, column: int = 1) -> None:
        super().__init__(f"{line}:{column} {why}")


@dataclass(slots=True)
class Imported:
    """`servers` has the keys of our format; `notes` are sentences for the person who imports. `root` is the section
    that the client keeps its servers in."""

    root: str = ROOTS[0]
    servers: dict[str, Json] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    """The client's name of each server, but for those of a single project."""


def read(data: bytes, suffix: str = ".json", with_projects: bool = True) -> Imported:
    """Servers of single projects come along, or stay where they are. Raises `NotAClientConfig`."""
    document = parse(data, suffix)
    if not isinstance(document, dict):
        raise NotAClientConfig(f"this is not a {'YAML mapping' if suffix in ('.yaml', '.yml') else 'JSON object'}")
    imported = Imported()
    for root, name, entry, project in _entries(document, OTHER_ROOTS.get(suffix, ROOTS)):
        imported.root = root
        if with_projects or not project:
            _import(name, entry, project, imported)
        else:
            imported.notes.append(f"{name} (of {project}): stays where it is, for it belongs to a single project")
    return imported


def parse(data: bytes, suffix: str) -> Any:
    """The document of a client's file. Raises `NotAClientConfig`."""
    return {".toml": _parse_toml, ".yaml": _parse_yaml, ".yml": _parse_yaml}.get(suffix, _parse)(data)


def _parse_toml(data: bytes) -> Any:
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise NotAClientConfig("this is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        line, column = _numbers(str(error))
        raise NotAClientConfig("this is not TOML", line, column) from None


def _numbers(text: str) -> tuple[int, int]:
    found = re.search(r"line (\d+), column (\d+)", text)
    return (int(found[1]), int(found[2])) if found else (1, 1)


def _parse_yaml(data: bytes) -> Any:
    try:
        return YAML(typ="safe", pure=True).load(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise NotAClientConfig("this is not UTF-8 text") from None
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise NotAClientConfig("this is not YAML", *((mark.line + 1, mark.column + 1) if mark else ())) from None


def _parse(data: bytes) -> Any:
    """JSON as people keep it: any Unicode encoding with its mark, comments, commas before a closing bracket."""
    try:
        text = data.decode(json.detect_encoding(data))
        text = _COMMENT.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text.removeprefix("\ufeff"))
        return json.loads(_COMMA.sub(lambda match: match[1] or " ", text))
    except json.JSONDecodeError as error:
        raise NotAClientConfig(_JSON_ERRORS.get(error.msg, "this is not JSON"), error.lineno, error.colno) from None
    except (UnicodeDecodeError, RecursionError):
        raise NotAClientConfig("this is not JSON") from None


def _entries(document: Json, roots: tuple[str, ...]) -> Iterator[tuple[str, str, Any, str]]:
    """The section, the server's name, its entry, and the project that it belongs to."""
    nested = document.get("mcp")
    places = [document, *([nested] if isinstance(nested, dict) else [])]  # VS Code's settings.json nests them
    projects = _dict(document.get("projects"))  # Claude Code's local scope
    everywhere = [*places, *map(_dict, projects.values())]
    if not any(isinstance(source.get(root), dict) for source in everywhere for root in roots):
        raise NotAClientConfig(f"there is none of {', '.join(roots)} in it")
    for source in places:
        for root in roots:
            for name, entry in _dict(source.get(root)).items():
                yield root, name, entry, ""
    for folder, project in projects.items():
        off = _texts(_dict(project).get("disabledMcpServers"))
        for name, entry in _dict(_dict(project).get(ROOTS[0])).items():
            shown = {**entry, "disabled": True} if name in off and isinstance(entry, dict) else entry
            yield ROOTS[0], name, shown, folder


def _dict(value: Any) -> Json:
    return value if isinstance(value, dict) else {}


def _import(name: str, entry: Any, project: str, imported: Imported) -> None:
    def note(text: str) -> None:
        imported.notes.append(f"{name} (of {project}): {text}" if project else f"{name}: {text}")

    if not isinstance(entry, dict):
        note("left out, this is no server")
        return
    entry = _flat(entry)
    if _is_ours(entry):
        note(IS_SLUICE)
        return
    server = _server(entry, note)
    if server is None:
        return
    if project and any({**other, "cwd": ""} == {**server, "cwd": ""} for other in imported.servers.values()):
        note("left out, it is there already")
        return
    if project and "command" in server:
        server.setdefault("cwd", as_text(project))
    if project:
        note("comes from a single project and is offered everywhere now")
    key = key_of(name, imported.servers)
    if key != name:
        note(f"is called {key} here")
    imported.servers[key] = server
    if not project:
        imported.names[key] = name


def _flat(entry: Json) -> Json:
    """What Zed once nested ({"command": {"path", "args", "env"}}), and other names of Codex and Goose, as elsewhere."""
    command = entry.get("command")
    if isinstance(command, dict):
        entry = {**entry, **command, "command": command.get("path"), "path": None}
    entry = {OTHER_NAMES.get(key, key): value for key, value in entry.items()}
    env = {name: f"${{env:{name}}}" for key in ("env_vars", "env_keys") for name in _texts(entry.pop(key, None))}
    headers = {name: f"${{env:{of}}}" for name, of in _dict(entry.pop("env_http_headers", None)).items()}
    if isinstance(token := entry.pop("bearer_token_env_var", None), str):
        headers["Authorization"] = f"Bearer ${{env:{token}}}"
    for key, more in (("env", env), ("headers", headers)):
        if more:
            entry[key] = {**_dict(entry.get(key)), **more}
    return entry


def is_sluice(entry: Any) -> bool:
    """Whether an entry as the client wrote it starts Sluice."""
    return isinstance(entry, dict) and _is_ours(_flat(entry))


def _is_ours(entry: Json) -> bool:
    words = [entry.get("command"), *_texts(entry.get("args"))]
    names = [PureWindowsPath(word).name.removesuffix(".exe") for word in words if isinstance(word, str)]
    if words[1:3] == ["-m", "sluicegate"]:
        return True
    launched = names[:1] and names[0] in ("uvx", "uv", "pipx")  # uvx sluicegate, uvx --from sluicegate sluice
    return bool(OURS & set(names if launched else names[:1]))


def _server(entry: Json, note: Note) -> Json | None:
    """The entry in our keys; None, with the reason noted, for what cannot be carried over."""
    url = next((entry[key] for key in URLS if isinstance(entry.get(key), str)), None)
    kind = next((entry[key] for key in TRANSPORTS if isinstance(entry.get(key), str)), "")
    plain = re.sub("[-_]", "", kind.lower())
    command = entry.get("command")
    if url is not None and plain != "stdio":
        server = _remote(url, plain, entry, note)
    elif isinstance(command, str) and command:
        server = _started(command, entry, note)
    else:
        note("left out, it has neither a command nor a url")
        return None
    if server is not None:
        server |= _common(entry, note)
        _mention_the_rest(entry, note)
    return server


def _remote(url: str, kind: str, entry: Json, note: Note) -> Json | None:
    if kind and kind not in (*STREAMABLE, "sse"):
        note("left out, its transport is not supported")
        return None
    if not url.startswith(("http://", "https://", "$")):
        note("left out, its URL is neither http nor https")
        return None
    server: Json = {"url": ours(url, note)}
    if is_secret(url):
        note(f"url holds {IN_PLAIN_TEXT}")
    if kind == "sse":
        server["transport"] = kind
    if headers := _mapping(entry.get("headers"), "headers", note):
        server["headers"] = headers
    return server


def _started(command: str, entry: Json, note: Note) -> Json:
    server: Json = {"command": ours(command, note)}
    if args := _texts(entry.get("args")):
        server["args"] = [ours(arg, note) for arg in args]
        if any(map(is_secret, args, options(args))):
            note(f"args hold {IN_PLAIN_TEXT}")
    if env := _mapping(entry.get("env"), "env", note):
        server["env"] = env
    if isinstance(entry.get("cwd"), str):
        server["cwd"] = ours(entry["cwd"], note)
    return server


def _mapping(value: Any, what: str, note: Note) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, content in value.items() if isinstance(value, dict) else ():
        if not isinstance(content, str | int | float):
            note(f"{what}.{name} is left out, it is no text")
            continue
        text = json.dumps(content) if isinstance(content, bool) else str(content)
        found[name] = ours(text, note)
        if is_secret(text, name):
            note(f"{what}.{name} holds {IN_PLAIN_TEXT}")
    return found


def _texts(value: Any) -> list[str]:
    return [str(item) for item in value if isinstance(item, str | int | float)] if isinstance(value, list) else []


def _common(entry: Json, note: Note) -> Json:
    server: Json = {}
    if entry.get("disabled") is True or entry.get("enabled") is False:
        server["enabled"] = False
    if timeout := _timeout(entry.get("timeout")):
        server["timeout"] = timeout
    tools = {"allow": _first_texts(entry, ALLOWS), "deny": _first_texts(entry, DENIES)}
    if filled := {name: [*map(as_text, globs)] for name, globs in tools.items() if globs}:
        server["tools"] = filled
    return server


def _first_texts(entry: Json, keys: tuple[str, ...]) -> list[str]:
    return next((texts for key in keys if (texts := _texts(entry.get(key)))), [])


def _timeout(value: Any) -> str:
    """Some clients count seconds, some milliseconds; nobody means a thousand seconds, nor a few milliseconds."""
    if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
        return ""
    return f"{value}ms" if value >= 1000 else f"{value}s"


def _mention_the_rest(entry: Json, note: Note) -> None:
    for key in entry.keys() & set(APPROVALS):
        if entry[key]:
            note(f"{key} is not carried over: which calls need no question is a matter of policy")
    for key in sorted(entry.keys() & set(LOGINS)):
        note(f"{key} is not carried over: log in with `sluice login`, or set a header")
    if "envFile" in entry:
        note("envFile is not carried over: put its variables into env")
    named = {*READ, *QUIET, *APPROVALS, *LOGINS, "envFile"}
    if others := sorted(key for key, value in entry.items() if key not in named and value not in (None, False, [], {})):
        note(f"not carried over: {', '.join(others)}")


def key_of(name: str, taken: Mapping[str, Any]) -> str:
    """The name in our grammar, and not one that is taken."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower())
    plain = re.sub(r"^[^a-z]+", "", plain)[:20].rstrip("-") or "server"
    number, key = 1, plain
    while key in taken or key == RESERVED or not is_server_key(key):
        number += 1
        key = f"{plain[: 20 - len(str(number)) - 1].rstrip('-')}-{number}"
    return key
