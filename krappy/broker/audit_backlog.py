"""Lines of the audit log that wait to be written to one place, a file or a partition of its topic.

At most `MOST_WAITING` bytes wait, and only changes may take the second half of them. A line for which there is no room
is only counted. The next line that finds room says how many were lost (`lost`).
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trio

from krappy.core.security import audit
from krappy.core.security.audit import Facts
from krappy.errors import KrappyError

FILE_BYTES = 64 << 20
MOST_WAITING = 8 << 20  # bytes of lines that wait to be written
AT_ONCE = 256 << 10  # bytes of lines that are written at once
END = b"\n"
Write = Callable[[Sequence[str]], Any]  # gives an awaitable. Raises OSError, KrappyError


class AuditBacklog:
    """`lost`: how many lines found no room. `failing`: the last write has failed."""

    def __init__(self, failed: Callable[..., None]) -> None:
        """`failed`: called with the text of an error and the number of lines that wait."""
        self._failed = failed
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._untold = 0  # how many of `lost` no line has said yet
        self._writing = trio.Lock()
        self.lost = 0
        self.failing = False

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, event: str, facts: Facts, *, important: bool) -> None:
        most = MOST_WAITING if important else MOST_WAITING // 2
        if self._bytes >= most:
            self.lost += 1
            self._untold += 1
            return
        if self._untold:
            facts = {**facts, "lost": self._untold}
            self._untold = 0
        line = audit.line(datetime.now(UTC).isoformat(timespec="milliseconds"), event, facts)
        self._lines.append(line)
        self._bytes += len(line)

    async def flush(self, write: Write) -> bool:
        """Writes the first of the lines that wait. False if that has failed."""
        async with self._writing:
            some: list[str] = []
            size = 0
            for each in self._lines:
                some.append(each)
                size += len(each)
                if size >= AT_ONCE:
                    break
            if not some:
                return True
            try:
                await write(some)
            except (OSError, KrappyError) as error:
                self.failing = True
                self._failed(str(error), len(self._lines))
                return False
            self.failing = False
            for _ in some:
                self._lines.popleft()
            self._bytes -= size
            return True

    def end(self, file: Path | None) -> Sequence[str]:
        """Writes the lines that wait to the file, if there is one. Returns the lines that it could not write."""
        waiting, self._lines, self._bytes = list(self._lines), deque(), 0
        try:
            if file is not None and waiting:
                append(file, waiting)
                return ()
        except OSError as error:
            self._failed(str(error), len(waiting))
        return waiting


def append(file: Path, lines: Sequence[str]) -> None:
    """Appends all of these lines, or none of them. A file that would become too long is first renamed to FILE.1. Raises
    OSError."""
    data = "".join(each + "\n" for each in lines).encode()
    try:
        if os.stat(file).st_size + len(data) > FILE_BYTES:
            os.replace(file, f"{file}.1")
    except FileNotFoundError:
        pass
    opened = os.open(file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        size = os.fstat(opened).st_size
        if size and os.pread(opened, 1, size - 1) != END:  # the machine went down while it was written
            data = END + data
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(opened, view) :]
        except OSError:
            os.ftruncate(opened, size)
            raise
    finally:
        os.close(opened)
