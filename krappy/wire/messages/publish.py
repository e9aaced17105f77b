"""Producers, and what they send."""

from __future__ import annotations

from typing import Annotated

from krappy.wire.schema import U32, Answer, Bulk, Expect, HeaderList, Range, Request, Timestamp


class ProducerRegistration(Request, kind=1):
    topic: str
    name: str | None = None  # for people: shown in `connections`
    idempotent: bool = False  # asks for a producer id and epoch for Batch
    producer_id: Expect = -1  # with `idempotent`: the id held already (a client that reconnects)
    producer_epoch: Annotated[int, Range(-1, 2**15 - 1)] = -1


class ProducerRegistered(Answer, kind=1):
    handle: U32
    partitions: U32
    producer_id: int
    producer_epoch: int
    max_message_bytes: int  # of one record batch


class Message(Request, kind=3):
    handle: U32
    payload: bytes | None
    key: bytes | None = None
    timestamp: Timestamp | None = None
    headers: HeaderList | None = None
    partition: U32 | None = None  # None: by the key's murmur2, or round-robin
    expect: Expect | None = None  # the offset that the key must be at; -1: absent


class MessageStored(Answer, kind=3):
    partition: int
    offset: int
    timestamp: int


class Batch(Request, kind=5):
    handle: U32
    partition: U32
    records: Bulk  # exactly one RecordBatch v2
    expect: list[tuple[U32, Expect]] | None = None  # (index in the batch, offset or -1); all hold or none is stored


class BatchStored(Answer, kind=5):
    offset: int  # of the batch's first record
    timestamp: int  # the batch's max timestamp
