"""What has been written to a log's folder and may not be on disk yet."""

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

    def mark(self, files: Iterable[File]) -> None:
        """These need a sync. A log that is never synced must not hold all its files open for that."""
        if len(self._files) > MAX_HELD:
            self._files = dict.fromkeys(self._files)
        for file in files:
            self._files[file.path] = file

    def join(self, earlier: Unsynced) -> None:
        """What was to be synced before, and was not."""
        self.names = self.names or earlier.names
        self._files = {**earlier._files, **self._files}

    def sync(self, disk: Disk, folder: Path) -> None:
        """Raises OSError; then nobody knows what is on disk, but that nothing is lost where it is one of
        NO_DESCRIPTOR."""
        for path, file in self._files.items():
            with suppress(FileNotFoundError):  # retention or the cleaner had no more use for it
                (file or disk.open(path, write=True)).fdatasync()
        if self.names:
            disk.fsync_dir(folder)
