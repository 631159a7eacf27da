"""The guard chain: which guards there are, in which order, and how they become one Handler.

Order is code, not configuration. Every guard feels what the guards after it in ORDER do to a call, and must not
care what those before it do. Laws: guards only subtract; an exception is a refusal, never a pass; a guard that has
nothing to do under this configuration is None and costs nothing.
"""

import logging
from collections.abc import Mapping
from typing import Final

from proxy.call import Call, Failure, Guard, Handler, Outcome
from proxy.message import INTERNAL_ERROR

ORDER: Final = (
    "measure",  # clock and outcome of everything
    "record",  # one closing line for everything, refusals and cancellation included
    "throttle",  # per-client rate
    "name",  # public names and URIs to own ones, and back
    "seal",  # the envelope of a retry
    "enforce",  # the decision
    "quota",  # per-tool rate
    "approve",  # a human
    "commit",  # the last step before a server is reached: what must happen once, happens here
    "inspect",  # bounds and checks what a server answered
)

log = logging.getLogger(__name__)


def chain(guards: Mapping[str, Guard | None], innermost: Handler) -> Handler:
    """One Handler out of all guards in ORDER. Raises `ValueError` where a guard is missing or unknown:
    leaving one out is a decision that has to be written down as None."""
    if set(guards) != set(ORDER):
        raise ValueError(f"guards must be exactly {ORDER}, not {tuple(guards)}")
    handler = innermost
    for name in reversed(ORDER):
        guard = guards[name]
        if guard is not None:
            handler = _link(name, guard, handler)
    return handler


def _link(name: str, guard: Guard, inner: Handler) -> Handler:
    async def handle(call: Call) -> Outcome:
        try:
            return await guard(call, inner)
        except Exception:  # the boundary that makes a broken guard a refusal
            log.exception("refused: failure in guard %s or inside it (call %s)", name, call.trail.id)
            return Failure(INTERNAL_ERROR, "Internal error")

    return handle
