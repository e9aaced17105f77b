"""Requests about topics, groups and the broker itself, with their answers as plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, NamedTuple

from krappy.clients.cluster import NOBODY
from krappy.clients.coordinator_way import ask_coordinator
from krappy.clients.link import Link
from krappy.clients.router import Router
from krappy.clients.values import StartAt, start
from krappy.errors import (
    ConnectionLost,
    NotLeader,
    ProtocolError,
    RequestTimeout,
    UnknownGroup,
    UnknownPartition,
    UnknownTopic,
)
from krappy.settings.topic_table import normalise
from krappy.types import TopicPartition
from krappy.wire import messages

Setting = str | int | float | bool | None
Differences = dict[str, tuple[Any, Any]]  # by setting, or "partitions": what was asked for, and what is
AWAY = 5.0  # seconds to wait for a leader that is only asked where a group's partition ends
HOLDING = 600.0  # seconds that a broker may take to link its files for a backup: it waits for running compactions


class PartitionInfo(NamedTuple):
    """`start`, `end`: the log's first offset, and the offset after its last event. `applied`: the table includes all
    events before this offset. `last_stable_offset`: events before it can be read; no open transaction has one there.
    `failed`: why the partition takes no events or is out of service. `view_failed`: why its table is not updated any
    more. `size` in bytes. `leader`: the id of the broker that leads the partition; -1: none does. `replicas`: the
    brokers that are to have it; `isr`: those of them that have all that is acknowledged. `sure`: the leader knows that
    no other broker leads the partition by now. The offsets are -1 if no broker that was asked has the partition."""

    partition: int
    start: int = -1
    end: int = -1
    high_watermark: int = -1
    last_stable_offset: int = -1
    applied: int = -1
    size: int = 0
    segments: int = 0
    failed: str | None = None
    view_failed: str | None = None
    leader: int = -1
    replicas: Sequence[int] = ()
    isr: Sequence[int] = ()
    sure: bool = False


class TopicInfo(NamedTuple):
    """`config`: the settings made for the topic. `settings`: all settings in force, with defaults. `scattered`: keys
    may stand in other partitions than those that murmur2 gives them."""

    name: str
    id: Any
    config: dict[str, Any]
    settings: dict[str, Any]
    partitions: list[PartitionInfo]
    scattered: bool = False


class MemberInfo(NamedTuple):
    """`leased`: how many events the member has leased now. `leases`: which ones, the first hundred runs of offsets:
    (topic, partition, first, last, when the lease ends in ms since the epoch)."""

    name: str
    client: str = ""
    leased: int = 0
    leases: Sequence[tuple[str, int, int, int, int]] = ()


class GroupPartition(NamedTuple):
    """`floor`: every event before this offset is settled. `lag`: events from `floor` to `end`; both are -1 while the
    partition's leader can't be asked. `leased`, `redelivering`, `dead`: numbers of events."""

    topic: str
    partition: int
    floor: int = 0
    end: int = 0
    lag: int = 0
    leased: int = 0
    redelivering: int = 0
    dead: int = 0


class GroupInfo(NamedTuple):
    """`kind`: shared or positions (native groups), classic, consumer or share (Kafka's). `order`: none or key."""

    group: str
    kind: str
    order: str
    topics: list[str]
    members: list[MemberInfo]
    partitions: list[GroupPartition]

    @property
    def lag(self) -> int:
        return sum(max(0, partition.lag) for partition in self.partitions)


class Moved(NamedTuple):
    """The group's offset in one partition before and after a reset."""

    topic: str
    partition: int
    old: int
    new: int


async def create_topic(
    router: Router,
    topic: str,
    partitions: int | None,
    config: Mapping[str, Setting] | None,
    if_absent: bool,
    replication_factor: int | None,
) -> tuple[bool, Differences]:
    """Returns (whether the topic was created, in what it differs). False: it exists (`if_absent`), and may differ.
    Raises TopicExists, InvalidConfig."""
    settings = None if config is None else dict(config)
    request = messages.CreateTopic(topic, partitions, settings, if_absent, replication_factor)
    answer = await router.change(request, messages.TopicCreated, again=if_absent)
    differs: Differences = {}
    if not answer.created:
        if answer.partitions and partitions not in (None, answer.partitions):  # else the broker does not tell them
            differs["partitions"] = partitions, answer.partitions
        if config:
            there = (await describe(router, topic)).settings
            wanted = normalise(config)
            told = wanted.keys() & there.keys()  # not all are told to everybody
            differs.update((name, (wanted[name], there[name])) for name in sorted(told) if wanted[name] != there[name])
    return answer.created, differs


async def alter_topic(router: Router, topic: str, config: Mapping[str, Setting] | None, partitions: int | None) -> None:
    """Changes settings (None: back to the default) and the number of partitions. Raises UnknownTopic."""
    request = messages.AlterTopic(topic, None if config is None else dict(config), partitions)
    await router.change(request, messages.TopicAltered, again=partitions is None)


async def delete_topic(router: Router, topic: str) -> None:
    await router.change(messages.DeleteTopic(topic), messages.TopicDeleted, again=False)


async def topics(router: Router, names: Sequence[str] | None = None) -> list[TopicInfo]:
    """The named topics, or all; each partition as its leader describes it, if that can be reached."""
    request = messages.DescribeTopics(None if names is None else list(names))
    described = await router.home.ask(request, messages.TopicsDescribed)
    found = [_topic(each) for each in described.topics]
    partitions = [each for topic in found for each in topic.partitions]
    brokers = {broker for each in partitions for broker in (each.leader, *each.replicas)} - {NOBODY}
    if not router.known.several and (len(brokers) < 2 or all(each.sure for each in partitions)):
        return found
    router.known.several = True
    deadline = router.runtime.now() + router.timeout
    links = await router.each(deadline)
    told: dict[tuple[str, int], PartitionInfo] = {}
    scattered: set[str] = set()
    for link, answer in zip(
        links,
        await router.ask_each([(link, request) for link in links], messages.TopicsDescribed, deadline),
        strict=True,
    ):
        for topic in map(_topic, answer.topics if isinstance(answer, messages.TopicsDescribed) else ()):
            scattered |= {topic.name} if topic.scattered else set()
            for each in topic.partitions:
                at = topic.name, each.partition
                unsure = not each.sure and at in told  # a deposed leader is not sure
                if router.links.id_of(link) == each.leader and not unsure:
                    told[at] = each
    return [
        topic._replace(
            scattered=topic.name in scattered or topic.scattered,
            partitions=[told.get((topic.name, each.partition), each) for each in topic.partitions],
        )
        for topic in found
    ]


async def describe(router: Router, topic: str) -> TopicInfo:
    """One topic. Raises UnknownTopic."""
    found = await topics(router, [topic])
    if not found:
        raise UnknownTopic(f"there is no topic '{topic}'", topic=topic)
    return found[0]


async def offsets(router: Router, topic: str, at: StartAt) -> dict[int, int]:
    """By partition, the offset of an end of the log, or of the first event at or after a time. Raises UnknownTopic."""
    name, number = start(at)
    if not router.known.several:
        try:
            return dict((await router.home.ask(messages.Offsets(topic, name, number), messages.OffsetsFound)).offsets)
        except NotLeader as error:
            router.note(error)
    return await all_offsets(router, topic, name, number)


async def all_offsets(router: Router, topic: str, start: str, start_at: int | None) -> dict[int, int]:
    """As `offsets`, for the partitions that the topic has by now. `start`, `start_at`: as the protocol has them."""
    deadline = router.runtime.now() + router.timeout
    with suppress(ConnectionLost, RequestTimeout):
        await router.learning.refresh([topic], deadline)
    return await leaders_offsets(
        router, topic, start, start_at, range(len((await router.learning.topic(topic, deadline)).partitions))
    )


async def leaders_offsets(
    router: Router,
    topic: str,
    start: str,
    start_at: int | None,
    partitions: Iterable[int],
    deadline: float | None = None,
) -> dict[int, int]:
    """As `offsets`, asked of each partition's leader. `start`, `start_at`: as the protocol has them. `deadline`: as in
    `Router.of_leaders`."""

    def of(some: list[int]) -> messages.ConsumerRegistration:
        """A reader's registration tells the offsets of some partitions."""
        return messages.ConsumerRegistration([topic], partitions=some, start=start, start_at=start_at)

    found: dict[int, int] = {}
    for link, _, answer in await router.of_leaders(
        topic, partitions, of, messages.ConsumerRegistered, deadline=deadline
    ):
        found |= {index: offset for _, index, offset in answer.positions}
        link.tell(messages.Unregister(answer.handle), messages.Unregistered)
    return dict(sorted(found.items()))


async def delete_records(
    router: Router, topic: str, before: StartAt | Mapping[int, int], partitions: Sequence[int] | None
) -> dict[int, int]:
    """Deletes the events before these offsets; returns where each partition begins now. Raises UnknownPartition.

    "latest" and timestamps become offsets before the request is sent, so a repeated request deletes nothing more."""
    if isinstance(before, Mapping):
        rows = list(before.items())
    elif type(before) is int:
        some = (
            [each.partition for each in (await describe(router, topic)).partitions]
            if partitions is None
            else partitions
        )
        rows = [(partition, start(before)[1] or 0) for partition in some]
    else:
        found = await offsets(router, topic, before)
        rows = [
            (partition, offset) for partition, offset in found.items() if partitions is None or partition in partitions
        ]
        missing = set(partitions or ()) - found.keys()
        if missing:
            raise UnknownPartition(f"'{topic}' has partitions 0 to {len(found) - 1}, not {min(missing)}")
    if not router.known.several:
        try:
            return dict((await router.home.ask(messages.DeleteRecords(topic, rows), messages.RecordsDeleted)).starts)
        except NotLeader as error:
            router.note(error)
    ends = dict(rows)
    answers = await router.of_leaders(
        topic,
        ends,
        lambda some: messages.DeleteRecords(topic, [(index, ends[index]) for index in some]),
        messages.RecordsDeleted,
    )
    return dict(sorted((index, start) for _, _, answer in answers for index, start in answer.starts))


async def groups(router: Router) -> list[GroupInfo]:
    """The groups of all brokers, by name. Raises as `Router.groups`."""
    listed = await router.groups(router.runtime.now() + router.timeout)
    found = map(_group, (each for _, some in listed for each in some))
    return await _with_ends(router, sorted(found, key=attrgetter("group")))


async def group(router: Router, name: str) -> GroupInfo:
    """One group. Raises UnknownGroup."""
    found = (await ask_coordinator(router, messages.Groups(name), messages.GroupsFound)).groups
    if not found:
        raise UnknownGroup(f"there is no group '{name}'")
    return (await _with_ends(router, [_group(found[0])]))[0]


async def _with_ends(router: Router, groups: list[GroupInfo]) -> list[GroupInfo]:
    """The groups with the ends of their partitions. A coordinator does not know the ends of partitions that it has no
    replica of, so their leaders are asked. An end stays unknown where nobody leads, or the leader can't be reached."""
    unknown: dict[str, set[int]] = {}
    for each in [each for group in groups for each in group.partitions if each.end < 0]:
        unknown.setdefault(each.topic, set()).add(each.partition)
    ends: dict[str, dict[int, int]] = {}
    for topic, partitions in unknown.items():
        with suppress(UnknownTopic, UnknownPartition, NotLeader, ConnectionLost, RequestTimeout):
            deadline = router.runtime.now() + min(router.timeout, AWAY)
            await router.learning.refresh([topic], deadline)
            known = (await router.learning.topic(topic, deadline)).partitions
            led = [index for index in sorted(partitions) if index < len(known) and known[index].leader != NOBODY]
            ends[topic] = await leaders_offsets(router, topic, "latest", None, led, deadline)

    def whole(each: GroupPartition) -> GroupPartition:
        end = ends.get(each.topic, {}).get(each.partition, -1)
        return each if each.end >= 0 or end < 0 else each._replace(end=end, lag=max(0, end - each.floor))

    return [group._replace(partitions=list(map(whole, group.partitions))) for group in groups]


async def reset_group(
    router: Router, name: str, to: StartAt, topic: str | None, partitions: Sequence[int] | None, dry_run: bool
) -> list[Moved]:
    """Moves a group without members to `to`. `dry_run` only returns what would change. Raises GroupNotEmpty."""
    kind, at = start(to)
    some = None if partitions is None else list(partitions)
    request = messages.ResetGroup(name, topic, some, kind, at, dry_run)
    del request.owner  # an older broker does not know the field
    return [Moved(*each) for each in (await ask_coordinator(router, request, messages.GroupReset)).positions]


async def delete_group(router: Router, name: str) -> None:
    await ask_coordinator(router, messages.DeleteGroup(name), messages.GroupDeleted, again=False)


async def commit(router: Router, name: str, positions: Mapping[TopicPartition, int]) -> None:
    """Sets the floors of a group: all events before them count as acknowledged, none after them does."""
    rows = [(topic, partition, offset) for (topic, partition), offset in positions.items()]
    await ask_coordinator(router, messages.Commit(name, rows), messages.Committed)


async def positions(router: Router, name: str) -> dict[TopicPartition, int]:
    """A group's floors, by partition."""
    found = await ask_coordinator(router, messages.Positions(name), messages.PositionsFound)
    return {TopicPartition(topic, partition): offset for topic, partition, offset in found.offsets}


class HeldBackup(NamedTuple):
    """The files that a broker holds to be copied. `folder`: a path on the broker's machine; `size` in bytes."""

    folder: str
    files: int
    size: int
    handle: int
    generation: int


async def hold_backup(link: Link) -> HeldBackup:
    """Makes the broker link its files for a backup, and hold them until `release_backup`."""
    generation = await link.ready(link.runtime.now() + link.timeout)
    # A disk that is full would refuse for all of that time, and nobody would be told.
    answer = await link.ask(
        messages.HoldBackup(), messages.BackupHeld, generation=generation, timeout=HOLDING, patience=link.timeout
    )
    return HeldBackup(answer.folder, answer.files, answer.size, answer.handle, generation)


def release_backup(link: Link, held: HeldBackup) -> None:
    """Lets the broker remove the links."""
    link.tell(messages.Unregister(held.handle), messages.Unregistered, held.generation)


class UserInfo(NamedTuple):
    """`iterations`: of the user's credentials, by mechanism."""

    name: str
    iterations: dict[str, int]


async def users(link: Link) -> list[UserInfo]:
    """The users who may log in with a password, by name."""
    answer = await link.ask(messages.Users(), messages.UsersFound)
    return [UserInfo(str(each["user"]), dict(each["credentials"])) for each in answer.users]


async def alter_user(router: Router, user: str, credentials: Mapping[str, str | None]) -> None:
    """Sets (`ScramCredential.text`) or removes (None) the user's credentials, by mechanism. Raises UnknownUser."""
    await router.change(messages.AlterUser(user, dict(credentials)), messages.UserAltered, again=False)


class QuotaInfo(NamedTuple):
    """How much somebody may use. `rates`: by what they limit, such as "producer_byte_rate". A name of None: it does not
    matter; "": all that have no quota of their own."""

    user: str | None
    client_id: str | None
    ip: str | None
    rates: dict[str, float]


async def quotas(link: Link, user: str | None, client_id: str | None, ip: str | None) -> list[QuotaInfo]:
    """The quotas whose entity has all the names that are given."""
    answer = await link.ask(messages.DescribeQuotas(user, client_id, ip), messages.QuotasFound)
    return [QuotaInfo(**_known(QuotaInfo, each)) for each in answer.quotas]


async def alter_quotas(
    router: Router, rates: Mapping[str, float | None], user: str | None, client_id: str | None, ip: str | None
) -> None:
    """Sets or removes (None) quotas of one entity."""
    await router.change(messages.AlterQuotas(dict(rates), user, client_id, ip), messages.QuotasAltered)


async def ping(link: Link) -> messages.Pong:
    return await link.ask(messages.Ping(), messages.Pong)


def _known(cls: Any, values: Any) -> dict[str, Any]:
    """The items of a map that the class has as fields: a newer broker may send more. Raises ProtocolError."""
    if type(values) is not dict:
        raise ProtocolError(f"{values!r:.60} where a map was expected")
    return {name: values[name] for name in cls._fields if name in values}


def _topic(values: Any) -> TopicInfo:
    known: dict[str, Any] = {"name": "", "id": None, "config": {}, "settings": {}, **_known(TopicInfo, values)}
    return TopicInfo(**{**known, "partitions": _rows(PartitionInfo, known.get("partitions"))})


def _group(values: Any) -> GroupInfo:
    known: dict[str, Any] = {"group": "", "kind": "", "order": "none", "topics": [], **_known(GroupInfo, values)}
    members = _rows(MemberInfo, known.get("members"))
    return GroupInfo(
        **{
            **known,
            "topics": list(known["topics"]),
            "members": members,
            "partitions": _rows(GroupPartition, known.get("partitions")),
        }
    )


def _rows(cls: Any, rows: Any) -> list[Any]:
    try:
        return [cls(**_known(cls, each)) for each in rows or ()]
    except TypeError:
        raise ProtocolError(f"a {cls.__name__} without its required fields") from None
