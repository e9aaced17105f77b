"""Groups, of either protocol, and their members."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class MemberPort(Protocol):
    """One registration of a shared group."""

    name: str
    closed: bool

    def poll_now(self, max_records: int, max_bytes: int) -> Any: ...
    async def poll(self, max_records: int, max_bytes: int, max_wait_ms: int = 0) -> Any: ...
    def ack(self, ranges: Sequence[tuple[str, int, int, int]]) -> Any: ...
    def nack(self, ranges: Sequence[tuple[str, int, int, int]], delay_ms: int = 0) -> None: ...
    def extend(self, ranges: Sequence[tuple[str, int, int, int]], lease_ms: int) -> None: ...
    def uncount(self, unseen: Sequence[tuple[str, int, int, int]], polls: int | None) -> None: ...
    def close(self) -> None: ...
    def describe(self) -> dict[str, Any]: ...


class GroupsPort(Protocol):
    async def join(
        self,
        name: str,
        client: str,
        topics: Sequence[str],
        *,
        start: str = "earliest",
        start_at: int | None = None,
        order: str = "none",
        lease_ms: int = 30_000,
        max_deliveries: int = 10,
        dead_letter: str | None = None,
    ) -> MemberPort: ...
    def list_groups(self) -> list[dict[str, Any]]: ...
    def each_group(self) -> Iterator[dict[str, Any]]: ...
    def describe(self, name: str) -> dict[str, Any]: ...
    def held(self, name: str) -> Iterator[tuple[str, str, int, int, int, int]]: ...
    def positions(self, name: str) -> list[tuple[str, int, int]]: ...
    async def commit(self, name: str, offsets: Sequence[tuple[str, int, int]]) -> None: ...
    async def reset(
        self,
        name: str,
        topic: str | None,
        partitions: Sequence[int] | None,
        start: str,
        start_at: int | None,
        *,
        dry_run: bool = False,
    ) -> list[tuple[str, int, int, int]]: ...
    async def delete(self, name: str) -> None: ...


class GroupMember(NamedTuple):
    """A consumer in a Kafka group, as its producer names it. `generation` -1, `id` "": it does not say."""

    group: str
    id: str
    generation: int
    instance_id: str | None


class Position(NamedTuple):
    """Where a consumer goes on. `leader_epoch` -1: not said."""

    offset: int
    leader_epoch: int
    metadata: str


class KafkaGroupsPort(Protocol):
    """The coordinator of Kafka's groups; `Refused` (krappy.core.kafka.faults) says why not."""

    @property
    def settings(self) -> Any: ...
    @property
    def offsets(self) -> Any: ...
    @property
    def admin(self) -> Any: ...
    def join(self, name: str, ask: Any) -> Any: ...
    def sync(
        self,
        name: str,
        member_id: str,
        generation: int,
        instance_id: str | None,
        protocol_type: str | None,
        protocol: str | None,
        assignments: Mapping[str, bytes],
    ) -> Any: ...
    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> Any: ...
    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> Any: ...
    def beat(self, name: str, beat: Any) -> Any: ...
    def new_member_id(self) -> str: ...
    async def stage_offsets(
        self,
        name: str,
        producer_id: int,
        member_id: str,
        generation: int,
        instance_id: str | None,
        offsets: Mapping[tuple[str, int], Any],
    ) -> None: ...
    def complete_transaction(self, name: str, producer_id: int, commit: bool) -> None: ...
