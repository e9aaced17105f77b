"""The handlers of Kafka's protocol, in files by noun, as the schema has its messages. Every module in this package is
imported, which registers its handlers."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from krappy.handlers.kafka.registry import REGISTRY, KafkaRegistry


@cache
def registry() -> KafkaRegistry:
    """The registry of all APIs and versions that the broker serves."""
    for each in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{each.name}")
    return REGISTRY
