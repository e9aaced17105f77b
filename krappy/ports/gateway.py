"""The port to the partitions that other brokers of the cluster lead and the groups that they coordinate, for whoever
must serve a request at any broker.

The broker asks a partition's leader itself, as a client: one hop. A leader that is asked so never asks another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from krappy.ports.groups import GroupFacts, Range
from krappy.types import Entry, Receipt, Record


class PartitionTold(Protocol):
    """A partition as its leader describes it. Offsets are -1 if the leader can't be reached."""

    @property
    def partition(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def high_watermark(self) -> int: ...
    @property
    def last_stable_offset(self) -> int: ...
    @property
    def applied(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def segments(self) -> int: ...
    @property
    def failed(self) -> str | None: ...
    @property
    def view_failed(self) -> str | None: ...


class WatchElsewhere(Protocol):
    """A watch of a table over several brokers."""

    @property
    def offsets(self) -> Mapping[int, int] | None:
        """By partition, the offset after the last event; None while the snapshot is incomplete."""

    async def more(self) -> list[Any]:
        """The next entries; an item without a key is the end of the snapshot. Empty: only `offsets` have moved, because
        no event that came is of the range."""

    def close(self) -> None: ...


class GatewayGroupsPort(Protocol):
    """The groups of the whole cluster. Each method raises what the coordinator raises, ConnectionLost and
    RequestTimeout."""

    async def all(self) -> list[GroupFacts]:
        """Without their members."""

    async def describe(self, name: str) -> GroupFacts: ...
    async def reset(
        self,
        name: str,
        topic: str | None,
        partitions: Sequence[int] | None,
        start: str,
        start_at: int | None,
        *,
        dry_run: bool,
        owner: str,
    ) -> list[Range]:
        """`owner`: for whom it counts (`krappy.ports.audit.whose`)."""

    async def delete(self, name: str) -> None: ...


class GatewayPort(Protocol):
    """Each method raises what the leader raises, NotLeader if nobody leads, ConnectionLost and RequestTimeout."""

    @property
    def groups(self) -> GatewayGroupsPort: ...

    async def describe(self, topics: Sequence[str]) -> Mapping[str, Sequence[PartitionTold]]:
        """The partitions of topics by name, each as its leader describes it, in the order of their indexes."""

    async def read(self, topic: str, partition: int, start: int, end: int, max_bytes: int) -> tuple[Any, int]:
        """(batches from `start` on, where the next read starts). They may begin before `start`, and go past `end`,
        which is at most the last stable offset."""

    async def offsets_at(self, topic: str, timestamp: int) -> Mapping[int, int]:
        """By partition, the offset of the first event at or after a time (ms)."""

    async def get(self, topic: str, key: bytes, partition: int | None, min_offset: int | None) -> Entry | None: ...
    async def get_many(self, topic: str, keys: Sequence[bytes], partition: int | None) -> Sequence[Entry | None]: ...
    async def scan(
        self, topic: str, partition: int, start: bytes, end: bytes | None, *, tombstones: bool, limit: int, room: int
    ) -> tuple[list[Entry], int, bool]:
        """(the first entries in the order of keys, the offset that they are as of, whether these are all). `limit`: of
        entries; `room`: bytes, about."""

    async def history(self, topic: str, key: bytes, partition: int, start: int) -> tuple[list[Entry], int | None]:
        """A page of a key's events, and where the next begins; None: this is the last."""

    async def holders(self, topic: str, key: bytes) -> list[int]:
        """The partitions that have an entry of the key; a tombstone counts."""

    async def publish(self, topic: str, partition: int, record: Record, expect: int | None) -> Receipt: ...
    async def delete_records(self, topic: str, before: Mapping[int, int]) -> Mapping[int, int]:
        """By partition, where the log starts now."""

    def watch(
        self,
        topic: str,
        prefix: bytes | None,
        start: bytes | None,
        end: bytes | None,
        partitions: Sequence[int] | None,
        *,
        tombstones: bool,
        offsets: Mapping[int, int] | None,
    ) -> WatchElsewhere:
        """`partitions`: None: all, also those that are added. `offsets`: where it goes on, without a snapshot."""
