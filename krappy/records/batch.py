"""RecordBatch v2 (KIP-98, `DefaultRecordBatch.java`): the unit that producers send, the log stores, consumers get.

    0  base_offset i64    8  length i32    12 leader_epoch i32   16 magic i8   17 crc u32 (CRC-32C of all from 21 on)
    21 attributes i16     23 last_offset_delta i32               27 base_timestamp i64   35 max_timestamp i64
    43 producer_id i64    51 producer_epoch i16                  53 base_sequence i32    57 count i32
    61 the records, compressed as a whole when attributes say so
    Attributes: 0-2 codec, 3 LogAppendTime, 4 transactional, 5 control, 6 base_timestamp is a delete horizon (KIP-534)

The checksum does not cover the first 21 bytes, so a broker sets offsets and leader epoch without a new one (`stamp`).
Rules of this file: pure functions of bytes; for any bytes, readers raise only CorruptBatch and UnsupportedCompression,
and never read outside their batch.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Container, Iterator, Sequence
from itertools import compress, pairwise
from typing import NamedTuple

from krappy.errors import CorruptBatch
from krappy.records import codecs
from krappy.records import reader as record_reader
from krappy.records.checksum import crc32c
from krappy.records.codecs import ANY, DEFAULT_LIMIT
from krappy.records.reader import Columns as Columns
from krappy.types import Headers

Buffer = bytes | bytearray | memoryview

HEADER_SIZE = 61
STAMPED = 16  # bytes at the head of a batch that `stamp` replaces
MAGIC = 2
LENGTH_END = 12  # bytes of base offset and length, which `length` does not count
CRC_START = 21  # the first byte that the checksum covers
CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
MAX_I64 = 2**63 - 1
RECORD_COST = 64  # bytes of memory, about, of a record or a header that was read, beside its content

# The layout of the header, and of parts of it that are read alone when many batches are walked over.
_HEADER = struct.Struct(">qiibIhiqqqhii")
_STAMP = struct.Struct(">qii")
_CRC = struct.Struct(">I")
_MEASURE = struct.Struct(">8xi4xbI2xi30xi")  # length, magic, crc, last_offset_delta, count
_COVERED = struct.Struct(">hiqqqhii")  # the part under the checksum
_HEAD = struct.Struct(">8xi4xb4xh")  # length, magic, attributes
BEGINS = struct.Struct(">qi")  # base offset, length
REACHES = struct.Struct(">qi11xi")  # base offset, length, last offset delta
HOLDS = struct.Struct(">qi9xhi30xi")  # base offset, length, attributes, last offset delta, count


class BatchHeader(NamedTuple):
    base_offset: int
    length: int  # bytes after this field
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int  # ms
    max_timestamp: int  # ms
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # records; tuple's own method of this name is not needed

    @property
    def size(self) -> int:
        """Bytes of the whole batch."""
        return self.length + LENGTH_END

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        return self.base_offset + self.last_offset_delta + 1

    @property
    def dense(self) -> bool:
        """Whether every offset has its record: true when produced, until the cleaner removes some."""
        return self.count == self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        """0 to 4 as in `krappy.records.codecs`; 5 to 7 do not exist yet."""
        return self.attributes & CODEC_MASK

    @property
    def compressed(self) -> bool:
        return self.attributes & CODEC_MASK != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def log_append_time(self) -> bool:
        """Whether all records have `max_timestamp` as their timestamp, whatever their deltas say."""
        return self.attributes & LOG_APPEND_TIME != 0

    @property
    def delete_horizon(self) -> int | None:
        """When (ms) the cleaner may remove the batch's tombstones; None: no cleaning has seen them yet (KIP-534)."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


