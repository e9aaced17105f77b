"""The native protocol's handlers. Every module in this package is imported, which registers its handlers."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from krappy.handlers.registry import REGISTRY, Registry


@cache
def registry() -> Registry:
    """Every message of the native protocol with its handler."""
    for each in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{each.name}")
    return REGISTRY
