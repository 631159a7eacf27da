"""`sluice console`: opens the console of a running Sluice in the browser, logged in by a one-time link.

The link stands in a file that only its user can read: on a command line every process of this machine would see it.
"""

import os
import webbrowser
from html import escape
from pathlib import Path
from typing import Annotated, Final

import httpx
import typer

from sluicegate.cli.admin import Admin, answer, asks_running
from sluicegate.cli.output import AsJson, Code, give, info, print_out, stop

FILE: Final = "console.html"


@asks_running
def console(
    admin: Admin,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link; open nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the console of a running Sluice in the browser. The link works once, for 60 seconds, on this machine. A
    desktop client's Sluice opens the console for this, and closes it when it was not used for 15 minutes."""
    if not admin.config.console.enabled:
        stop(Code.USAGE, "the console is off: see console.enabled")
    with admin.client() as client:
        try:
            response = client.post(client.base_url.copy_with(path="/console/codes"))
        except httpx.HTTPError as error:
            raise admin.unanswered(client, error) from None
    admin.check(response)
    if response.status_code == 404:
        stop(Code.NEGATIVE, "the Sluice that runs has its console off: a change of console.enabled needs a restart")
    made = answer(response)
    link = f"{made['url']}#code={made['code']}"
    if no_browser or as_json:
        give(as_json, {"url": link}, [link])
    elif not open_link(admin.config.state.dir, link):
        info("no browser could be opened; open this link within 60 seconds:")
        print_out(link)


def open_link(state: Path, link: str) -> bool:
    """Whether a browser of this machine opens the link, by a file in `state`."""
    return webbrowser.open(_redirect(state / FILE, link).as_uri())


def _redirect(path: Path, link: str) -> Path:
    """A page that leads to the link, readable for its own user alone."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={escape(link)}"><title>Sluice</title>\n')
    return path.resolve()
