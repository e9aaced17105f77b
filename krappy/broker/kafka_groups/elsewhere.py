"""What this broker answers for a Kafka group that another broker coordinates: each request is refused."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

from krappy.core.kafka.classic_member import Join, Joined, SyncAnswer
from krappy.core.kafka.faults import Fault, Refused
from krappy.core.kafka.modern_member import Beat, Beaten
from krappy.core.kafka.name_regex import TopicRegex
from krappy.core.kafka.offset import At
from krappy.errors import KrappyError
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.coordinator import KafkaGroups
    from krappy.broker.kafka_groups.settings import GroupSettings


class GroupsElsewhere:
    """Implements `KafkaGroupsPort`, with its `offsets`, `admin` and `share`. Settings of groups belong to the cluster,
    so these can be read here."""

    def __init__(self, own: KafkaGroups, why: KrappyError) -> None:
        """`why`: NotCoordinator or CoordinatorNotAvailable."""
        self._own = own
        self._refused = Refused(Fault(why.code), why.text)
        self._fault = Fault(why.code)

    @property
    def settings(self) -> GroupSettings:
        return self._own.settings

    @property
    def offsets(self) -> GroupsElsewhere:
        return self

    @property
    def admin(self) -> GroupsElsewhere:
        return self

    @property
    def share(self) -> ShareElsewhere:
        return ShareElsewhere(self._refused)

    def join(self, name: str, ask: Join) -> Later[Joined]:
        return _now(Joined(self._fault, ask.member_id))

    def sync(self, *asked: object) -> Later[SyncAnswer]:
        return _now(SyncAnswer(self._fault))

    def heartbeat(self, name: str, member_id: str, generation: int, instance_id: str | None) -> Fault:
        return self._fault

    def leave(self, name: str, leaving: Sequence[tuple[str, str | None]]) -> list[Fault]:
        return [self._fault] * len(leaving)

    def unmatched(self, name: str, pattern: str | None = None) -> list[TopicRegex]:
        return []

    def match(self, name: str, pattern: str | None = None) -> Iterator[None]:
        return iter(())

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]:
        return _now(self._refused)

    def new_member_id(self) -> str:
        return self._own.new_member_id()

    def commit_as(self, *asked: object, version: int) -> NoReturn:
        raise self._refused

    async def readable(self, name: str, member_id: str | None, epoch: int) -> NoReturn:
        raise self._refused

    async def delete_from(self, name: str, wanted: Iterable[At]) -> NoReturn:
        raise self._refused

    def list_groups(self) -> Iterator[NoReturn]:
        return iter(())

    def epoch(self) -> NoReturn:
        raise self._refused

    async def describe(self, name: str) -> NoReturn:
        raise self._refused

    async def describe_modern(self, name: str) -> NoReturn:
        raise self._refused

    async def delete(self, name: str) -> None:
        raise self._refused


class ShareElsewhere:
    """Implements `ShareGroupsPort`."""

    def __init__(self, refused: Refused) -> None:
        self._refused = refused

    def beat(self, name: str, beat: Beat) -> Later[Beaten | KrappyError]:
        return _now(self._refused)

    async def describe(self, name: str) -> NoReturn:
        raise self._refused

    async def positions(self, name: str) -> NoReturn:
        raise self._refused

    async def alter(self, name: str, moves: object) -> None:
        raise self._refused

    async def forget(self, name: str, topics: object) -> None:
        raise self._refused


def _now(value: object) -> Later:  # type: ignore[type-arg]
    later: Later[object] = Later()
    later.resolve(value)
    return later
