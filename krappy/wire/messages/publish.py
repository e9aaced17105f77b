"""Producers, and their events.

Events of one registration are stored in the order in which they were sent. The answer comes when the events are on
disk.

**Which partition.** A client that sends batches chooses the partition. By convention, an event with a key goes to
`(murmur2(key) & 0x7fffffff) % partitions`, as by Kafka's default partitioner, so that lookups find it; events without a
key go to the partitions in turn. `Message` does this by itself. `murmur2` is the 32-bit MurmurHash2 with the seed
0x9747b28c, which reads the key four bytes at a time, little-endian: `murmur2("foobar")` is 0xd0e47bbe,
`murmur2("abc")` is 0x1c94221b, and that of no bytes is 0x106e08d9. The broker does not hash a key of more than 1 MiB,
which would hold up others: a request that needs such a key's partition, and does not name it, is refused
(INVALID_REQUEST). If the keys of a batch that have 1 KiB or more have more than 1 MiB together, they count as strays
(see below).

**Conditions.** `expect` makes a publish conditional on its key. An offset means that the key's latest event must be at
that offset; -1 means that the key must have no value (never written, or deleted). If the condition does not hold, the
answer is OFFSET_MISMATCH with `current` in its details (an offset, or nil for absent), and nothing is stored. For a
batch the details also have the record's `index` and, if more conditions do not hold, `others`: up to 99 of [index,
text, current]. A client may send the rest of the batch again. When a topic has strays (see below), a condition also
fails if another partition has a newer event of the key, or one with a later timestamp than the event to publish, even a
tombstone: the table would ignore the published event. The error's text names that partition.

**Exactly once.** A record batch with a producer id carries an epoch and the sequence number of its first record.
Sequences count the records of that producer in that partition from 0, and wrap after 2^31 - 1. The broker refuses a gap
with OUT_OF_ORDER_SEQUENCE_NUMBER. If a batch is one of the last five that the broker has stored, the answer has the
original offset. The broker takes only batches under ids that it has given. So a client leaves at most five batches of a
partition unanswered; after a lost connection it registers again with the same id, and sends every unanswered batch
again, the same bytes in the same order. This works across a restart of the broker, too.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Bulk, Expect, HeaderList, Range, Request, Timestamp


class ProducerRegistration(Request, kind=1):
    """Registers a producer to a topic. A topic that does not exist is created if the broker allows it (by default it
    does); otherwise the answer is UNKNOWN_TOPIC.

    With `idempotent` the broker gives a producer id, to be written into every record batch together with an epoch and
    sequence numbers; see *Exactly once* above. A client that reconnects registers again with its id and epoch.
    """

    topic: str
    name: str | None = None  # for people: shown beside the connection; 1,000 characters at most
    idempotent: bool = False  # asks for a producer id
    producer_id: Expect = -1  # with `idempotent`: an id that the client has already
    producer_epoch: Annotated[int, Range(-1, 2**15 - 1)] = -1  # the epoch of that id


class ProducerRegistered(Answer, kind=1):
    handle: U32  # names this registration in later messages
    partitions: U32  # how many the topic has: 0 to this - 1
    producer_id: int  # -1 without `idempotent`
    producer_epoch: int  # -1 without `idempotent`
    max_message_bytes: int  # the largest record batch that the topic takes


class Message(Request, kind=3):
    """Publishes one event: the simple way. It is good for a few thousand events a second on one connection, and more
    when several are sent before the first is answered.
    """

    handle: U32  # of a producer
    payload: bytes | None  # the value; nil with a key deletes the key
    key: bytes | None = None  # nil: the event is in the log, but in no table
    timestamp: Timestamp | None = None  # nil: the broker's time
    headers: HeaderList | None = None  # of the event
    partition: U32 | None = None  # nil: by the key; without a key the partitions in turn
    expect: Expect | None = None  # a condition, see above


class MessageStored(Answer, kind=3):
    partition: int  # where it was stored
    offset: int  # its offset
    timestamp: int  # its timestamp


class Batch(Request, kind=5):
    """Publishes many events at once: the fast way."""

    handle: U32  # of a producer
    partition: U32  # of the topic
    records: Bulk  # exactly one record batch, see *Record batches*
    # [[u32, offset or -1], …]: conditions, by the index of the record in the batch. If one does not hold, nothing is
    # stored
    expect: list[tuple[U32, Expect]] | None = None


class BatchStored(Answer, kind=5):
    offset: int  # of the first record; the others follow without a gap
    timestamp: int  # the largest in the batch; the broker's time if the topic has message.timestamp.type=LogAppendTime
