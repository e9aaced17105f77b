"""Every constant of the log's bytes on disk; `FORMAT.md` explains them. Nothing here may change its meaning.

`.log`, `.index` and `.timeindex` are Kafka's own formats, so that its tools read them; the others are Krappy's.
"""

from __future__ import annotations

import struct

DATA_FORMAT = 3  # of a whole data folder, stored in its catalog: raised when an older broker would misread the data

LOG = ".log"  # whole record batches, one after another
INDEX = ".index"  # sparse: last offset of a batch -> where the batch starts
TIME_INDEX = ".timeindex"  # sparse: largest timestamp so far -> last offset of the batch that has it
SUMS = ".sums"  # of a cleaned segment: the checksum of each block of its `.log`
DERIVED = (INDEX, TIME_INDEX, SUMS)
SUFFIXES = (LOG, *DERIVED)
CLEANED = ".cleaned"  # behind the name of a file that the cleaner is still writing: deleted on open
SWAP = ".swap"  # behind the name of a cleaned segment that replaces others: finished on open
CHECKPOINT = "checkpoint"
IDENTITY = "partition.metadata"  # Kafka's name and form
CHECKPOINT_COPY = "checkpoint.copy"  # the same bytes: read when the first is damaged or missing
TEMPORARY = ".tmp"  # behind the name of a file that is not renamed into place yet: deleted on open
TROUBLE = "trouble"  # a note that events of the log are lost or damaged
SET_ASIDE = ".cut"  # behind the name of a copy of damaged bytes that recovery removed: kept for people

NAME_DIGITS = 20  # a segment's files are named by the first offset that it may hold
MAX_RELATIVE = 2**31 - 1  # offsets and positions in indexes are 31 bits: a segment spans no more of either

SUMS_BLOCK = 4096  # bytes of `.log` under one checksum
INDEX_ENTRY = struct.Struct(">II")  # offset minus base offset; position
TIME_ENTRY = struct.Struct(">qI")  # ms since the epoch; offset minus base offset

REACHED = "reached"  # of the data folder: how far each log has been on its disk
REACHED_BODY = struct.Struct(">16sIiqq")  # topic id; partition; leader epoch; offset; high watermark
REACHED_CRC = struct.Struct(">I")  # CRC-32 (zlib's) of the body, behind it
REACHED_SIZE = 64  # bytes of a record, the rest zeros: it is never in two sectors

PULSE = "pulse"  # of the data folder: how long a broker of a cluster has used it
PULSE_COUNT = struct.Struct(">Q")  # the count; behind it, the version of the lease as one more number, plus 1

CHECKPOINT_MAGIC = b"KRAPPYC1"
CHECKPOINT_HEAD = struct.Struct(">8sII")  # magic, CRC-32 (zlib's) of the body, size of the body: one msgpack map


def file_name(base_offset: int, suffix: str) -> str:
    """The name of a segment's file: `00000000000000000042.log`."""
    return f"{base_offset:0{NAME_DIGITS}d}{suffix}"


def base_offset(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None when this is no segment's file with that suffix."""
    digits = name.removesuffix(suffix)
    if len(digits) == NAME_DIGITS and name.endswith(suffix) and digits.isascii() and digits.isdigit():
        return int(digits)
    return None
