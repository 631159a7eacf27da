"""Which subjects a client stands for: itself, what it was given, and every role that follows from those.

Pure. The rules of the contract that no row can change: `role:everyone` is held by all, `role:authenticated` by all
but anonymous, `*` is everybody; a client can be given roles and groups, and nothing else can become a subject.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from sluicegate.protocol.model import Client

EVERYONE: Final = "role:everyone"
AUTHENTICATED: Final = "role:authenticated"
ANYBODY: Final = "*"
BUILT_IN: Final = frozenset({EVERYONE, AUTHENTICATED})
ANONYMOUS: Final = "anonymous"
_PRINCIPALS: Final = ("key:", "jwt:")

Grants = Mapping[str, tuple[str, ...]]
"""Member -> the roles that `g` rows give it."""


def principal_of(name: str) -> str:
    """A principal as people write it: a bare name is the name of a key."""
    return name if is_principal(name) else f"key:{name}"


def is_principal(text: str) -> bool:
    return text in ("local", ANONYMOUS) or text.startswith(_PRINCIPALS)


def origins(client: Client) -> tuple[str, ...]:
    """The subjects a client has before any `g` row. Raises `ValueError` for a principal that is none."""
    if not is_principal(client.principal):
        raise ValueError(f"{client.principal!r} is no principal")
    given = (name for name in client.roles if name.startswith(("role:", "group:")) and name not in BUILT_IN)
    built_in = (EVERYONE,) if client.principal == ANONYMOUS else (AUTHENTICATED, EVERYONE)
    return (client.principal, *given, *built_in)


def chains(starts: Iterable[str], grants: Grants) -> dict[str, tuple[str, ...]]:
    """Every subject that follows, and the shortest way to it: `role:dev` -> `(group:sre, role:sre, role:dev)`."""
    found: dict[str, tuple[str, ...]] = {start: (start,) for start in starts}
    todo = deque(found)
    while todo:
        member = todo.popleft()
        for role in grants.get(member, ()):
            if role not in found:
                found[role] = (*found[member], role)
                todo.append(role)
    return found


def held(client: Client, grants: Grants) -> frozenset[str]:
    """Returns all subjects whose rows match this client."""
    return frozenset((ANYBODY, *chains(origins(client), grants)))
