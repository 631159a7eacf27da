"""`sluice console`: opens the console of a running Sluice in the browser, logged in by a one-time link.

The link stands in a file that only its user can read: on a command line every process of this machine would see it.
"""

import os
import webbrowser
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
    """Open the console of a running Sluice in the browser. The link works once, for 60 seconds, on this machine."""
    if not admin.config.console.enabled:
        stop(Code.USAGE, "the console is off: see console.enabled")
    with admin.client() as client:
        port = client.base_url.copy_with(path="/console/codes")
        if client.base_url.port is None:
            stop(Code.UNREACHABLE, "a desktop client's Sluice has no console: start one with `sluice serve`")
        try:
            response = client.post(port)
        except httpx.HTTPError as error:
            raise admin.unanswered(client, error) from None
    admin.check(response)
    link = f"{port.copy_with(path='/console')}#code={answer(response)['code']}"
    if no_browser or as_json:
        give(as_json, {"url": link}, [link])
        return
    if not webbrowser.open(_redirect(admin.config.state.dir / FILE, link).as_uri()):
        info("no browser could be opened; open this link within 60 seconds:")
        print_out(link)


def _redirect(path: Path, link: str) -> Path:
    """A page that leads to the link, readable for its own user alone."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}"><title>Sluice</title>\n')
    return path.resolve()
