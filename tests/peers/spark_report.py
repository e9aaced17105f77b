"""Medians and ratios of `make bench-spark`, as JSON and as a table."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from statistics import median
from typing import Any

import pyspark

SCAN, WHERE = "last event of x, by a scan of the log (ms)", "where key = x, p50 (ms)"


def summary(
    results: Mapping[str, Mapping[str, list[float]]], sizes: Mapping[str, int], failed: Mapping[str, str]
) -> dict[str, Any]:
    medians = {measure: {who: median(each) for who, each in found.items()} for measure, found in results.items()}
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "pyspark": pyspark.__version__},
        "sizes": dict(sizes),
        "medians": medians,
        "ratios": ratios(medians),
        "rounds": results,
        "failed": dict(failed),
    }


def ratios(medians: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """By name, "A beside B": over 1, A (Krappy's own way) is better than B."""
    found = {}
    for measure in ("write", "log read"):
        for who, theirs in medians.get(measure, {}).items():
            if who != "krappy" and "krappy" in medians[measure]:
                found[f"{measure} beside {who}"] = medians[measure]["krappy"] / theirs
    for who, scan in medians.get(SCAN, {}).items() if WHERE in medians else ():
        own = "its own scan" if who == "krappy" else f"a scan by the {who}"
        found[f"where key = x beside {own}"] = scan / medians[WHERE]["krappy"]
    for measure in medians:
        if measure.endswith(", lookup"):
            name = measure.removesuffix(", lookup")
            if f"{name}, scan" not in medians:
                continue
            found[f"{name}: lookup beside scan"] = medians[measure]["krappy"] / medians[f"{name}, scan"]["krappy"]
    return {name: round(value, 3) for name, value in found.items()}


def table(found: Mapping[str, Any]) -> str:
    medians = found["medians"]
    whos = list(dict.fromkeys(who for each in medians.values() for who in each))
    rows = [["", *whos]] + [[name, *(shown(each.get(who)) for who in whos)] for name, each in medians.items()]
    rows += [["", *[""] * len(whos)], ["ratio (over 1: Krappy's own way is better)", *[""] * len(whos)]]
    rows += [[name, shown(value), *[""] * (len(whos) - 1)] for name, value in found["ratios"].items()]
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = [
        [cell.rjust(n) if at else cell.ljust(n) for at, (cell, n) in enumerate(zip(r, widths, strict=True))]
        for r in rows
    ]
    sizes = ", ".join(f"{count:,} {name}" for name, count in found["sizes"].items())
    failed = [f"failed: {part}: {error}" for part, error in found["failed"].items()]
    return "\n".join(
        [*failed, *("  ".join(line).rstrip() for line in lines), "", f"{sizes}; rows a second unless it says ms"]
    )


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
