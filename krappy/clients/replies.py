"""Replies that someone waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from krappy.clients.runtime import ClientSignal
from krappy.wire.messages import Answer


class ReplySlot:
    """A reply that someone waits for. A wait may be cancelled and begun again."""

    __slots__ = ("_signal", "instead", "result")

    def __init__(self, signal: ClientSignal) -> None:
        self._signal = signal
        self.instead: Callable[[Any], None] | None = None  # gets the answer when nobody waits for it any more
        self.result: Any = None

    def __call__(self, result: Any) -> None:
        self.result = result
        self._signal.set()
        if self.instead is not None:
            self.abandon(self.instead)

    def abandon(self, instead: Callable[[Any], None] | None) -> None:
        """Stops waiting: `instead` gets the answer, at once if it has come already. Errors are dropped."""
        self.instead = instead
        if instead is not None and self._signal.is_set():
            self.instead = None
            if isinstance(self.result, Answer):
                instead(self.result)

    def is_set(self) -> bool:
        return self._signal.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        return await self._signal.wait(seconds)


class PollSlot(ReplySlot):
    """The answer to a poll that was sent at the time `sent`, which the broker gives by `until`."""

    __slots__ = ("sent", "until")

    def __init__(self, signal: ClientSignal, sent: float, until: float) -> None:
        super().__init__(signal)
        self.sent = sent
        self.until = until
