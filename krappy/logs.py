"""Structured logs: each line has an event name and its facts, as JSON for machines or in columns for a terminal.

The levels are for the person on call. `error`: something is broken until somebody acts. `warning`: the broker will try
again, or has repaired it at a price. `info`: what somebody asked for. An event that a peer or a full disk could cause
without end is logged at most `MANY` times in `WINDOW` seconds; the next such line tells how many were left out.
"""

from __future__ import annotations

import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, TextIO


@contextmanager
def _hidden(name: str) -> Iterator[None]:
    """As if the package were not installed, unless it is imported already."""
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[name]


with _hidden("rich"):  # structlog imports it for tracebacks, which are written here: 30 ms of CPU and 5 MB
    import structlog

ERROR = {
    "internal_error",
    "log_failed",
    "partition_offline",
    "replica_lost",
    "committed_events_cut",
    "events_lost",
    "view_failed",
    "views_damaged",
    "close_failed",
    "stop_timed_out",
    "tls_certificate_expired",
    "tls_reload_failed",
    "staged_job_failed",
    "group_write_failed",
    "coordinator_not_loaded",
    "groups_not_written",
    "coordinator_reloaded",
    "catalog_lost",
}
WARNING = {
    "accept_failed",
    "append_failed",
    "assignment_waits",
    "audit_failed",
    "authentication_failed",
    "denied",
    "throttled",
    "broker_id_in_use",
    "catalog_failed",
    "connection_gave_way",
    "connection_refused",
    "data_folder_open_to_others",
    "dead_letter_failed",
    "deletion_unfinished",
    "events_refused",
    "folder_unclaimed",
    "following_failed",
    "group_ahead_of_log",
    "group_forgotten",
    "housekeeping_failed",
    "leader_unreachable",
    "log_recovered",
    "login_refused",
    "no_users",
    "nobody_is_allowed",
    "oauth_keys_not_read",
    "offsets_not_expired",
    "old_default_retention",
    "older_tree",
    "peer_stalled",
    "settings_wait",
    "staged_file_not_removed",
    "staged_job_waits",
    "strays_unknown",
    "sync_waits",
    "table_not_made",
    "topic_defaults_wait",
    "topic_strayed",
    "transaction_orphaned",
    "transaction_timed_out",
    "transaction_waits",
    "users_not_read",
    "users_secret_not_kept",
    "view_ahead_of_log",
    "view_not_reclaimed",
    "view_older_than_log",
    "view_waits",
    "views_refused",
    "views_renewed",
    "zookeeper_session_ended",
    "zookeeper_unusable",
    "zookeeper_waits",
}
INFO = {
    "allowed",
    "authenticated",
    "broker_ready",
    "broker_stopped",
    "broker_stopping",
    "catalog_migrated",
    "catalog_reopened",
    "changed",
    "controller",
    "data_folder_closed_to_others",
    "draining",
    "election_by_hand",
    "ended",
    "events_taken_again",
    "http_connection_ended",
    "internal_topic_grows",
    "isr_changed",
    "kafka_connection_ended",
    "leaders_rebalanced",
    "log_cleaned",
    "log_cut",
    "log_started_over",
    "native_connection_ended",
    "registered",
    "replica_removed",
    "role_taken",
    "segments_deleted",
    "snapshot_expired",
    "staged_job_expired",
    "staged_job_resumed",
    "tls_handshake_failed",
    "tls_reloaded",
    "topic_altered",
    "topic_created",
    "topic_deleted",
    "topic_scattered",
    "topics_joined",
    "view_swept",
    "views_reopened",
}
LEVELS = {name: level for level, names in (("error", ERROR), ("warning", WARNING), ("info", INFO)) for name in names}
ENDLESS = {  # events that a peer, or a disk that stays full, could cause without end
    "accept_failed",
    "append_failed",
    "audit_failed",
    "authentication_failed",
    "connection_gave_way",
    "connection_refused",
    "dead_letter_failed",
    "deletion_unfinished",
    "following_failed",
    "group_forgotten",
    "group_write_failed",
    "housekeeping_failed",
    "http_connection_ended",
    "internal_error",
    "kafka_connection_ended",
    "leader_unreachable",
    "login_refused",
    "native_connection_ended",
    "oauth_keys_not_read",
    "offsets_not_expired",
    "peer_stalled",
    "snapshot_expired",
    "staged_file_not_removed",
    "staged_job_waits",
    "sync_waits",
    "table_not_made",
    "tls_handshake_failed",
    "transaction_timed_out",
    "transaction_waits",
    "view_not_reclaimed",
    "view_older_than_log",
    "view_waits",
    "zookeeper_unusable",
}
MANY = 20
WINDOW = 10.0  # seconds


def configure(level: str, style: str) -> Any:
    """Sets logging up, to stderr, and returns the broker's logger. `style`: auto, json or console."""
    if style == "auto":
        style = "console" if sys.stderr.isatty() else "json"
    renderers: list[Any] = (
        [structlog.processors.format_exc_info, _when_and_what_first, structlog.processors.JSONRenderer()]
        if style == "json"
        else [_printable, structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=_trace)]
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *renderers,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelName(level.upper())),
        logger_factory=structlog.WriteLoggerFactory(sys.stderr),  # one write for each line: other processes write, too
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger()


def _printable(logger: Any, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Escapes texts: names that peers chose must not control the terminal (ESC) or make lines of their own."""
    return {name: escaped(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}


def escaped(text: str) -> str:
    """The text, with Python's escapes for the characters that can't be printed."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def _trace(to: TextIO, exc_info: structlog.typing.ExcInfo) -> None:
    """Writes a traceback, escaped: an error's message may hold what a peer sent."""
    lines = "".join(traceback.format_exception(*exc_info)).splitlines()
    to.write("".join(f"\n  {escaped(line)}" for line in lines))


def _when_and_what_first(logger: Any, method: str, facts: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Puts timestamp, level and event first."""
    first = {name: facts.pop(name) for name in ("timestamp", "level", "event") if name in facts}
    return {**first, **facts}


class Reporter:
    """Logs what broker and server report, at the level of each event; leaves out lines of `ENDLESS` events.

    When a line can't be written, to a full disk or a closed pipe, nothing is raised. The next line that can be written
    tells how many could not.

    `clock`: seconds since any fixed moment.
    """

    def __init__(self, logger: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._windows: dict[str, tuple[float, int]] = {}  # event -> (when its window began, how many came in it)
        self._unwritten = 0  # lines that could not be written

    def __call__(self, event: str, **facts: Any) -> None:
        if event in ENDLESS:
            now = self._clock()
            since, count = self._windows.get(event, (now, 0))
            if now - since >= WINDOW:
                if count > MANY:
                    facts["left_out"] = count - MANY
                since, count = now, 0
            self._windows[event] = since, count + 1
            if count >= MANY:
                return
        if self._unwritten:
            facts["unwritten"] = self._unwritten
        try:
            getattr(self._logger, LEVELS.get(event, "info"))(event, **facts)
        except OSError:
            self._unwritten += 1
        else:
            self._unwritten = 0
