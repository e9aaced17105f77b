"""Medians and ratios, as JSON and as a table."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

# The pairs that are compared: with the same durability on both sides, then both by default, then what is fastest.
PAIRS = (("krappy", "kafka-fsync"), ("krappy-os", "kafka"), ("krappy", "kafka"), ("krappy-os", "kafka-tuned"))
LESS_IS_BETTER = ("start-up", "latency", "memory", "bootstrap", "CPU", "failover")


def less_is_better(measure: str) -> bool:
    return measure.startswith(LESS_IS_BETTER)


def ratio(measure: str, ours: float, theirs: float) -> float:
    """A ratio that is over 1.0 if `ours` is better, whether less or more is better of this measure."""
    return theirs / ours if less_is_better(measure) else ours / theirs


def summary(
    results: Mapping[str, Mapping[str, Sequence[float]]],
    meanings: Mapping[str, str],
    pairs: Sequence[tuple[str, str]] = PAIRS,
) -> dict[str, Any]:
    """Medians and ratios of `results`: by server and measure, one value for each round. `meanings`: by server."""
    medians = {name: {key: median(values) for key, values in found.items()} for name, found in results.items()}
    ratios: dict[str, dict[str, float]] = {}
    for ours, theirs in pairs:
        if ours in medians and theirs in medians:
            both = [key for key in medians[ours] if key in medians[theirs]]
            ratios[f"{ours}/{theirs}"] = {
                key: round(ratio(key, medians[ours][key], medians[theirs][key]), 3) for key in both
            }
    return {
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version()},
        "servers": {name: meanings[name] for name in results},
        "medians": medians,
        "ratios": ratios,
        "rounds": {name: {key: list(values) for key, values in found.items()} for name, found in results.items()},
    }


def note(results: dict[str, list[float]], measure: str, value: float) -> None:
    """Adds a round's value, and tells it: a comparison may take an hour, and may be stopped."""
    results.setdefault(measure, []).append(value)
    sys.stderr.write(f"  {measure}: {_shown(value)}\n")


def _shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def table(found: Mapping[str, Any]) -> str:
    """A summary as text: the medians, then the ratios (over 1: Krappy is better)."""
    names, pairs = list(found["medians"]), list(found["ratios"])
    measures = list(dict.fromkeys(key for name in names for key in found["medians"][name]))
    rows = [["", *names, *pairs]]
    for measure in measures:
        row = [measure, *(_shown(found["medians"][name].get(measure)) for name in names)]
        row += [_shown(found["ratios"][pair].get(measure)) for pair in pairs]
        rows.append(row)
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
    meanings = [f"{name}: {meaning}" for name, meaning in found["servers"].items()]
    return "\n".join([*lines, "", *meanings, "Ratios over 1: the first of the two is better."])
