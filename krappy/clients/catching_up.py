"""Waits until a topic's table includes what was published."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from krappy.clients import admin
from krappy.clients.router import Router
from krappy.errors import RequestTimeout, UnknownPartition
from krappy.wire import messages

Progress = Callable[[int, int], None]  # events applied since the start, and events to apply in all
SHORTEST, LONGEST = 0.005, 0.5  # seconds between two checks


async def catch_up(
    router: Router, topic: str, offsets: Mapping[int, int] | None, timeout: float | None, progress: Progress | None
) -> None:
    """Polls until each partition's view has applied all events before its offset: `offsets`, or None: the high
    watermarks now.

    `timeout` in seconds; None: no limit. Raises RequestTimeout, UnknownPartition, UnknownTopic, ViewDisabled."""
    end = None if timeout is None else router.runtime.now() + timeout
    wanted = dict(await admin.offsets(router, topic, "latest") if offsets is None else offsets)
    total, pause = None, SHORTEST
    while True:
        found = {each.partition: each for each in (await admin.describe(router, topic)).partitions}
        if unknown := wanted.keys() - found.keys():
            raise UnknownPartition(f"'{topic}' has partitions 0 to {len(found) - 1}, not {min(unknown)}")
        behind = {each: at - found[each].applied for each, at in wanted.items() if at > found[each].applied}
        left = sum(behind.values())
        total = left if total is None else total
        for each in wanted:
            if found[each].applied:  # answered at once; raises when this table will never catch up
                request = messages.Get(topic, b"\0", each, found[each].applied - 1)
                await router.ask(request, messages.Got, topic, each)
        if progress is not None:
            progress(total - left, total)
        if not left:
            return
        if end is not None and router.runtime.now() >= end:
            raise RequestTimeout(
                f"after {timeout:g} s the table of '{topic}' has yet to take in {left} events; the broker goes on"
            )
        await router.runtime.sleep(pause if end is None else max(0.0, min(pause, end - router.runtime.now())))
        pause = min(LONGEST, 2 * pause)
