"""Krappy's version, as pyproject.toml has it: importlib.metadata would take 2 MB of a broker's memory to tell it."""

from __future__ import annotations

VERSION = "0.1.0"
