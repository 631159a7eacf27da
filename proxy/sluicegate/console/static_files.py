"""The console's static files: read once, served under a URL that names their digest, so that browsers keep them.

The vendored modules stay byte for byte as their packages have them, and ours stay one file a page. All of them are
served as one module, so that a cold page is a few requests: each becomes a function that returns what it exports. Such
a function sees its own imports alone, as a module does.
"""

import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/static/"
BUNDLE: Final = "console.mjs"
_MAIN: Final = "main.mjs"
_TYPES: Final = {".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
_SCRIPT: Final = "text/javascript; charset=utf-8"

_NAME: Final = r"[\w$]+"
_NAMES: Final = r"\{([^{}]*)\}"
_IMPORT: Final = re.compile(rf'import ?(?:{_NAMES}|({_NAME})) ?from ?"([^"]+)";?')
_EXPORT_FROM: Final = re.compile(rf'export ?{_NAMES} ?from ?"([^"]+)";?')
_EXPORT: Final = re.compile(rf"export ?{_NAMES};?")
_EXPORT_DEFAULT: Final = re.compile(r"export default ")
_DECLARED: Final = re.compile(rf"^export ((?:async function|function|class|const) ({_NAME}))", re.M)
_LEFT: Final = re.compile(r"^\s*(?:import|export)\b", re.M)


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    packed: bytes  # the same, as gzip has it
    kind: str


class StaticFiles:
    """What is served, by name. `digest` stands for all of it together."""

    def __init__(self, folder: Path = FOLDER) -> None:
        bodies = {
            str(path.relative_to(folder)): (path.read_bytes(), _TYPES[path.suffix])
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
        }
        bodies[BUNDLE] = (bundle(folder).encode(), _SCRIPT)
        self._files = {
            name: StaticFile(body, gzip.compress(body, mtime=0), kind) for name, (body, kind) in bodies.items()
        }
        whole = hashlib.sha256()
        for name, file in self._files.items():
            whole.update(f"{name}\0{len(file.body)}\0".encode() + file.body)
        self.digest = whole.hexdigest()[:16]

    def get(self, digest: str, name: str) -> StaticFile | None:
        """No path of the file system is made of `name`: it is looked up among what was read."""
        return self._files.get(name) if digest == self.digest else None

    def shell(self) -> bytes:
        """The one document. It has no data, and is the same for everybody."""
        base = f"{PREFIX}{self.digest}"
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Sluice</title>'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark">'
            f'<link rel="icon" href="{base}/icon.svg"><link rel="stylesheet" href="{base}/console.css">'
            f'<script type="module" src="{base}/{BUNDLE}"></script></head>'
            '<body><div id="app"></div><noscript>The console needs JavaScript. '
            "`sluice approvals list` and `sluice servers` do the same in a terminal.</noscript></body></html>\n"
        ).encode()


def bundle(folder: Path = FOLDER) -> str:
    """All modules as one: each one behind those that it imports, the main one last and at the top level."""
    paths = {row["imported_as"]: row["path"] for row in json.loads((folder / "manifest.json").read_text())}
    done: dict[str, str] = {}

    def add(name: str, importers: tuple[str, ...] = ()) -> None:
        if name in importers:
            raise ValueError(f"modules import one another: {' -> '.join((*importers, name))}")
        if name in done:
            return
        text = (folder / name).read_text()
        imported = (match for pattern in (_IMPORT, _EXPORT_FROM) for match in pattern.finditer(text))
        specs = [match[match.lastindex or 0] for match in imported]
        found = {spec: paths.get(spec) or str(PurePosixPath(name).parent / spec) for spec in specs}
        for one in found.values():
            add(one, (*importers, name))
        done[name] = _as_function(name, text, found)

    add(_MAIN)
    return "".join(done.values())


def _as_function(name: str, text: str, paths: dict[str, str]) -> str:
    exported: dict[str, str] = {}

    def imports(found: re.Match[str]) -> str:
        names = f"default: {found[2]}" if found[2] else ", ".join(f"{of}: {own}" for of, own in _pairs(found[1]))
        return f"const {{ {names} }} = {_identifier(paths[found[3]])};"

    def exports_of_another(found: re.Match[str]) -> str:
        exported.update({public: f"{_identifier(paths[found[2]])}.{of}" for of, public in _pairs(found[1])})
        return ""

    def exports(found: re.Match[str]) -> str:
        exported.update({public: own for own, public in _pairs(found[1])})
        return ""

    def export_default(found: re.Match[str]) -> str:
        exported["default"] = "exported"
        return "const exported = "

    def declares(found: re.Match[str]) -> str:
        exported[found[2]] = found[2]
        return found[1]

    rewrites = ((_IMPORT, imports), (_EXPORT_FROM, exports_of_another), (_EXPORT_DEFAULT, export_default),
                (_EXPORT, exports), (_DECLARED, declares))  # fmt: skip
    for pattern, rewrite in rewrites:
        text = pattern.sub(rewrite, text)
    if left := _LEFT.search(text):
        raise ValueError(f"{name}: an import or export that cannot be bundled: {left[0].strip()}")
    if name == _MAIN:
        return f"// {name}\n{text}"
    members = ", ".join(f"{public}: {own}" for public, own in exported.items())
    return f"// {name}\nconst {_identifier(name)} = (() => {{\n{text}\nreturn {{ {members} }};\n}})();\n"


def _pairs(names: str) -> list[tuple[str, str]]:
    """(name, name behind "as") of what stands between the braces."""
    parts = [part.split(" as ") for part in names.replace("\n", " ").split(",") if part.strip()]
    return [(part[0].strip(), part[-1].strip()) for part in parts]


def _identifier(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name)
