"""Structured logs: one event name and its facts a line, as JSON for machines or in columns for a terminal."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

_LEVELS = {
    "internal_error": "error",
    "view_failed": "error",
    "close_failed": "error",
    "housekeeping_failed": "warning",
    "log_recovered": "warning",
    "view_ahead_of_log": "warning",
    "accept_failed": "warning",
    "peer_stalled": "warning",
    "connection_opened": "debug",
    "connection_closed": "debug",
}


def configure(level: str, style: str) -> Any:
    """Sets logging up, to stderr, and returns the broker's logger. `style`: auto, json or console."""
    if style == "auto":
        style = "console" if sys.stderr.isatty() else "json"
    renderers: list[Any] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if style == "json"
        else [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


class Reporter:
    """What broker and server report, at the level that each event deserves."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def __call__(self, event: str, **facts: Any) -> None:
        getattr(self._logger, _LEVELS.get(event, "info"))(event, **facts)
