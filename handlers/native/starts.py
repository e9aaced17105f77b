"""The fields by which requests say where to begin reading: `start` and `start_at`."""

from __future__ import annotations

from krappy.errors import InvalidRequest


def check_start(start: str, start_at: int | None) -> None:
    """Raises InvalidRequest unless `start` is earliest, latest, offset or timestamp, the last two with a `start_at` of
    at least 0."""
    if start not in ("earliest", "latest", "offset", "timestamp"):
        raise InvalidRequest(f"start is '{start:.40}': it must be earliest, latest, offset or timestamp", field="start")
    if start in ("offset", "timestamp") and (start_at is None or start_at < 0):
        raise InvalidRequest(f"start '{start}' needs start_at, a number of at least 0", field="start_at")
