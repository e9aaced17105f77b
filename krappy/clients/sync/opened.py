"""`open` and `close` for the objects of the blocking client, for programs that can't use `with`, as in a REPL."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Opened:
    def open(self) -> Self:
        """Does what entering `with` does, raises the same errors, and returns the object. `close` ends it."""
        return self.__enter__()

    def close(self) -> None:
        """Does what leaving `with` does. A second call does nothing."""
        self.__exit__(None, None, None)

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        raise NotImplementedError
