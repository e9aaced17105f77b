"""The course of a Fetch, of a consumer's and of a replica's: find the partitions, answer at once, or wait."""

from __future__ import annotations

from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

from krappy.handlers.kafka.registry import Message
from krappy.ports import KafkaSessionPort


class FetchWork(Protocol):
    """One request."""

    def find(self) -> Iterator[None]:
        """Finds the partitions asked for; yields after some, so that others have their turn."""

    def now(self) -> Message | None:
        """The answer; None: it has to wait. Raises BlockingIOError where the disk would be waited for."""

    async def wait(self) -> Message: ...


def answered(session: KafkaSessionPort, work: FetchWork) -> Message | Coroutine[Any, Any, Message]:
    finding = work.find()
    for _ in finding:
        return _find_many(session, work, finding)
    if session.ready:
        try:
            answer = work.now()
            if answer is not None:
                return answer
        except BlockingIOError:
            pass
    return work.wait()


async def _find_many(session: KafkaSessionPort, work: FetchWork, finding: Iterator[None]) -> Message:
    for _ in finding:
        await session.pause()
    return await work.wait()
