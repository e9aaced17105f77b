"""Open files of closed segments, with their indexes and checksums: one bounded cache for the whole process.

A handle can still be used after it has left the pool: its file is closed when the last reference is gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import NamedTuple

from krappy.store.disk import File
from krappy.store.index import OffsetIndex
from krappy.store.sums import ProvenFile

MAX_FILES = 512
MAX_INDEX_BYTES = 32 << 20
ENTRY_BYTES = 8


class Handle(NamedTuple):
    file: File
    index: OffsetIndex  # type: ignore[assignment]  # tuple's own method of this name is not needed

    @property
    def kept(self) -> int:
        """Bytes of memory."""
        return ENTRY_BYTES * len(self.index) + (self.file.kept if isinstance(self.file, ProvenFile) else 0)


class Pool:
    def __init__(self, max_files: int = MAX_FILES, max_index_bytes: int = MAX_INDEX_BYTES) -> None:
        self._max_files = max_files
        self._max_index_bytes = max_index_bytes
        self._handles: OrderedDict[object, Handle] = OrderedDict()
        self._index_bytes = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._handles)

    def peek(self, owner: object) -> Handle | None:
        """The owner's handle, if it is open. Never waits for the disk."""
        with self._lock:
            handle = self._handles.get(owner)
            if handle is not None:
                self._handles.move_to_end(owner)
            return handle

    def get(self, owner: object, opened: Callable[[], Handle]) -> Handle:
        handle = self.peek(owner)
        if handle is None:
            handle = opened()
            self.put(owner, handle)
        return handle

    def put(self, owner: object, handle: Handle) -> None:
        dropped: list[Handle] = []  # released outside the lock: closing may take a while
        with self._lock:
            self._forget(owner, dropped)
            self._handles[owner] = handle
            self._index_bytes += handle.kept
            while len(self._handles) > 1 and (
                len(self._handles) > self._max_files or self._index_bytes > self._max_index_bytes
            ):
                self._forget(next(iter(self._handles)), dropped)

    def discard(self, owner: object) -> None:
        dropped: list[Handle] = []
        with self._lock:
            self._forget(owner, dropped)

    def _forget(self, owner: object, dropped: list[Handle]) -> None:
        handle = self._handles.pop(owner, None)
        if handle is not None:
            self._index_bytes -= handle.kept
            dropped.append(handle)


POOL = Pool()
