"""Modules that are loaded when the first of their names is used, whoever imports them before.

Without this, OpenSSL would take 5 MB of a broker that has neither TLS nor users, because trio imports ssl in any case.
The standard library's LazyLoader is of no use for that: a second `import` of a module loads it (until Python 3.12), and
two threads may load it at once.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec
from threading import RLock
from types import ModuleType
from typing import Any

_LOCK = RLock()
_waiting: set[str] = set()


def defer(*names: str) -> None:
    """Puts off the loading of these modules. A module that is imported already is not changed."""
    for name in names:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            module = module_from_spec(spec)
            module.__class__ = _Deferred
            _waiting.add(name)
            sys.modules[name] = module


class _Deferred(ModuleType):
    def __getattr__(self, name: str) -> Any:
        """Called for a name that the module lacks."""
        with _LOCK:  # other threads wait meanwhile; the one that loads finds what there is so far
            _load(self)
            if name in self.__dict__:
                return self.__dict__[name]
        raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")


def _load(module: ModuleType) -> None:
    spec = module.__spec__
    if spec is not None and spec.loader is not None and spec.name in _waiting:
        _waiting.remove(spec.name)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            _waiting.add(spec.name)
            raise
        module.__class__ = ModuleType
