"""The only module that imports rocksdict: how the databases are opened, and what their errors become.

Why these options:

- **No write stall.** `Rdict.write` holds the GIL, so a write that RocksDB delays would stop the whole process. The
  level-0 and pending-compaction triggers are therefore out of reach, and writes say `no_slowdown`: a write that would
  wait (every memtable full and still being flushed) comes back as `Stalled` instead.
- **Bounded memory.** Memtables: `memtable_bytes` each, at most `MEMTABLES` of them. Blocks, indexes and filters all
  live in the one block cache; indexes and filters are partitioned, so a large database does not have to hold them
  whole.
- **Bounded files.** `max_open_files` table files are open at a time. RocksDB's own text logs are kept to
  two of 1 MiB.
- **No upper bound on iterators.** rocksdict's iterators do not keep alive the ReadOptions whose bound they point to,
  and closing a database leaves it open while an iterator of it exists; both are handled by the callers.
- Newest data is not compressed, as it is rewritten soon; from level 2 on it is lz4.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    Checkpoint,
    DbClosedError,
    DBCompressionType,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from krappy.errors import StorageError

__all__ = [
    "Checkpoint",
    "DbClosedError",
    "Rdict",
    "RdictIter",
    "Stalled",
    "WriteBatch",
    "WriteOptions",
    "batch",
    "failure",
    "number_of",
    "open_db",
    "write_options",
]

MEMTABLES = 4
OPEN_FILES = 256
_NEVER = 1 << 30  # a count of level-0 files that is never reached


class Stalled(StorageError):
    """RocksDB would have delayed the write. It was not applied; the same write succeeds once a flush is done."""


def failure(what: str, error: Exception) -> Exception:
    """What to raise for an error that came out of rocksdict, which raises bare Exception; others stay as they are."""
    if isinstance(error, DbClosedError):
        return StorageError(f"{what}: the database is closed")
    if type(error) is not Exception and not isinstance(error, OSError):
        return error
    kind = Stalled if "Write stall" in str(error) else StorageError
    return kind(f"{what}: {error}")


def open_db(folder: Path, *, cache_bytes: int, memtable_bytes: int, wal: bool) -> Rdict:
    """Opens the database in `folder`, or creates it. Raises StorageError for anything that is not one, or is damaged.

    `cache_bytes`: of the block cache; `memtable_bytes`: of one memtable. `wal`: whether writes will go through a
    write-ahead log.
    """
    cache = Cache(cache_bytes)
    tables = BlockBasedOptions()
    tables.set_block_cache(cache)
    tables.set_block_size(8 << 10)
    tables.set_bloom_filter(10, False)
    tables.set_format_version(5)
    tables.set_index_type(BlockBasedIndexType.two_level_index_search())
    tables.set_partition_filters(True)
    tables.set_metadata_block_size(4 << 10)
    tables.set_cache_index_and_filter_blocks(True)
    tables.set_pin_top_level_index_and_filter(True)
    tables.set_pin_l0_filter_and_index_blocks_in_cache(True)

    options = Options(raw_mode=True)
    options.set_block_based_table_factory(tables)
    options.set_write_buffer_size(memtable_bytes)
    options.set_max_write_buffer_number(MEMTABLES)
    options.set_level_zero_file_num_compaction_trigger(4)
    options.set_level_zero_slowdown_writes_trigger(_NEVER)
    options.set_level_zero_stop_writes_trigger(_NEVER)
    options.set_soft_pending_compaction_bytes_limit(0)
    options.set_hard_pending_compaction_bytes_limit(0)
    options.set_max_bytes_for_level_base(max(4 * memtable_bytes, 64 << 20))
    options.set_target_file_size_base(max(memtable_bytes, 32 << 20))
    options.set_compression_per_level(
        [DBCompressionType.none()] * 2 + [DBCompressionType.lz4()] * 5,
    )
    options.set_max_background_jobs(2)
    options.set_max_open_files(OPEN_FILES)
    options.set_keep_log_file_num(2)
    options.set_max_log_file_size(1 << 20)
    options.set_max_manifest_file_size(16 << 20)
    options.set_stats_dump_period_sec(0)
    options.set_stats_persist_period_sec(0)
    options.set_bytes_per_sync(1 << 20)
    if wal:
        options.set_max_total_wal_size(4 * memtable_bytes)
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "CURRENT").is_file():
        raise StorageError(f"{folder} is not empty and has no database in it: its file CURRENT is missing")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Options of the one column family as well: without them rocksdict takes those that the last opening stored.
        return Rdict(os.fspath(folder), options, {"default": options})
    except Exception as error:
        raise StorageError(f"the database in {folder} can't be opened: {error}") from error


def remove_db(folder: Path) -> None:
    """Deletes a database that is not open."""
    shutil.rmtree(folder, ignore_errors=True)


def batch() -> WriteBatch:
    return WriteBatch(raw_mode=True)


def write_options(*, wal: bool, no_slowdown: bool = False) -> WriteOptions:
    options = WriteOptions()
    setattr(options, "disable_wal", not wal)  # noqa: B010 - the stub wrongly says that it is a method
    options.no_slowdown = no_slowdown
    return options


def number_of(db: Rdict, name: str) -> int:
    """One of RocksDB's own numbers, such as "num-immutable-mem-table"; 0 when it has none by that name."""
    return db.property_int_value("rocksdb." + name) or 0
