"""Secrets in the keyring of the operating system, which `${secret:NAME}` in the config names.

It needs the extra `keyring`. A keyring may ask its user to unlock it, so nothing waits for it without end.
"""

import re
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeVar

SERVICE: Final = "sluice"
"""What the entries are filed under there; the name of each is that of the secret."""
IS_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
WITHIN: Final = 10.0
_LEAST: Final = 1  # `priority` of what is no place for secrets, such as a file in plain text, is lower

T = TypeVar("T")


class NoKeyring(Exception):
    """Why there is no keyring, or why it did not do what it was asked."""


def get(name: str) -> str | None:
    """The secret of that name; None where there is none. Raises `NoKeyring`."""
    found: str | None = _ask(lambda keyring: keyring.get_password(SERVICE, name))
    return found


def put(name: str, secret: str) -> None:
    """Keeps a secret, in place of one of the same name. Raises `NoKeyring`."""
    _ask(lambda keyring: keyring.set_password(SERVICE, name, secret))


def delete(name: str) -> None:
    """Raises `NoKeyring`, also where there is no such secret."""
    _ask(lambda keyring: keyring.delete_password(SERVICE, name))


def why_none(within: float = WITHIN) -> str:
    """Why secrets cannot be kept in a keyring here; empty where they can. Waits for so many seconds at most."""
    try:
        _ask(lambda keyring: keyring.get_password(SERVICE, "."), within)
    except NoKeyring as error:
        return str(error)
    return ""


def _ask(what: Callable[[Any], T], within: float = WITHIN) -> T:
    try:
        library = import_module("keyring")
    except ImportError:
        raise NoKeyring("Sluice was installed without the extra `keyring`") from None
    answers: list[T | BaseException] = []

    def ask() -> None:
        try:
            keyring = library.get_keyring()
            if keyring.priority < _LEAST:
                raise NoKeyring("this system has no keyring, or this session cannot reach it")
            answers.append(what(keyring))
        except BaseException as error:  # noqa: BLE001 - a backend raises what its system does
            answers.append(error)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(within)
    if not answers:
        raise NoKeyring(f"the keyring did not answer within {within:g} seconds; is it locked?")
    answer = answers[0]
    if isinstance(answer, NoKeyring):
        raise answer
    if isinstance(answer, BaseException):
        raise NoKeyring(f"the keyring failed: {type(answer).__name__}")  # its text could hold the secret
    return answer
