"""The handlers of Kafka's protocol, one file for each API. A module of this package is found by being here."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from krappy.handlers.kafka.registry import REGISTRY, KafkaRegistry


def registry() -> KafkaRegistry:
    """Every API that is served, by its key, with the versions that are."""
    for each in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{each.name}")
    return REGISTRY
