"""POSTs of records and checkpoints to places of the operator, from threads. Of an answer the status counts alone: a
place that sends more than that fills no memory, sets no cookie, and is not listened to for long.
"""

from __future__ import annotations  # httpx is imported at its first use

import time
from collections.abc import Mapping
from importlib import import_module
from typing import Final

import httpx

TIMEOUT: Final = 10.0
_MAX_ANSWER: Final = 64 * 1024
"""Bytes of a body that are read, so that its connection can be used again."""


def poster(headers: Mapping[str, str]) -> httpx.Client:
    """A client that knows no proxy of the environment. Who answers with a redirect is refused before httpx reads where
    that leads: such a text can make it raise what is no `httpx.HTTPError`."""
    refusing = {"response": [httpx.Response.raise_for_status]}
    client = httpx.Client(headers=headers, timeout=TIMEOUT, trust_env=False, event_hooks=refusing)
    client.cookies.jar.set_policy(import_module("http.cookiejar").DefaultCookiePolicy(allowed_domains=()))
    return client


def post(client: httpx.Client, url: str, body: bytes) -> None:
    """Raises `httpx.HTTPError` unless the answer is a 2xx."""
    until, size = time.monotonic() + TIMEOUT, 0
    with client.stream("POST", url, content=body) as response:
        for part in response.iter_raw():
            size += len(part)
            if size > _MAX_ANSWER or time.monotonic() > until:
                return
