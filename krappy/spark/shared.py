"""A table that one Python worker has read, for the others of its executor: a file that all of them map into memory.

It lies in the folder that Spark gives each executor for such files, and removes when that ends. Nobody trusts the file
further than the moment that it tells: who maps it reads from the log what has changed since, as for what it keeps of
its own (`kept.py`). A worker that dies in the middle leaves a lock that the kernel gives back, and no half of a file.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
    """Of this executor; None: this is no worker of one."""
    given = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0]
    return Path(given) / "krappy" if given and is_worker() else None


class SharedAmongWorkers:
    """What the workers of an executor have in common of one source. Without a folder (None): nothing."""

    def __init__(self, within: Path | None, source: TableSource) -> None:
        name = repr((source.connected.address, source.topic, source.columns)).encode()
        self._file = within and within / f"{blake2b(name, digest_size=16).hexdigest()}.arrow"
        self._seen = 0  # when the file was written that was asked for last

    def newer(self) -> tuple[Moment, list[Chunk]] | None:
        """All of the table, and a moment nothing of which is older; None: nobody has read it, or not since this was
        asked before."""
        with suppress(OSError, pa.ArrowException):
            if self._file is not None and self._seen != (seen := self._file.stat().st_mtime_ns):
                self._seen = seen
                return _opened(self._file)
        return None

    @contextmanager
    def turn(self) -> Iterator[bool]:
        """While one reads the table, others wait. False: another one has had its turn."""
        lock = self._lock()
        if lock is None:
            yield True
            return
        with lock:
            yield _locked(lock)

    def _lock(self) -> IO[bytes] | None:
        """None: each worker is on its own."""
        if self._file is None:
            return None
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            return self._file.with_suffix(".lock").open("wb")
        except OSError:
            return None

    def draft(self, moment: Moment, kind: pa.DataType) -> Draft:
        """For what is read in one's turn: entries of this type."""
        return Draft(self._file, moment, kind)


class Draft:
    """A table on its way to the others, who see it when all of it is there; to be closed. Without a folder, or room in
    it, nothing happens."""

    def __init__(self, file: Path | None, moment: Moment, kind: pa.DataType) -> None:
        fields: Any = {"print": pa.uint64(), "key": pa.binary(), "entry": kind}
        self._schema = pa.schema(fields, metadata={_MOMENT: msgpack.packb(moment)})
        self._file = file
        self._sink: Any = None
        self._writer: Any = None
        if file is not None:
            self._half = file.with_suffix(f".{uuid.uuid4().hex}.half")  # nobody else's, also where locks do not work
            with suppress(OSError):
                for each in file.parent.glob(f"{file.stem}.*.half"):  # of workers that were killed
                    each.unlink()
                self._sink = pa.OSFile(str(self._half), "wb")
                self._writer = pa.ipc.new_file(self._sink, self._schema)

    def add(self, chunk: Chunk) -> bool:
        """A part of the table: whether there was room for it."""
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
        """What was added is all of the table."""
        if self._file is not None and self._writer is not None:
            with suppress(OSError):
                self._writer.close()
                self._sink.close()
                self._half.replace(self._file)
                files = self._file.parent.glob("*.arrow")
                for each in sorted(files, key=lambda each: each.stat().st_mtime_ns)[:-MOST_FILES]:
                    each.unlink()

    def close(self) -> None:
        """Leaves nothing that was not published. Closing again does nothing."""
        if self._sink is not None:
            with suppress(OSError):
                self._sink.close()
            with suppress(OSError):
                self._half.unlink()
        self._sink = self._writer = None


def _locked(lock: IO[bytes]) -> bool:
    """Whether at once."""
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
    with pa.memory_map(str(file)) as mapped:  # what was read from it keeps it mapped
        reader = pa.ipc.open_file(mapped)
        of, *rest = msgpack.unpackb(reader.schema.metadata[_MOMENT], strict_map_key=False)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        return Moment(tuple(of), *rest), [Chunk(each[0].to_numpy(), each[1], each[2]) for each in batches]
