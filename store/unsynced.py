"""The files and names of a log's folder that may not be on disk yet."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from krappy.store.disk import Disk, File

MAX_HELD = 32  # files that are kept open only because they wait for a sync


class Unsynced:
    def __init__(self) -> None:
        self.names = False  # files have come, gone or been renamed
        self._files: dict[Path, File | None] = {}  # None: no longer held open

    def __bool__(self) -> bool:
        return self.names or bool(self._files)

    @property
    def only(self) -> File | None:
        """The only file, if it is open, and no name has changed."""
        if self.names or len(self._files) != 1:
            return None
        return next(iter(self._files.values()))

    def mark(self, files: Iterable[File]) -> None:
        """These files need a sync. Beyond MAX_HELD only their paths are kept, so that a log that is never synced does
        not hold all its files open."""
        if len(self._files) > MAX_HELD:
            self._files = dict.fromkeys(self._files)
        for file in files:
            self._files[file.path] = file

    def join(self, earlier: Unsynced) -> None:
        """Adds what an earlier, failed sync has left."""
        self.names = self.names or earlier.names
        self._files = {**earlier._files, **self._files}

    def sync(self, disk: Disk, folder: Path) -> None:
        """Raises OSError; then nobody knows what is on disk. With an errno of NOT_OPENED nothing is lost, and the sync
        may be repeated."""
        missing: list[Path] = []
        for path, file in self._files.items():
            try:
                (file or disk.open(path, write=True)).fdatasync()
            except FileNotFoundError:  # retention or the cleaner has removed it; or the whole folder is away
                missing.append(path)
        if self.names or missing:
            disk.fsync_dir(folder)
        for path in missing:  # the folder may have come back in between
            with suppress(FileNotFoundError):
                disk.open(path, write=True).fdatasync()
