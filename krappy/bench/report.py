"""The result of a bench: the median of its rounds, the lowest and the highest, and the circumstances."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

PERCENTILES = (50.0, 99.0, 99.9)


class Round(NamedTuple):
    """One round. `done`: the number of events, keys or entries. `latencies`: seconds of each request or event."""

    done: int
    seconds: float
    size: int = 0  # bytes of keys and values
    latencies: Sequence[float] = ()

    @property
    def rate(self) -> float:
        return self.done / self.seconds


def summary(name: str, unit: str, rounds: Sequence[Round], **setting: Any) -> dict[str, Any]:
    """The result of one bench as a flat dict. Times are in milliseconds.

    `per_second` is the median of the rounds. Latency percentiles are over the requests of all rounds together.
    """
    rates = [each.rate for each in rounds]
    found: dict[str, Any] = {
        "bench": name,
        **setting,
        "unit": unit,
        "count": rounds[0].done,
        "rounds": len(rounds),
        "per_second": round(statistics.median(rates), 1),
        "per_second_min": round(min(rates), 1),
        "per_second_max": round(max(rates), 1),
    }
    if rounds[0].size:
        found["megabytes_per_second"] = round(statistics.median(each.size / each.seconds for each in rounds) / 1e6, 2)
    latencies = sorted(each for one in rounds for each in one.latencies)
    if latencies:
        for rank in PERCENTILES:
            found[f"p{rank:g}_ms"] = round(percentile(latencies, rank) * 1000, 3)
        found["max_ms"] = round(latencies[-1] * 1000, 3)
    return found


def percentile(ordered: Sequence[float], rank: float) -> float:
    """The least value that at least `rank` per cent of the values do not exceed (nearest rank). `ordered` ascends."""
    place = -(-len(ordered) * rank // 100)
    return ordered[max(0, min(len(ordered), int(place)) - 1)]


def circumstances(durability: str | None) -> dict[str, Any]:
    """What must be known to compare results: versions, the system, its load, the durability."""
    return {
        "krappy": version("krappy"),
        "python": platform.python_version(),
        "rocksdict": _version("rocksdict"),
        "system": f"{platform.system()} {platform.release()}",
        "cpus": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "durability": durability or "as the broker at --address is set",
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
