"""Settings that all tests share."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does, and on whether it is the first run in a fresh
# checkout: it says nothing about the code.
settings.register_profile("krappy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("krappy")
