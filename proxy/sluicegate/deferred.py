"""Libraries that are imported at their first use, not where a file names them: an idle Sluice may never need them."""

import sys
from importlib import import_module
from importlib.util import find_spec
from threading import RLock
from types import ModuleType
from typing import Any, Final

_LOCK: Final = RLock()  # one thread imports, the others wait


class DeferredModule(ModuleType):
    """Stands in `sys.modules` for a library until somebody asks it for a name, and then has what the library has. The
    standard library's LazyLoader imports it already where a second file names it."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # asked of every module by who looks for one, such as `inspect`
            raise AttributeError(name)
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
        sys.modules[library] = module
