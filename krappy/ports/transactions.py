"""What is published all or nothing: transactions of Kafka's producers, and staged jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from krappy.core.staging import Job
from krappy.core.transactions import Transaction
from krappy.ports.groups import GroupMember, Position
from krappy.ports.partitions import StoredAt, TopicPort, TransactionEnd
from krappy.types import TopicPartition
from krappy.waiting import Later


class TransactionsPort(Protocol):
    """Raises what the functions of krappy/core/transactions.py raise."""

    async def init_producer(
        self, name: str, timeout_ms: int, expected_id: int = -1, expected_epoch: int = -1
    ) -> tuple[int, int]: ...
    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> int: ...
    async def add_group(self, name: str, producer_id: int, epoch: int, group: str) -> None: ...
    async def end(
        self, name: str, producer_id: int, epoch: int, commit: bool, *, bumps: bool = False
    ) -> tuple[int, int]: ...
    async def verify(self, name: str, producer_id: int, epoch: int, at: TopicPartition) -> int: ...
    async def readable(self, name: str) -> Transaction | None: ...
    def list(self) -> list[Transaction]: ...


class ParticipantPort(Protocol):
    """A broker's part in transactions that any broker may coordinate."""

    def end(self, end: TransactionEnd, partitions: Iterable[TopicPartition]) -> list[Later[None]]: ...
    async def stage_offsets(
        self,
        name: str,
        producer_id: int,
        epoch: int,
        member: GroupMember,
        offsets: Mapping[TopicPartition, Position],
        *,
        adds: bool = False,
    ) -> None: ...


class StagedJobRow(NamedTuple):
    """A job that is not over. `expires_ms`: when it expires unless a task is heard of before; -1: it is being
    published."""

    job: str
    state: str
    attempts: int
    sealed: int
    size: int  # bytes
    expires_ms: int


class AttemptPort(Protocol):
    @property
    def topic(self) -> TopicPort | None: ...
    def publish(self, partition: int, data: bytes) -> Later[StoredAt]: ...


class StageOpened(NamedTuple):
    id: str
    attempt: AttemptPort
    producer_id: int
    producer_epoch: int


class StagingPort(Protocol):
    """Raises what the functions of krappy/core/staging.py raise. `commit` gives the job, the bytes published, and the
    bytes to publish."""

    async def stage(
        self, topic_name: str, name: str, task: str, attempt_name: str, ttl_ms: int, id: str | None
    ) -> StageOpened: ...
    def topics(self, name: str) -> set[str]: ...
    async def seal(self, name: str, id: str, records: int) -> str: ...
    async def commit(self, name: str, tokens: Sequence[str], max_wait_ms: int) -> tuple[Job, int, int]: ...
    async def abort(self, name: str, id: str | None = None) -> None: ...
    def give_up(self, name: str, id: str) -> None: ...
    def list(self) -> list[StagedJobRow]: ...
