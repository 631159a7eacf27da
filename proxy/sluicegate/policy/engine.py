"""casbin's only home: whether some rows allow a request, by the model file.

Knows no client, no file and no row's place. The engine keeps nothing between two questions: each one comes with the
rows that can matter (the same functions that the matcher calls have picked them), because casbin reads every row of
its model at each decision. Rows come in through its API, never through its CSV reader.
"""

import inspect
import logging
from collections.abc import Iterable, Sequence
from operator import contains
from pathlib import Path
from typing import Any, Final

# Not `import casbin`, which brings the enforcers that watch, synchronise and await, too.
from casbin.core_enforcer import EnforceContext  # type: ignore[import-untyped]  # it has no types
from casbin.enforcer import Enforcer  # type: ignore[import-untyped]  # it has no types

from sluicegate.policy.finding import PolicyFinding
from sluicegate.policy.globs import matches

RESERVED: Final = "sluice"
# Rights to write that `admin:*` gives to nobody but `local`: a row has to name them.
NAMED: Final = frozenset({"policy", "logins"})
"""The server key that stands for Sluice itself: a right on it is written out, no wildcard gives it."""

# What this room explains and lints is these definitions; another model would decide what nobody can explain.
_DEFINITIONS: Final = {
    "r": {"r": "sub,srv,obj,act", "r2": "sub,srv,obj,act"},
    "p": {"p": "sub,srv,obj,act,eft", "p2": "sub,srv,obj,act,profile"},
    "g": {"g": "_,_"},
    "e": {"e": "some(where(p_eft==allow))&&!some(where(p_eft==deny))", "e2": "some(where(p_eft==allow))"},
    "m": {
        "m": '(p_act=="*"||r_act==p_act)&&glob(r_obj,p_obj)&&reaches(r_srv,p_srv,p_eft)&&inRole(r_sub,p_sub)',
        "m2": '(p2_act=="*"||r2_act==p2_act)&&glob(r2_obj,p2_obj)&&reaches(r2_srv,p2_srv,"allow")'
        "&&inRole(r2_sub,p2_sub)",
    },
}
_APPROVALS: Final = EnforceContext("r2", "p2", "e2", "m2")


def reaches(server: str, pattern: str, effect: str) -> bool:
    """Whether a row's `srv` speaks of a server. Only a deny reaches Sluice itself by a wildcard."""
    if server == RESERVED and effect != "deny":
        return pattern == RESERVED
    return matches(server, pattern)


class _Enforcer(Enforcer):  # type: ignore[misc]  # a class without types
    """casbin, reading its matchers once instead of at every decision (that is five sixths of a decision's time)."""

    def _get_expression(self, text: str, functions: Any = None) -> Any:
        read = self.__dict__.setdefault("_expressions", {})
        if text not in read:
            read[text] = super()._get_expression(text, functions)
        return read[text]


class Engine:
    """`rows` are the five fields of `p` or `p2` rows. Raises what casbin raises. One thread may ask at a time."""

    def __init__(self, model: str) -> None:
        # Both distributions write the same package over one another; the frozen one explains wrongly.
        folder = Path(inspect.getfile(Enforcer)).parent.parent
        if any(folder.glob("casbin-*.dist-info")):
            raise RuntimeError("the package `casbin` is installed beside `pycasbin`: uninstall both, install pycasbin")
        self._model = model
        logging.getLogger("casbin").setLevel(logging.ERROR)  # it logs every request with its subject
        self._enforcer = _Enforcer(Enforcer.new_model(text=model))
        self._enforcer.add_function("inRole", contains)
        self._enforcer.add_function("reaches", reaches)
        self._enforcer.add_function("glob", matches)

    def __reduce__(self) -> tuple[type["Engine"], tuple[str]]:
        return Engine, (self._model,)  # casbin's functions cannot go to another process

    def allows(self, held: frozenset[str], server: str, obj: str, act: str, rows: Iterable[Sequence[str]]) -> bool:
        """Whether `p` rows allow it: one allows and none denies."""
        self._fill("p", rows)
        return bool(self._enforcer.enforce(held, server, obj, act))

    def asks(self, held: frozenset[str], server: str, obj: str, act: str, rows: Iterable[Sequence[str]]) -> bool:
        """Whether a `p2` row matches it."""
        self._fill("p2", rows)
        return bool(self._enforcer.enforce(_APPROVALS, held, server, obj, act))

    def _fill(self, kind: str, rows: Iterable[Sequence[str]]) -> None:
        """As casbin's adapters do it, without the search for duplicates at every row."""
        self._enforcer.model["p"][kind].policy = list(rows)


def check_model(text: str, file: str) -> list[PolicyFinding]:
    """Returns findings where a model file is not the model that this version explains."""
    try:
        model = Enforcer.new_model(text=text)
    except (RuntimeError, ValueError, KeyError, AttributeError) as error:
        return [PolicyFinding(file, 1, 1, "bad-model", "error", f"not a casbin model: {error}")]
    message = 'Sluice reads rows by one model, where "{}" is another'
    return [
        PolicyFinding(file, _line_of(text, name), 1, "bad-model", "error", message.format(name), hint)
        for section, definitions in _DEFINITIONS.items()
        for name, expected in definitions.items()
        if (hint := _compare(model, section, name, expected))
    ]


def _compare(model: Any, section: str, name: str, expected: str) -> str:
    definition = (model[section] or {}).get(name)
    found = "" if definition is None else "".join(str(definition.value).split())
    shown = expected if section == "g" else expected.replace("_", ".")
    return "" if found == expected else f"remove policy.model from the config; Sluice's own has {name} = {shown}"


def _line_of(text: str, name: str) -> int:
    starts = (number for number, line in enumerate(text.split("\n"), 1) if line.partition("=")[0].strip() == name)
    return next(starts, 1)
