"""`keys new`: a key for a client. It is printed once; the config holds its hash."""

import secrets
from hashlib import sha256
from typing import Annotated

import typer

from proxy import config
from proxy.cli.talk import AsJson, Code, say, stop, tell, tell_json


def new(
    name: Annotated[str, typer.Argument(help="Who uses it: a-z, 0-9, . _ and -.")],
    as_json: AsJson = False,
) -> None:
    """Make a key for a client and print it, once, and its line for the config."""
    if not config.is_key_name(name):
        stop(Code.USAGE, "a key's name is 1 to 64 of a-z, 0-9, . _ and -, and does not begin with . _ or -")
    key = f"slc_{secrets.token_urlsafe(32)}"
    hash = f"sha256:{sha256(key.encode()).hexdigest()}"
    if as_json:
        tell_json({"name": name, "key": key, "hash": hash})
        return
    tell(key)
    tell(f'{name}: {{hash: "{hash}", roles: []}}')
    say("The first line is the key: give it to the client, it is not stored and not shown again.")
    say("The second line belongs into the config, under clients.keys.")
