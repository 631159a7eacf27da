"""`sluice stdio`: one client on stdin and stdout, in front of the servers of a config file or of another Sluice."""

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sluicegate import config
from sluicegate.app.stdio import serve_stdio
from sluicegate.cli.admin import GivenKey, key_of
from sluicegate.cli.options import ConfigFile
from sluicegate.cli.output import Code, stop
from sluicegate.cli.run import config_problems, run_loop, serve_file


def stdio(
    config_file: ConfigFile = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Connect to the Sluice at this URL instead of starting one.")
    ] = None,
    toolset: Annotated[
        str,
        typer.Option(metavar="NAME", help="Show this toolset of the config file. With --url: write it into the URL."),
    ] = "",
    key_file: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="With --url: a file that holds the client key; else $SLUICE_KEY."),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option(metavar="KEY", help="The key itself. Other users of this machine can see it: use --key-file."),
    ] = None,
) -> None:
    """Serve one client on stdin and stdout. Only MCP messages go to stdout."""
    if url:
        if toolset:
            stop(Code.USAGE, f"--toolset: write it into the URL: {url.rstrip('/')}/{toolset}")
        shown = key_of(key_file, key, may_read_stdin=False)
        with config_problems(Path(url)):
            run_loop(partial(serve_stdio, _bridge(url, shown), file=None))
        return
    raise typer.Exit(serve_file(config_file, toolset))


def _bridge(url: str, key: GivenKey | None) -> config.Config:
    """Transparent mode with one server: the other Sluice."""
    headers = {"Authorization": f"Bearer {key.value}"} if key else {}
    server: dict[str, Any] = {"url": url, "prefix": "", "unlisted": "forward", "headers": headers}
    # What is recorded is recorded there: here is no config file to keep a log beside.
    settings = {"policy": {"use": "open"}, "servers": {"remote": server}, "audit": {"enabled": False}}
    made = config.make(settings, Path())
    remote = made.servers["remote"]
    assert isinstance(remote, config.HttpServer)
    remote.as_sluice()
    return made
