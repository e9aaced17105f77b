"""Producers, and what they send.

Events of one registration are stored in the order in which they were sent. An answer comes once the events are on
disk.

**Which partition.** A client that sends batches chooses: by convention `(murmur2(key) & 0x7fffffff) % partitions`,
Kafka's default partitioner, for an event with a key, so that lookups find it, and any partition in turn for one
without. `Message` does this by itself. It is the 32-bit MurmurHash2 with the seed 0x9747b28c, which reads the key four
bytes at a time, little-endian; `murmur2("foobar")` is 0xd0e47bbe, `murmur2("abc")` is 0x1c94221b, and of no bytes
0x106e08d9.

**Conditions.** `expect` makes a publish conditional on its key: an offset says that the key's latest event must be the
one there, -1 that the key must have no value (never written, or deleted). Otherwise the answer is OFFSET_MISMATCH with
`current` in its details (an offset, or nil for absent), and nothing is stored. Where the key has a newer event in
another partition (see strays, below), the condition does not hold; the error's text says which partition that is. Nor
does it where another partition has an event of the key, its deletion say, with a later timestamp than the one
published, of which the table would take no notice then.

**Exactly once.** A record batch with a producer id carries an epoch and the sequence number of its first record.
Sequences count the records of that producer in that partition from 0 and wrap after 2^31 - 1. The broker refuses a gap
with OUT_OF_ORDER_SEQUENCE_NUMBER, and answers a batch that it has stored already with its original offset, if it is
one of the last five. It takes batches under ids that it has given, and no others. So: at most five batches of a
partition unanswered; after a lost connection register again with the same id and send every unanswered batch again,
the same bytes in the same order. It also survives a restart of the broker.
"""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Bulk, Expect, HeaderList, Range, Request, Timestamp


class ProducerRegistration(Request, kind=1):
    """Says that this connection will publish to a topic. A topic that does not exist is made, if the broker is so
    configured (it is by default), else the answer is UNKNOWN_TOPIC.

    With `idempotent` the broker gives a producer id, to be written into every record batch together with an epoch and
    sequence numbers; see *Exactly once* below. A client that reconnects registers again with the id and epoch it has.
    """

    topic: str
    name: str | None = None  # for people: shown beside the connection
    idempotent: bool = False  # asks for a producer id
    producer_id: Expect = -1  # an id held already, with `idempotent`
    producer_epoch: Annotated[int, Range(-1, 2**15 - 1)] = -1  # its epoch


class ProducerRegistered(Answer, kind=1):
    handle: U32  # names this registration in later messages
    partitions: U32  # how many the topic has: 0 to this - 1
    producer_id: int  # -1 without `idempotent`
    producer_epoch: int  # -1 without `idempotent`
    max_message_bytes: int  # the largest record batch that the topic takes


class Message(Request, kind=3):
    """One event: the simple way. A few thousand a second on one connection, more when several are sent before the first
    is answered.
    """

    handle: U32  # of a producer
    payload: bytes | None  # the value; nil with a key deletes the key
    key: bytes | None = None  # nil: the event is in the log, but in no table
    timestamp: Timestamp | None = None  # nil: the broker's time
    headers: HeaderList | None = None  # of the event
    partition: U32 | None = None  # nil: by the key, or in turn
    expect: Expect | None = None  # a condition, see above


class MessageStored(Answer, kind=3):
    partition: int  # where it was stored
    offset: int  # its offset
    timestamp: int  # its timestamp


class Batch(Request, kind=5):
    """Many events at once: the fast way."""

    handle: U32  # of a producer
    partition: U32  # of the topic
    records: Bulk  # exactly one record batch, see *Record batches*
    # [[u32, offset or -1], …]: conditions: (index of the record in the batch, offset or -1); all hold, or nothing
    # is stored
    expect: list[tuple[U32, Expect]] | None = None


class BatchStored(Answer, kind=5):
    offset: int  # of the first record; the others follow without a gap
    timestamp: int  # the largest in the batch; the broker's own time if the topic is so configured
