"""Shares a table that one Python worker has read with the others of its executor: a file that all map into memory.

It is in the executor's own folder, which Spark removes with the executor. The file says of which moment it is: a worker
that maps it reads later changes from the log, as for its own answers (`kept.py`). If a worker dies while it writes, the
kernel releases its lock, and the others never see the half file.

A program may read as several users, so each user has files of its own: who may not read a table gets nothing of it
because somebody else has read it.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any

import msgpack
import pyarrow as pa

from krappy.spark.chunk import Chunk
from krappy.spark.moments import Moment, TableSource
from krappy.spark.workers import is_worker

MOST_FILES = 4
_MOMENT = b"krappy.moment"


def folder() -> Path | None:
    """The folder of this executor's shared files; None if this process is no worker of an executor."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(given) / "krappy" if given and is_worker() else None


class SharedAmongWorkers:
    """The file that an executor's workers share for one source. `within` None: there is none, nothing is shared."""

    def __init__(self, within: Path | None, source: TableSource) -> None:
        self._within, self._source = within, source
        self._seen = 0  # mtime (ns) of the file that was opened last

    @cached_property
    def _file(self) -> Path | None:
        """Raises ConnectionLost."""
        if self._within is None:
            return None
        connected, topic, columns = self._source
        name = repr((connected.address, connected.ping().principal, topic, columns)).encode()
        return self._within / f"{blake2b(name, digest_size=16).hexdigest()}.arrow"

    def newer(self) -> tuple[Moment, list[Chunk]] | None:
        """The shared table, and its moment: no entry is older than that. None if there is no file, or none that is
        newer than at the last call."""
        with suppress(OSError, pa.ArrowException):
            if self._file is not None and self._seen != (seen := self._file.stat().st_mtime_ns):
                self._seen = seen
                return _opened(self._file)
        return None

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """One worker at a time reads the table. Yields False if this one had to wait: another has just read it."""
        lock = self._lock()
        if lock is None:
            yield True
            return
        with lock:
            yield _locked(lock)

    def _lock(self) -> IO[bytes] | None:
        """The lock file; None if nothing is shared."""
        if self._file is None:
            return None
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            return self._file.with_suffix(".lock").open("wb")
        except OSError:
            return None

    def draft(self, moment: Moment, kind: pa.DataType) -> Draft:
        """A new file for a table of `moment`, with entries of the type `kind`. Call it within `turn`."""
        return Draft(self._file, moment, kind)


class Draft:
    """A table that is being written for the other workers, who see it once it is published. Close it in any case.
    Without a file, or room on the disk, its methods do nothing."""

    def __init__(self, file: Path | None, moment: Moment, kind: pa.DataType) -> None:
        fields: Any = {"print": pa.uint64(), "key": pa.binary(), "entry": kind}
        self._schema = pa.schema(fields, metadata={_MOMENT: msgpack.packb(moment)})
        self._file = file
        self._sink: Any = None
        self._writer: Any = None
        if file is not None:
            self._half = file.with_suffix(f".{uuid.uuid4().hex}.half")  # nobody else's, also where locks do not work
            with suppress(OSError):
                for each in file.parent.glob(f"{file.stem}.*.half"):  # left by workers that were killed
                    each.unlink()
                self._sink = pa.OSFile(str(self._half), "wb")
                self._writer = pa.ipc.new_file(self._sink, self._schema)

    def add(self, chunk: Chunk) -> bool:
        """Adds a part of the table; returns whether there was room for it."""
        if self._writer is None:
            return False
        columns: Any = [pa.array(chunk.prints), chunk.keys, chunk.entries]
        try:
            self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        except OSError:
            self.close()
            return False
        return True

    def publish(self) -> None:
        """Lets the other workers see the file: all of the table was added."""
        if self._file is not None and self._writer is not None:
            with suppress(OSError):
                self._writer.close()
                self._sink.close()
                self._half.replace(self._file)
                files = self._file.parent.glob("*.arrow")
                for each in sorted(files, key=lambda each: each.stat().st_mtime_ns)[:-MOST_FILES]:
                    each.unlink()

    def close(self) -> None:
        """Removes the file unless it was published. Closing again does nothing."""
        if self._sink is not None:
            with suppress(OSError):
                self._sink.close()
            with suppress(OSError):
                self._half.unlink()
        self._sink = self._writer = None


def _locked(lock: IO[bytes]) -> bool:
    """Takes the lock; returns whether it was free at once."""
    import fcntl  # not on Windows, where Spark has no workers that are forked

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return False
    except OSError:  # a file system that has no locks
        pass
    return True


def _opened(file: Path) -> tuple[Moment, list[Chunk]]:
    with pa.memory_map(str(file)) as mapped:  # the arrays read from it keep it mapped
        reader = pa.ipc.open_file(mapped)
        of, *rest = msgpack.unpackb(reader.schema.metadata[_MOMENT], strict_map_key=False)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return Moment(tuple(of), *rest), [Chunk(each[0].to_numpy(), each[1], each[2]) for each in batches]
