"""What a program without an event loop can open and close where there is no `with`, as in a REPL."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Opened:
    def open(self) -> Self:
        """As entering `with`, whose errors it raises; `close` ends it."""
        return self.__enter__()

    def close(self) -> None:
        """Ends it, as leaving `with` does. A second time it does nothing."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError
