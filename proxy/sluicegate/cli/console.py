"""`sluice console`: opens the console of a running Sluice in the browser, logged in by a one-time link."""

from typing import Annotated

import httpx
import typer

from sluicegate.app.browser import open_link
from sluicegate.cli.admin import Admin, answer, asks_running
from sluicegate.cli.options import AsJson
from sluicegate.cli.output import Code, give, info, print_out, stop


@asks_running
def console(
    admin: Admin,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the link; open nothing.")] = False,
    as_json: AsJson = False,
) -> None:
    """Open the console of a running Sluice in the browser. The link works once, for 60 seconds, on this machine. A
    desktop client's Sluice opens the console for this, and closes it when it was not used for 15 minutes."""
    if not admin.has_console:
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
    elif not open_link(admin.state_dir, link):
        info("no browser could be opened; open this link within 60 seconds:")
        print_out(link)
