"""What is done at its first use, not where a file names it: an idle Sluice may never need it. Libraries are imported
then, and methods of dataclasses and regular expressions compiled."""

import dataclasses
import re
import sys
import typing
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final, cast

_LOCK: Final = RLock()  # one thread imports, the others wait
_METHODS: Final = ("__eq__", "__hash__", "__setattr__", "__delattr__")
_MAKERS: Final = {"_init_fn": "__init__", "_repr_fn": "__repr__"}  # of methods that have some text for each field


class DeferredModule(ModuleType):
    """Stands in `sys.modules` for a library until somebody asks it for a name, and then has what the library has. The
    standard library's LazyLoader imports it already where a second file names it.

    A package is there for the modules inside it, too: who imports one of them gets it alone, without what the
    package's own file imports."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by who looks for one, such as `inspect`
            raise AttributeError(name)
        inside = f"{self.__name__}.{name}"
        if "__path__" in vars(self) and find_spec(inside) is not None:
            return import_module(inside)
        with _LOCK:
            if sys.modules.get(self.__name__) is self:
                del sys.modules[self.__name__]
            module = import_module(self.__name__)
            self.__dict__.update(vars(module))
        return getattr(module, name)


def defer(library: str) -> None:
    """Only for a library that files use by its own name (`import httpx`), and not while they are imported."""
    if library not in sys.modules and (spec := find_spec(library)) is not None:
        module = DeferredModule(library)
        module.__spec__ = spec
        if spec.submodule_search_locations is not None:
            module.__path__ = spec.submodule_search_locations
        sys.modules[library] = module
        parent, _, name = library.rpartition(".")
        if parent:
            setattr(sys.modules[parent], name, module)


def defer_annotations() -> None:
    """Has `typing` keep an annotation that is text as it is, for `eval` takes text, too. It would compile each of
    pydantic's seven hundred, and nobody asks for one."""
    setattr(typing, "compile", lambda source, *_: source)  # noqa: B010 - mypy refuses an assignment


def defer_methods() -> None:
    """Has `dataclasses` compile a method when it is first called, where it would compile each of them: for hundreds of
    classes that is a fifth of a start, and few are ever compared or shown. Does nothing from Python 3.13 on, which
    compiles all methods of a class in one step."""
    makers = vars(dataclasses)
    if (create := makers.get("_create_fn")) is None:
        return

    def later(name: str, make: Callable[..., Any], *source: Any, **where: Any) -> Callable[..., Any]:
        return _deferred(name, partial(make, *source, **where))

    def creating(name: str, *source: Any, **where: Any) -> Callable[..., Any]:
        if name in _METHODS:
            return later(name, create, name, *source, **where)
        return cast("Callable[..., Any]", create(name, *source, **where))

    process = makers["_process_class"]

    def processing(made: type, *options: Any) -> type:
        made.__doc__ = made.__doc__ or made.__name__  # in place of a signature, which is as slow as the rest
        return cast("type", process(made, *options))

    makers |= {maker: partial(later, name, makers[maker]) for maker, name in _MAKERS.items()}
    makers |= {"_create_fn": creating, "_process_class": processing}


def _deferred(name: str, compiled: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    def method(self: Any, *others: Any, **named: Any) -> Any:
        made = compiled()
        made.__qualname__ = method.__qualname__
        for owner in type(self).__mro__:
            if vars(owner).get(name) is method:
                setattr(owner, name, made)
        return made(self, *others, **named)

    method.__name__ = name
    return method


class DeferredPattern:
    """What `deferred_pattern` makes. Its methods are those of the compiled expression."""

    def __init__(self, expression: str) -> None:
        self.pattern = expression

    def __getattr__(self, name: str) -> Any:
        """Asked once for each method, which is an attribute from then on."""
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(re.compile(self.pattern), name)
        setattr(self, name, method)
        return method


def deferred_pattern(expression: str) -> re.Pattern[str]:
    """A regular expression that is compiled when it is first used, for those that few texts need."""
    return cast("re.Pattern[str]", DeferredPattern(expression))
