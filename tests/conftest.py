"""Settings that all tests share."""

from __future__ import annotations

import resource

from hypothesis import HealthCheck, settings

# How long an example takes depends on what else the machine does, and on whether it is the first run in a fresh
# checkout: it says nothing about the code.
settings.register_profile("krappy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("krappy")

# Brokers run in this process, too, and a broker holds a file for each partition: some systems begin with 1,024.
_, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(_most, 1 << 16) if _most != resource.RLIM_INFINITY else 1 << 16, _most))
