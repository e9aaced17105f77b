"""Structured logs: each line has an event name and its facts, as JSON for machines or in columns for a terminal.

The levels are for the person on call. `error`: something is broken until somebody acts. `warning`: the broker will try
again, or has repaired it at a price. `info`: what somebody asked for. An event that a peer or a full disk could cause
without end is logged at most `MANY` times in `WINDOW` seconds; the next such line tells how many were left out.

The lines are written here, in few functions: structlog, which wrote them before, imports asyncio and much else, which
took 7 MB of an idle broker's memory and a tenth of its start-up.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any, TextIO

from krappy.hosts import network

ERROR = {
    "internal_error",
    "log_failed",
    "partition_offline",
    "replica_kept",
    "replica_lost",
    "old_folder",
    "committed_events_cut",
    "events_set_aside",
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
    "coordinator_record_left_out",
    "groups_not_written",
    "coordinator_reloaded",
    "catalog_lost",
    "data_folder_away",
    "data_folder_replaced",
}
WARNING = {
    "accept_failed",
    "append_failed",
    "assignment_waits",
    "audit_failed",
    "audit_unwritten",
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
    "failed_log_left",
    "lead_taken_over",
    "folder_unclaimed",
    "following_failed",
    "group_ahead_of_log",
    "group_forgotten",
    "housekeeping_failed",
    "leader_unreachable",
    "log_damaged",
    "log_recovered",
    "no_users",
    "nobody_is_allowed",
    "oauth_keys_not_read",
    "offsets_not_expired",
    "oidc_login_not_possible",
    "old_default_retention",
    "older_tree",
    "replica_begins_anew",
    "replica_spoiled",
    "replica_waits",
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
    "zookeeper_slow",
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
    "topic_grows",
    "isr_changed",
    "kafka_connection_ended",
    "leaders_rebalanced",
    "log_cleaned",
    "log_cut",
    "log_reopened",
    "log_started_over",
    "native_connection_ended",
    "registered",
    "replica_removed",
    "replica_whole",
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
AUDIT = {  # events of the audit log, which are written at any level: it has a setting of its own
    "allowed",
    "authenticated",
    "authentication_failed",
    "audit_unwritten",
    "changed",
    "denied",
    "ended",
    "throttled",
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
    "native_connection_ended",
    "oauth_keys_not_read",
    "offsets_not_expired",
    "oidc_login_not_possible",
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
RANKS = {"debug": 0, "info": 1, "warning": 2, "error": 3}
COLORS = {  # of a terminal (ECMA-48)
    "time": "\x1b[2m",
    "debug": "\x1b[32m",
    "info": "\x1b[32m",
    "warning": "\x1b[33m",
    "error": "\x1b[31m",
    "event": "\x1b[1m",
    "name": "\x1b[36m",
    "fact": "\x1b[35m",
    "end": "\x1b[0m",
}
PLAIN = dict.fromkeys(COLORS, "")
SPECIAL = frozenset(" =\"'")  # in values that are quoted on a console
MANY = 20
WINDOW = 10.0  # seconds
BY_ADDRESS = "authentication_failed"  # counted for each address that causes it: so nobody can hide what others try
ADDRESSES = 1000  # so many addresses are counted apart, the others together


class Logger:
    """Writes a line for each event of `level` or above, and for those of `AUDIT`.

    `style`: auto (console for a terminal, else json), json or console. `stream`: None: stderr as it is now.
    """

    def __init__(self, level: str, style: str, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._least = RANKS[level]
        terminal = self._stream.isatty()
        if style == "auto":
            style = "console" if terminal else "json"
        self._line = _json if style == "json" else partial(_columns, colors=COLORS if terminal else PLAIN)

    def __call__(self, level: str, event: str, facts: dict[str, Any]) -> None:
        """`facts`: may have `exc_info`, an exception, or True for the one that is handled now. Raises OSError."""
        if RANKS[level] < self._least and event not in AUDIT:
            return
        error = facts.pop("exc_info", None)
        if error is True:
            error = sys.exception()
        now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        line = self._line(now, level, event, facts, error or None)
        self._stream.write(line + "\n")  # one write for each line: other processes write, too
        self._stream.flush()


def _json(now: str, level: str, event: str, facts: dict[str, Any], error: BaseException | None) -> str:
    if error is not None:
        facts["exception"] = "".join(traceback.format_exception(error)).rstrip("\n")
    return json.dumps({"timestamp": now, "level": level, "event": event, **facts}, default=repr)


def _columns(
    now: str, level: str, event: str, facts: dict[str, Any], error: BaseException | None, *, colors: Mapping[str, str]
) -> str:
    """Names that peers chose must not control the terminal (ESC), nor look like other lines or facts. So values that
    could are quoted and escaped. So is a traceback: an error's message may hold what a peer sent."""
    end = colors["end"]
    line = f"{colors['time']}{now}{end} [{colors[level]}{level:<7}{end}] {colors['event']}{event:<30}{end}"
    for name in sorted(facts):
        fact = facts[name]
        shown = quoted(fact if isinstance(fact, str) else repr(fact))
        line += f" {colors['name']}{name}{end}={colors['fact']}{shown}{end}"
    if error is not None:
        for each in "".join(traceback.format_exception(error)).splitlines():
            line += f"\n  {escaped(each)}"
    return line


def quoted(text: str) -> str:
    """The text as one word; in double quotes, as in JSON, if it would not be one."""
    if text and text.isprintable() and not SPECIAL.intersection(text):
        return text
    return '"' + escaped(text.replace("\\", "\\\\").replace('"', '\\"')) + '"'


def escaped(text: str) -> str:
    """The text, with Python's escapes for the characters that can't be printed."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)


class Reporter:
    """Logs what broker and server report, at the level of each event; leaves out lines of `ENDLESS` events.

    When a line can't be written, to a full disk or a closed pipe, nothing is raised. The next line that can be written
    tells how many could not.

    `log`: given the level, the event and its facts. `clock`: seconds since any fixed moment.
    """

    def __init__(
        self, log: Callable[[str, str, dict[str, Any]], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._log = log
        self._clock = clock
        # By event, and address or "": when the window began, and how many events came in it.
        self._windows: dict[tuple[str, str], tuple[float, int]] = {}
        self._unwritten = 0  # lines that could not be written

    def __call__(self, event: str, **facts: Any) -> None:
        if event in ENDLESS:
            now = self._clock()
            window = self._window(event, facts, now)
            since, count = self._windows.get(window, (now, 0))
            if now - since >= WINDOW:
                if count > MANY:
                    facts["left_out"] = count - MANY
                since, count = now, 0
            self._windows[window] = since, count + 1
            if count >= MANY:
                return
        if self._unwritten:
            facts["unwritten"] = self._unwritten
        try:
            self._log(LEVELS.get(event, "info"), event, facts)
        except OSError:
            self._unwritten += 1
        else:
            self._unwritten = 0

    def _window(self, event: str, facts: Mapping[str, Any], now: float) -> tuple[str, str]:
        """The key of the event's window in `_windows`."""
        found = event, network(_address(str(facts.get("client", "")))) if event == BY_ADDRESS else ""
        if found not in self._windows and len(self._windows) >= ADDRESSES:
            self._windows = {each: held for each, held in self._windows.items() if now - held[0] < WINDOW}
            if len(self._windows) >= ADDRESSES:
                return event, ""
        return found


def _address(client: str) -> str:
    """The host of a peer as people read it, HOST:PORT or HOST."""
    host = client.rpartition(":")[0]
    return client if not host or (":" in host and not host.endswith("]")) else host.strip("[]")
