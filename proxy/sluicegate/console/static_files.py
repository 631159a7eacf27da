"""The console's static files: read once, served under a URL that names their digest, so that browsers keep them.

The vendored modules stay byte for byte as their packages have them. They import one another by package name, which a
browser cannot resolve without an import map, and an inline one is forbidden by our policy: what is served has paths
in place of those names.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).parent / "static"
PREFIX: Final = "/console/static/"
_TYPES: Final = {
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
}
_IMPORTED: Final = re.compile(r'(\bfrom|\bimport)"((?:@[a-z]+/)?[a-z][a-z/-]*)"')


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    kind: str


class StaticFiles:
    """All files, by their path below the folder. `digest` stands for all of them together."""

    def __init__(self, folder: Path = FOLDER) -> None:
        paths = {row["imported_as"]: row["path"] for row in json.loads((folder / "manifest.json").read_text())}
        self._files = {
            str(path.relative_to(folder)): StaticFile(_served(path, paths), _TYPES[path.suffix])
            for path in sorted(folder.rglob("*"))
            if path.suffix in _TYPES
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
            f'<script type="module" src="{base}/main.mjs"></script></head>'
            '<body><div id="app"></div><noscript>The console needs JavaScript. '
            "`sluice approvals` and `sluice servers` do the same in a terminal.</noscript></body></html>\n"
        ).encode()


def _served(path: Path, paths: dict[str, str]) -> bytes:
    body = path.read_bytes()
    if path.parent.name != "vendor":
        return body
    text = _IMPORTED.sub(lambda found: f'{found[1]}"./{Path(paths[found[2]]).name}"', body.decode())
    return text.encode()