def read_header(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`. Raises CorruptBatch when it is cut short or invalid; verifies no checksum."""
    try:
        header = BatchHeader(*_HEADER.unpack_from(buf, position))
    except struct.error:
        raise CorruptBatch(f"a batch header cut short at position {position}") from None
    if header.magic != MAGIC:
        raise CorruptBatch(f"magic {header.magic} at position {position}: only RecordBatch v2 is served")
    if header.length < HEADER_SIZE - LENGTH_END:
        raise CorruptBatch(f"a batch of length {header.length} at position {position}")
    if (
        header.count < 0
        or header.last_offset_delta < 0
        or header.count > header.last_offset_delta + 1
        or not 0 <= header.base_offset <= MAX_I64 - header.last_offset_delta - 1
    ):
        raise CorruptBatch(
            f"a batch at position {position} with base offset {header.base_offset}, last offset delta "
            f"{header.last_offset_delta}, {header.count} records"
        )
    return header


def peek(buf: Buffer) -> tuple[int, int, int]:
    """(size in bytes, magic, codec) that the batch at the head of `buf`, of HEADER_SIZE bytes or more, says it has.
    Verifies nothing."""
    length, magic, attributes = _HEAD.unpack_from(buf)
    return length + LENGTH_END, magic, attributes & CODEC_MASK


def check(buf: Buffer, position: int = 0) -> BatchHeader:
    """The header of the whole batch at `position`, its size and CRC-32C verified. Raises CorruptBatch."""
    header = read_header(buf, position)
    end = position + header.length + LENGTH_END
    if end > len(buf):
        raise CorruptBatch(f"a batch of {header.size} bytes at position {position} of {len(buf)}: cut short")
    with memoryview(buf) as view, view[position + CRC_START : end] as covered:
        crc = crc32c(covered)
    if crc != header.crc:
        raise CorruptBatch(
            f"a batch at position {position}, base offset {header.base_offset}: "
            f"CRC-32C {crc:08x}, {header.crc:08x} stored"
        )
    return header


def measure(view: memoryview, position: int) -> tuple[int, int, int]:
    """(size in bytes, last offset delta, records) of the whole batch at `position`.

    Verifies and raises as `check` does, but for the base offset, at a third of the cost: for passing batches on.
    """
    try:
        length, magic, crc, last_offset_delta, count = _MEASURE.unpack_from(view, position)
    except struct.error:
        length = magic = crc = last_offset_delta = count = -1
    end = position + length + LENGTH_END
    if (
        magic == MAGIC
        and length >= HEADER_SIZE - LENGTH_END
        and end <= len(view)
        and 0 <= count <= last_offset_delta + 1
        and last_offset_delta >= 0
        and crc32c(view[position + CRC_START : end]) == crc
    ):
        return end - position, last_offset_delta, count
    check(view, position)  # raises, and says why
    raise CorruptBatch(f"a batch at position {position} that can't be measured")


def stamp(header: BatchHeader, base_offset: int, leader_epoch: int) -> bytes:
    """The first STAMPED bytes of the batch with these offsets: write them, then `batch[STAMPED:]`."""
    return _STAMP.pack(base_offset, header.length, leader_epoch)


def read_stamp(buf: Buffer) -> tuple[int, int]:
    """(base offset, leader epoch) of the batch at the head of `buf`, of STAMPED bytes or more. Verifies nothing."""
    base_offset, _, leader_epoch = _STAMP.unpack_from(buf)
    return base_offset, leader_epoch


def split(buf: Buffer) -> Iterator[tuple[BatchHeader, memoryview]]:
    """Each whole batch in `buf`, checked. One that is cut at the end is ignored. Raises CorruptBatch."""
    view = memoryview(buf)
    position, end = 0, len(view)
    while end - position >= LENGTH_END:
        length = int.from_bytes(view[position + 8 : position + 12], "big", signed=True)
        if length + LENGTH_END > end - position:
            return
        header = check(view, position)
        yield header, view[position : position + header.size]
        position += header.size


def encode(
    keys: Sequence[bytes | None] | None,
    values: Sequence[bytes | None],
    *,
    timestamps: Sequence[int] | int,
    headers: Sequence[Headers] | None = None,
    codec: int = 0,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    base_offset: int = 0,
    offsets: Sequence[int] | None = None,
    leader_epoch: int = -1,
    transactional: bool = False,
    control: bool = False,
    log_append_time: bool = False,
) -> bytes:
    """One batch of at least one record.

    `keys` None: all null. `timestamps` in ms: one for each record, or one for all. `offsets`: absolute, ascending,
    from `base_offset` on; None: consecutive. Raises ValueError for columns of different lengths, no records,
    offsets that do not ascend, or numbers out of range.
    """
    from krappy.records import writer  # imported only here: a broker reads records, and seldom writes them itself

    count = len(values)
    if (keys is not None and len(keys) != count) or (headers is not None and len(headers) != count):
        raise ValueError("columns of different lengths")
    if not count:
        raise ValueError("a batch without records")
    if base_offset < 0:
        raise ValueError(f"base offset {base_offset}")
    last_delta = count - 1
    deltas: list[bytes] | None = None
    if offsets is not None:
        if len(offsets) != count:
            raise ValueError("columns of different lengths")
        if offsets[0] < base_offset or any(map(operator.ge, offsets, offsets[1:])):
            raise ValueError("offsets that do not ascend from the base offset")
        last_delta = offsets[-1] - base_offset
        if last_delta != count - 1:
            deltas = [writer.encoded(offset - base_offset) for offset in offsets]
    times: list[bytes] | None = None
    if isinstance(timestamps, int):
        base_timestamp = max_timestamp = timestamps
    else:
        if len(timestamps) != count:
            raise ValueError("columns of different lengths")
        distinct = set(timestamps)
        base_timestamp, max_timestamp = timestamps[0], max(distinct)
        earliest = min(distinct)
        if max_timestamp - earliest > MAX_I64:  # then the nearest value whose deltas to both ends fit 64 bits
            base_timestamp = min(max(base_timestamp, max_timestamp - MAX_I64), earliest + MAX_I64 + 1)
        if len(distinct) > 1:
            table = {timestamp: writer.encoded(timestamp - base_timestamp) for timestamp in distinct}
            times = list(map(table.__getitem__, timestamps))
    records = writer.write(keys, values, times, headers, deltas)
    attributes = (
        codec
        | (LOG_APPEND_TIME if log_append_time else 0)
        | (TRANSACTIONAL if transactional else 0)
        | (CONTROL if control else 0)
    )
    payload = codecs.compress(codec, records)
    try:
        covered = _COVERED.pack(
            attributes, last_delta, base_timestamp, max_timestamp, producer_id, producer_epoch, base_sequence, count
        )
        head = _STAMP.pack(base_offset, HEADER_SIZE - LENGTH_END + len(payload), leader_epoch)
    except struct.error as error:
        raise ValueError(f"out of range: {error}") from None
    return _assemble(head, covered, payload)


def _assemble(head: bytes, covered: bytes, payload: Buffer) -> bytes:
    crc = crc32c(payload, crc32c(covered))
    return b"".join((head, b"\x02", _CRC.pack(crc), covered, payload))


def _again(header: BatchHeader, covered: bytes, payload: Buffer) -> bytes:
    """The batch with other bytes under the checksum, and another payload."""
    head = _STAMP.pack(header.base_offset, HEADER_SIZE - LENGTH_END + len(payload), header.leader_epoch)
    return _assemble(head, covered, payload)


def _records(batch: Buffer, limit: int, parts: int = ANY) -> tuple[BatchHeader, bytes, int]:
    """(header, a buffer with the uncompressed records, where in it they start)."""
    header = read_header(batch)
    if header.size != len(batch):
        raise CorruptBatch(f"a batch of {header.size} bytes in {len(batch)}")
    if header.count * RECORD_COST > limit:
        raise CorruptBatch(
            f"a batch of {header.count} records; the limit of {limit} bytes allows {limit // RECORD_COST}"
        )
    if not header.attributes & CODEC_MASK:
        return header, batch if type(batch) is bytes else bytes(batch), HEADER_SIZE
    if not header.count and header.size == HEADER_SIZE:
        return header, b"", 0
    with memoryview(batch) as view, view[HEADER_SIZE:] as payload:
        return header, codecs.decompress(header.attributes & CODEC_MASK, payload, limit, parts), 0


def decode(batch: Buffer, *, limit: int = DEFAULT_LIMIT, keyed: bool = False, parts: int = ANY) -> Columns:
    """The records of one whole batch, offsets absolute.

    `limit`: bytes that a compressed batch may decompress to, and that the records, and the headers, of any batch may
    take in memory at RECORD_COST each. `parts`: as for `codecs.decompress`. `keyed`: values of records without a key
    may be None, which is faster. Raises CorruptBatch for any malformed structure, UnsupportedCompression for an unknown
    codec. It does not verify the checksum: see `check`.
    """
    return _read(*_records(batch, limit, parts), limit, keyed)


def _read(header: BatchHeader, buf: bytes, position: int, limit: int, keyed: bool = False) -> Columns:
    one_time = header.attributes & LOG_APPEND_TIME != 0
    time = header.max_timestamp if one_time else header.base_timestamp
    return record_reader.read(
        buf,
        position,
        header.count,
        header.base_offset,
        header.last_offset_delta,
        time,
        one_time,
        limit // RECORD_COST,
        keyed,
    )


class Validated(NamedTuple):
    latest: int  # the largest timestamp (ms) of the records; a producer's header may state another
    negative: int  # the smallest timestamp if that is below 0, else 0
    mentioned: bool  # whether the bytes to look for are anywhere in the records


def validate(batch: Buffer, *, limit: int = DEFAULT_LIMIT, mention: bytes = b"", parts: int = ANY) -> Validated:
    """Raises exactly what `decode` would, without building its columns. `mention`: bytes to look for in the records."""
    header, buf, position = _records(batch, limit, parts)
    negative, latest = _validate(header, buf, position, limit)
    return Validated(latest, negative, bool(mention) and mention in buf)


def _validate(header: BatchHeader, buf: bytes, position: int, limit: int) -> tuple[int, int]:
    """(the smallest timestamp, or 0 if none is below 0; the largest)."""
    if not header.dense:  # producers send only dense ones
        times = _read(header, buf, position, limit).timestamps
        return min([0, *times]), max(times, default=header.max_timestamp)
    base = 0 if header.log_append_time else header.base_timestamp
    found = record_reader.validate(buf, position, header.count, base, limit // RECORD_COST)
    return (min(0, header.max_timestamp), header.max_timestamp) if header.log_append_time else found


def offsets(batch: Buffer, *, limit: int = DEFAULT_LIMIT) -> Sequence[int]:
    """The offsets of the records of a batch that was validated before, as all in the log were.

    The records of a dense batch are not read. Raises as `decode` does.
    """
    header = read_header(batch)
    if header.dense:
        return range(header.base_offset, header.base_offset + header.count)
    return decode(batch, limit=limit).offsets


def keep(batch: Buffer, offsets: Container[int], *, limit: int = DEFAULT_LIMIT) -> bytes:
    """The batch with only the records at `offsets`; the same bytes when that is all of them.

    Base offset, last offset delta, timestamps and producer fields stay, so the records' bytes do too. A batch that
    loses every record keeps its header, as in Kafka's cleaner (`DefaultRecordBatch.writeEmptyHeader`): its offsets and
    its producer's sequence must not be forgotten. Raises as `decode` does.
    """
    header, buf, position = _records(batch, limit)
    if header.dense:
        _validate(header, buf, position, limit)
        here: Sequence[int] = range(header.base_offset, header.base_offset + header.count)
    else:
        here = _read(header, buf, position, limit).offsets
    kept = [offset in offsets for offset in here]
    count = sum(kept)
    if count == header.count:
        return batch if type(batch) is bytes else bytes(batch)
    bounds = record_reader.bounds(buf, position, header.count)
    records = b"".join([buf[start:end] for start, end in compress(pairwise(bounds), kept)])
    attributes = header.attributes if count else header.attributes & ~CODEC_MASK
    payload = codecs.compress(attributes & CODEC_MASK, records)
    covered = _COVERED.pack(attributes, *header[6:12], count)
    return _again(header, covered, payload)


def emptied(header: BatchHeader) -> bytes:
    """What `keep` leaves of a batch that loses every record, made from its header alone."""
    covered = _COVERED.pack(header.attributes & ~CODEC_MASK, *header[6:12], 0)
    return _again(header, covered, b"")


def with_delete_horizon(batch: Buffer, horizon: int, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """The batch with this delete horizon (ms) as its base timestamp; its records keep their timestamps (KIP-534).

    Raises as `decode` does, and ValueError when a timestamp is too far from the horizon for a 64-bit delta.
    """
    from krappy.records import writer

    header, buf, position = _records(batch, limit)
    columns = _read(header, buf, position, limit)
    deltas = [0] * len(columns) if header.log_append_time else [time - horizon for time in columns.timestamps]
    if deltas and min(deltas) < -MAX_I64 - 1:
        raise ValueError(f"timestamps too far from {horizon}")
    times = list(map(writer.encoded, deltas))
    places = [writer.encoded(offset - header.base_offset) for offset in columns.offsets]
    payload = codecs.compress(header.codec, writer.write(columns.keys, columns.values, times, columns.headers, places))
    covered = _COVERED.pack(header.attributes | DELETE_HORIZON, header.last_offset_delta, horizon, *header[8:13])
    return _again(header, covered, payload)


def recompress(batch: Buffer, codec: int, *, limit: int = DEFAULT_LIMIT) -> bytes:
    """The batch with its records compressed by `codec` (0: not at all); the rest stays. Raises as `decode` does."""
    header, buf, position = _records(batch, limit)
    payload = codecs.compress(codec, buf[position:])
    covered = _COVERED.pack(header.attributes & ~CODEC_MASK | codec, *header[6:13])
    return _again(header, covered, payload)


def in_transaction(batch: Buffer, producer_id: int, producer_epoch: int, base_sequence: int) -> bytes:
    """The batch as part of this producer's transaction, with a new checksum; its records are not read."""
    header = read_header(batch)
    covered = _COVERED.pack(
        header.attributes | TRANSACTIONAL, *header[6:9], producer_id, producer_epoch, base_sequence, header.count
    )
    with memoryview(batch) as view, view[HEADER_SIZE : header.size] as payload:
        return _assemble(bytes(view[:STAMPED]), covered, payload)


def restamp_time(batch: Buffer, timestamp: int) -> bytes:
    """The batch as a topic with message.timestamp.type=LogAppendTime stores it: all records have `timestamp` (ms)."""
    return _with_max_timestamp(batch, LOG_APPEND_TIME, timestamp)


def correct_max_timestamp(batch: Buffer, timestamp: int) -> bytes:
    """The batch with `timestamp` (ms) as its max timestamp, which a producer may have stated wrongly."""
    return _with_max_timestamp(batch, 0, timestamp)


def _with_max_timestamp(batch: Buffer, attributes: int, timestamp: int) -> bytes:
    header = read_header(batch)
    if header.size != len(batch):
        raise CorruptBatch(f"a batch of {header.size} bytes in {len(batch)}")
    covered = _COVERED.pack(header.attributes | attributes, *header[6:8], timestamp, *header[9:13])
    with memoryview(batch) as view:
        return _assemble(bytes(view[:STAMPED]), covered, bytes(view[HEADER_SIZE:]))


def nothing(first: int, end: int) -> bytes:
    """A batch without records over the offsets from `first` to before `end`, as Kafka's cleaner leaves them.

    Consumers go on behind it (KAFKA-5443).
    """
    covered = _COVERED.pack(0, min(end - first, 2**31) - 1, -1, -1, -1, -1, -1, 0)
    head = BEGINS.pack(first, HEADER_SIZE - LENGTH_END) + struct.pack(">ib", -1, MAGIC)
    return head + _CRC.pack(crc32c(covered)) + covered
