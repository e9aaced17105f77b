"""The only module that imports rocksdict: opens the databases, and turns their errors into Krappy's.

Why these options:

- **No write stall.** `Rdict.write` holds the GIL, so a write that RocksDB delays would stop the whole process. The
  level-0 and pending-compaction triggers are therefore never reached, and writes have `no_slowdown`: a write that would
  have to wait, because every memtable is full and still being flushed, raises `Stalled` instead. Large writers ask
  `behind` first and pause by themselves.
- **Memtables**: most of a put's time goes into cache misses, while it finds its place in a skip list. So a put into a
  small memtable takes half the time (0.9 µs instead of 1.7 for random keys). One flush merges several small memtables,
  so the files that compactions merge are as large as those of one large memtable. Entries that come gathered, thousands
  in a write, go to a list instead. It is sorted once, when it is complete: 0.12 µs an entry. A lookup in an incomplete
  list would have to copy and sort it. So each write makes one memtable, and another small write ends it. A bloom filter
  over each memtable saves most gets from looking into all. There is one writer, so the cost of concurrent inserts is
  saved.
- **Bounded memory.** `memtable_bytes` for all memtables together; blocks, indexes and filters live in one block cache.
  Indexes and filters are partitioned, so that a database far larger than the cache need not hold them whole. That costs
  a fifth of the gets/s of a small table; but without it gets fell to 9,000/s once indexes and filters no longer fitted.
  The cache is the LRU one: a HyperClockCache has a table for all blocks that it may ever hold, 2 MB of a cache of 64,
  and is hardly quicker while gets hold the GIL: by a tenth of their 3 µs at most. (RocksDB's row cache would serve
  scattered favourites 4 times faster, but excludes delete_range.)
- **Bounded files**: `open_files` table files at a time; RocksDB's own text logs are kept to two of 1 MiB.
- Level 0 is not compressed, as it is rewritten soon; the rest is lz4.

Oddities of rocksdict 0.3.29 that this module or its callers handle: iterators of a `Snapshot` see later writes, only
its lookups do not; iterators do not keep alive the ReadOptions whose upper bound they point to; a database stays open,
and locked, while an iterator or a snapshot of it exists; `write` empties the batch even when it fails; a reopened
database takes the column family's options from its OPTIONS file unless they are given for the family by name; the stub
is wrong about `WriteOptions.disable_wal` and `ReadOptions.fill_cache`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from itertools import accumulate, islice, repeat
from operator import add
from pathlib import Path
from typing import Any

from rocksdict import (
    AccessType,
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    MemtableFactory,
    Options,
    Rdict,
    ReadOptions,
    Snapshot,
    WriteBatch,
    WriteOptions,
)

from krappy.errors import StorageError
from krappy.store import journal
from krappy.store.disk import OS_DISK, UNREADABLE

__all__ = [
    "SNAPSHOT_MISS",
    "Checkpoint",
    "Damaged",
    "DbClosedError",
    "Rdict",
    "Snapshot",
    "Stalled",
    "WriteBatch",
    "WriteOptions",
    "all_from",
    "batch",
    "behind",
    "failure",
    "key_before",
    "keys_from",
    "last_change",
    "level0_files",
    "most_gathered",
    "number_of",
    "open_db",
    "pairs_from",
    "refused_file",
    "values_from",
    "write_options",
]

LEAST_MEMTABLE = 64 << 10  # bytes; RocksDB takes no smaller size
MEMTABLES, MERGED = 16, 4  # at most so many, and how many one flush merges into a file
LISTS, LISTS_MERGED = 28, 7  # the same for lists of gathered entries; half of their bytes are keys' and Python's
MOST_GATHERED = 8 << 20  # bytes: a write holds the GIL, and the first lookup in its list sorts that
LEVEL0_TRIGGER = 8  # files in level 0 that start a compaction; a lower number would rewrite level 1 more often
LEVEL0_LIMIT = 16  # files in level 0 at which writers should pause: a get may have to look into each
_NEVER = 1 << 30  # a count of level-0 files that is never reached
SNAPSHOT_MISS = "key not found"  # the text of the bare Exception that a Snapshot raises for a key it does not hold
_BLOCK = 4 << 10


_UNREAD = re.compile(
    r"While (?:pread|read|open)[^/]*(/.*?\.sst): (?:Input/output error|No data available|Structure needs)"
)


class Stalled(StorageError):
    """RocksDB would have delayed the write. It was not applied; the same write succeeds once a flush is done."""


class Damaged(StorageError):
    """What RocksDB has on disk is not what it wrote. It takes no writes from then on."""


HARMLESS = (  # texts in errors of an open that are no damage: a later try may succeed
    "No space left",
    "Disk quota",
    "Permission denied",
    "Read-only file system",
    "Too many open files",
    "lock hold",
    "LOCK",
    "Cannot allocate",
)


def failure(what: str, error: Exception) -> Exception:
    """The error to raise for one of rocksdict, which raises bare Exception; other errors are returned unchanged.
    `what`: the operation, for the message."""
    if isinstance(error, DbClosedError):
        return StorageError(f"{what}: the database is closed")
    if isinstance(error, RuntimeError) and "borrowed" in str(error):
        return StorageError(f"{what}: the database is being closed")
    if type(error) is not Exception and not isinstance(error, OSError):
        return error
    text = str(error)
    if "Write stall" in text:
        return Stalled(f"{what}: {error}")
    if "Corruption" in text or ("No such file" in text and ".sst" in text):
        return Damaged(f"{what}: {error}")
    return StorageError(f"{what}: {error}")


def refused_file(error: Exception) -> Path | None:
    """The table file that the disk failed to read, if the error names one. It may be readable the next time."""
    found = _UNREAD.search(str(error))
    return Path(found[1]) if found else None


def most_gathered(memtable_bytes: int) -> int:
    """Bytes of memory that entries should take before they are written together."""
    return max(LEAST_MEMTABLE, min(memtable_bytes // MEMTABLES, MOST_GATHERED))


def db_options(cache_bytes: int, memtable_bytes: int, open_files: int = 256, *, gathered: bool = False) -> Options:
    """The options of the broker's databases: see `open_db` for the parameters, and above for the reasons."""
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(cache_bytes))
    tables.set_block_size(_BLOCK)
    tables.set_block_restart_interval(8)
    tables.set_bloom_filter(10, False)
    tables.set_format_version(5)
    tables.set_index_type(BlockBasedIndexType.two_level_index_search())
    tables.set_partition_filters(True)
    tables.set_metadata_block_size(4 * _BLOCK)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_top_level_index_and_filter(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)

    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    if gathered:
        options.set_memtable_factory(MemtableFactory.vector())
    options.set_write_buffer_size(LEAST_MEMTABLE if gathered else max(memtable_bytes // MEMTABLES, LEAST_MEMTABLE))
    options.set_max_write_buffer_number(LISTS if gathered else MEMTABLES)
    options.set_min_write_buffer_number_to_merge(LISTS_MERGED if gathered else MERGED)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.25 if gathered else 0.02)
    options.set_allow_concurrent_memtable_write(False)
    options.set_level_zero_file_num_compaction_trigger(LEVEL0_TRIGGER)
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_max_bytes_for_level_base(max(2 * memtable_bytes, 64 << 20))
    options.set_target_file_size_base(32 << 20)
    options.set_compression_per_level([DBCompressionType.none()] + [DBCompressionType.lz4()] * 6)
    options.set_max_background_jobs(max(2, min(4, os.cpu_count() or 1)))
    options.set_bytes_per_sync(1 << 20)
    options.set_max_open_files(open_files)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_max_manifest_file_size(16 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    return options


def open_db(
    folder: Path, *, cache_bytes: int, memtable_bytes: int, open_files: int = 256, gathered: bool = False
) -> Rdict:
    """Opens the database in `folder`, or creates it when the folder is missing or empty.

    `cache_bytes`: of the block cache; `memtable_bytes`: of all memtables; `open_files`: table files held open;
    `gathered`: each write has about `most_gathered` bytes of entries, and is followed by a small one.
    Raises StorageError for a folder that holds anything but a whole database.
    """
    options = db_options(cache_bytes, memtable_bytes, open_files, gathered=gathered)
    try:
        OS_DISK.mkdir(folder)  # RocksDB syncs the folder's content, not its name
        if not (folder / "CURRENT").is_file() and journal.holds_data(folder):
            # RocksDB would make a new database here, and delete the files of the old one.
            raise Damaged(f"{folder} holds the files of a database, but not its file CURRENT")
        for path in folder.iterdir():
            if path.is_fifo():  # opening it would wait for its other end
                raise Damaged(f"{path} is a pipe, and no file")
        _check_manifest(folder)
        return Rdict(os.fspath(folder), options, {"default": options})
    except StorageError:
        raise
    except Exception as error:
        raise _kind(folder, str(error))(f"the database in {folder} can't be opened: {error}") from error


def _kind(folder: Path, text: str) -> type[StorageError]:
    """The class of error for a failed open. A write that the disk refused, or a read that failed once, is no damage."""
    if "Corruption" in text:
        return Damaged
    refused = "Input/output error" in text and _readable(folder)
    return StorageError if refused or any(each in text for each in HARMLESS) else Damaged


def _readable(folder: Path) -> bool:
    """Whether every byte of each file can be read."""
    for file in folder.glob("*"):
        try:
            if file.is_file():
                OS_DISK.read_through(file)
        except OSError as error:
            if error.errno in UNREADABLE:
                return False
    return True


def last_change(folder: Path) -> int | None:
    """The sequence number of the last change that opening the database would find; None if it can't be told. Changes
    nothing in the folder that opening needs."""
    try:
        _check_manifest(folder)
        db = Rdict(os.fspath(folder), db_options(1 << 20, 1 << 20, 16), access_type=AccessType.read_only(False))
    except Exception:
        return None
    try:
        return db.latest_sequence_number()
    finally:
        db.close()


def _check_manifest(folder: Path) -> None:
    flaw = journal.manifest_flaw(folder)
    if flaw:
        raise Damaged(f"the database in {folder} can't be opened: {flaw}")


def batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def write_options(*, wal: bool, no_slowdown: bool = False) -> WriteOptions:
    options = WriteOptions()
    setattr(options, "disable_wal", not wal)  # noqa: B010 - the stub wrongly says that it is a method
    options.no_slowdown = no_slowdown
    return options


def values_from(db: Rdict, first: bytes, end: bytes, count: int, max_bytes: int) -> tuple[list[bytes], bytes | None]:
    """(at most `count` values in the order of their keys, from `first` to before `end`, and no more once they have
    `max_bytes`; the next key, or None).

    A third quicker than asking for the keys as well. Holds the GIL for about a third of a microsecond each.
    """
    return _some_from(db, first, end, count, max_bytes, values=True)


def keys_from(db: Rdict, first: bytes, end: bytes, count: int, max_bytes: int) -> tuple[list[bytes], bytes | None]:
    """As `values_from`, of the keys themselves."""
    return _some_from(db, first, end, count, max_bytes, values=False)


def _some_from(
    db: Rdict, first: bytes, end: bytes, count: int, max_bytes: int, *, values: bool
) -> tuple[list[bytes], bytes | None]:
    options = ReadOptions()  # the iterator points to its bound, and does not keep it alive: this function does
    options.fill_cache(False)  # type: ignore[call-arg]
    options.set_iterate_upper_bound(end)
    iterator = db.iter(options)
    iterator.seek(first)
    read, go_on = iterator.value if values else iterator.key, iterator.next
    found: list[bytes] = []
    append = found.append
    taken = 0
    for _ in repeat(None, count):
        held: Any = read()
        if held is None or taken >= max_bytes:
            break
        append(held)
        taken += len(held)
        go_on()
    following: Any = iterator.key()
    if following is None:
        iterator.status()  # a damaged block ends an iteration as the end of the data does
    del iterator, read, go_on  # before the options that hold its bound
    return found, following


def all_from(db: Rdict, first: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Every key from `first` on with its value, in key order. (`Rdict.items` does not report a damaged block.)"""
    iterator = db.iter()
    iterator.seek(first)
    key, value, go_on = iterator.key, iterator.value, iterator.next
    found: Any
    while (found := key()) is not None:
        held: Any = value()
        yield found, held
        go_on()
    iterator.status()


def key_before(db: Rdict, end: bytes) -> bytes:
    """The last key up to `end`, inclusive; empty when there is none."""
    iterator = db.iter()
    iterator.seek_for_prev(end)
    found: Any = iterator.key()
    if found is None:
        iterator.status()
    return found or b""


def pairs_from(
    db: Rdict, first: bytes, end: bytes, max_pairs: int, max_bytes: int
) -> tuple[list[bytes], list[bytes], bool]:
    """(keys, their values, whether these were all) from `first` to before `end`, in key order: at most `max_pairs`, and
    no more once they have `max_bytes`.

    Its reads do not push other blocks out of the cache. Holds the GIL for about a third of a microsecond each.
    """
    options = ReadOptions()  # as in `_some_from`, this function keeps it
    options.fill_cache(False)  # type: ignore[call-arg]
    options.set_iterate_upper_bound(end)
    items: Any = db.items(from_key=first, read_opt=options)
    keys: list[bytes] = []
    values: list[bytes] = []
    taken, step = 0, 1
    while taken < max_bytes and len(keys) < max_pairs:
        some = list(islice(items, min(step, max_pairs - len(keys))))
        if not some:
            break
        more_keys, more_values = zip(*some, strict=True)
        keys += more_keys
        values += more_values
        taken += sum(map(len, more_keys)) + sum(map(len, more_values))
        step = max(1, min(len(keys), (max_bytes - taken) * len(keys) // (taken + 1)))
    del items
    if taken > max_bytes:
        filled = accumulate(map(add, map(len, keys), map(len, values)))
        enough = 1 + next(at for at, size in enumerate(filled) if size >= max_bytes)
        del keys[enough:], values[enough:]
    iterator = db.iter(options)
    iterator.seek(keys[-1] + b"\0" if keys else first)
    following: Any = iterator.key()
    if following is None:
        iterator.status()  # a damaged block ends an iteration as the end of the data does
    del iterator
    return keys, values, following is None


def behind(db: Rdict) -> bool:
    """Whether writers of gathered entries should pause: flushes or compactions do not keep up. Costs less than a
    microsecond."""
    return number_of(db, "num-immutable-mem-table") >= LISTS - LISTS_MERGED or level0_files(db) >= LEVEL0_LIMIT


def level0_files(db: Rdict) -> int:
    return int(db.property_value("rocksdb.num-files-at-level0") or 0)


def number_of(db: Rdict, name: str) -> int:
    """One of RocksDB's own numbers, such as "num-immutable-mem-table"; 0 when it has none by that name."""
    return db.property_int_value("rocksdb." + name) or 0
