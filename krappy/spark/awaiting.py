"""Waits after a large write until the tables of its topics have taken it in, with progress on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable

from krappy.blocking import Client
from krappy.clients.staging import StagedCommit
from krappy.errors import ViewDisabled

EVERY = 5.0  # seconds between two lines


def await_tables(published: Iterable[StagedCommit], to: Client) -> None:
    """Returns when the tables include all that was published. Topics without a table are skipped."""
    ends: dict[str, dict[int, int]] = {}
    for commit in published:
        for each in commit.partitions:
            of_topic = ends.setdefault(each.topic, {})
            of_topic[each.partition] = max(of_topic.get(each.partition, 0), each.last_offset + 1)
    for topic, offsets in ends.items():
        try:
            to.table(topic).catch_up(offsets, progress=progress_of(topic))
        except ViewDisabled:
            continue


def progress_of(topic: str, clock: Callable[[], float] = time.monotonic) -> Callable[[int, int], None]:
    """A function of (done, total) events that writes a line to stderr every EVERY seconds."""
    begun = told = clock()

    def progress(done: int, total: int) -> None:
        nonlocal told
        now = clock()
        if now - told >= EVERY or (done == total and told > begun):
            told = now
            sys.stderr.write(f"the table of '{topic}' has taken in {done:,} of {total:,} events\n")
            sys.stderr.flush()

    return progress
