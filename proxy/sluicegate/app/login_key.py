"""The key that seals logins: in the keyring of the operating system, or in a file of the state directory.

Its place is chosen once and written down. A keyring that is locked at a later start would otherwise look like a state
directory without logins. A file does not protect the logins from other programs of the same account; a keyring does
as far as it asks its user.
"""

import base64
import logging
import os
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, Literal

import anyio

from sluicegate.config import os_keyring
from sluicegate.config.os_keyring import NoKeyring
from sluicegate.store import private
from sluicegate.store.keys import KEY_BYTES, KeyRing, KeyUnavailable, Sealer

RING: Final = "login"
NAMED: Final = "login.keyring"
"""The file, beside that of the key, that names the entry in the keyring."""
PROBE: Final = 3.0
AGAIN: Final = 60.0
"""Seconds until a keyring that failed is asked again: it may ask its user to unlock it each time."""

if sys.platform != "win32":
    import fcntl

KeyPlace = Literal["auto", "keyring", "file"]

log = logging.getLogger(__name__)


def load_key(directory: Path, place: KeyPlace) -> KeyRing:
    """The ring, made at the first use, and moved where `place` is no longer where it is. Waits up to ten seconds for
    a keyring. Raises `KeyUnavailable`, and what `KeyRing.load` raises."""
    private.make_directory(directory)
    private.check(directory, private.DIRECTORY)
    with _alone(directory):
        return _load(directory, place)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """One process chooses: of two that start at once, one may reach the keyring in time and the other may not."""
    if sys.platform == "win32":
        yield
        return
    opened = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _load(directory: Path, place: KeyPlace) -> KeyRing:
    file, named = directory / RING, directory / NAMED
    if named.exists():
        ring = _from_keyring(named)
        if place == "file":
            _to_file(ring, file, named)
        elif file.exists() and _text(KeyRing.load(directory, RING)) == _text(ring):
            file.unlink()  # a move that ended half-way
        return ring
    if file.exists():
        ring = KeyRing.load(directory, RING)
        if place == "keyring":
            _to_keyring(ring, named)
            file.unlink()
        return ring
    if place == "file" or (place == "auto" and os_keyring.why_none(PROBE)):
        return KeyRing.load(directory, RING)
    _to_keyring(KeyRing([secrets.token_bytes(KEY_BYTES)]), named)
    return _from_keyring(named)


def _from_keyring(named: Path) -> KeyRing:
    private.check(named, private.FILE)
    name = named.read_text("ascii").strip()
    try:
        text = os_keyring.get(name)
    except NoKeyring as error:
        raise KeyUnavailable(f"the key of logins is in the keyring, as {_entry(name)}: {error}") from None
    if text is None:
        raise KeyUnavailable(
            f"the keyring has no entry {_entry(name)} any more, with the key of logins: restore it, or delete "
            f"keys/{NAMED} in state.dir and log in again"
        )
    try:
        return KeyRing.parse(text)
    except ValueError as error:
        raise KeyUnavailable(f"the keyring's entry {_entry(name)} is damaged: {error}") from None


def _entry(name: str) -> str:
    return f"{os_keyring.SERVICE}/{name}"


def _to_keyring(ring: KeyRing, named: Path) -> None:
    """Under a new name: an entry that is there may be another state directory's."""
    name = f"login-{secrets.token_hex(8)}"
    try:
        os_keyring.put(name, _text(ring))
    except NoKeyring as error:
        raise KeyUnavailable(f"login.key: keyring: {error}") from None
    private.write(named, f"{name}\n".encode("ascii"), replace=True)


def _to_file(ring: KeyRing, file: Path, named: Path) -> None:
    name = named.read_text("ascii").strip()
    private.write(file, f"{_text(ring)}\n".encode("ascii"), replace=True)
    named.unlink()
    with suppress(NoKeyring):
        os_keyring.delete(name)


def _text(ring: KeyRing) -> str:
    """As `KeyRing.parse` reads it."""
    return "\n".join(base64.urlsafe_b64encode(key).decode("ascii") for key in ring.keys.values())


def opener(
    directory: Path, place: KeyPlace, clock: Callable[[], float] = time.monotonic
) -> Callable[[], Awaitable[Sealer]]:
    """Gives the sealer of logins once its key could be read: in a thread, as a keyring may take its time."""
    sealer: Sealer | None = None
    failed, at = "", 0.0
    turn = anyio.Lock()

    async def opened() -> Sealer:
        nonlocal sealer, failed, at
        if sealer is not None:
            return sealer
        async with turn:
            if sealer is None:
                if failed and clock() - at < AGAIN:
                    raise KeyUnavailable(failed)
                try:
                    sealer = Sealer(await anyio.to_thread.run_sync(load_key, directory, place))
                except KeyUnavailable as error:
                    log.error(str(error))
                    failed, at = str(error), clock()
                    raise
        return sealer

    return opened
