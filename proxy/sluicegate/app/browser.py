"""Opens a link in the browser of this machine, without showing it to the other processes here.

A browser is started with what it opens as an argument, which every process can see. So the link stands in a file that
only its user can read, and the browser gets the file.
"""

import os
import sys
import threading
import webbrowser
from contextlib import suppress
from html import escape
from pathlib import Path
from typing import Final

FILE: Final = "console.html"
_STARTS_WITHIN: Final = 2.0
_DISPLAYS: Final = ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")


def open_link(state: Path, link: str) -> bool:
    """Whether a browser opens the link, by a file in `state`. A text browser is none: it would take the terminal.
    Does not wait for the end of a program in $BROWSER, which may run as long as its window is open."""
    if sys.platform not in ("win32", "darwin") and not any(map(os.environ.get, _DISPLAYS)):
        return False
    failed = threading.Event()

    def run(address: str) -> None:
        with suppress(webbrowser.Error):
            if webbrowser.open(address):
                return
        failed.set()

    opening = threading.Thread(target=run, args=[_redirect(state / FILE, link).as_uri()], daemon=True)
    opening.start()
    opening.join(_STARTS_WITHIN)
    return not failed.is_set()


def _redirect(path: Path, link: str) -> Path:
    """A page that leads to the link, readable for its own user alone."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        target = escape(link)
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={target}"><title>Sluice</title>\n')
    return path.resolve()
