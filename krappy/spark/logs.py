"""Which topics there are, and where their logs begin and end: one request for each topic, so one moment of each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from time import monotonic, sleep
from typing import NamedTuple, TypeVar

from krappy.blocking import Client
from krappy.clients.admin import PartitionInfo
from krappy.errors import NotLeader, UnknownTopic
from krappy.spark.topics import TopicChoice
from krappy.types import TopicPartition

PATIENCE = 10.0  # seconds for which a read waits for leaders: a stream need not end when a broker does
Offsets = dict[TopicPartition, int]
T = TypeVar("T")


class Logs(NamedTuple):
    """`starts`: each partition's log start; `ends`: its last stable offset, before which events can be read. `ids`: by
    topic; a topic that was deleted and made anew has another id. `leaders`: by partition, the broker that leads it, as
    the cluster has it. `whole`: the options name no partitions."""

    starts: Offsets
    ends: Offsets
    ids: dict[str, str]
    leaders: Mapping[TopicPartition, int]
    whole: bool = True

    def of(self, topic: str) -> list[TopicPartition]:
        return [each for each in self.ends if each.topic == topic]

    def named(self, topic: str) -> list[int] | None:
        """The partitions of which a table is read, each by itself; None: the whole table, with one row for each key."""
        return None if self.whole else [each.partition for each in self.of(topic)]


def logs(
    client: Client, wanted: TopicChoice, missing: bool = False, *, sure: bool = False, known: Collection[str] = ()
) -> Logs:
    """The partitions that are to be read, as they are now. With `missing`, topics that do not exist are left out.
    `sure`: everything that was acknowledged before is below the ends. (A leader may not have heard yet that another one
    has taken its place, and then its end may be too low. With `sure` such a leader's ends are not taken.) `known`:
    topics that were read before. If a pattern does not find one any more, it is asked for by its name: it may be there,
    and not be shown to this user any more.

    Raises UnknownTopic, UnknownPartition, TopicAuthorizationFailed; NotLeader if a partition has had no such leader for
    PATIENCE seconds.
    """
    return until_led(lambda: _logs(client, wanted, missing, sure, known))


def until_led(look: Callable[[], T]) -> T:
    """Calls `look` until it does not raise NotLeader, and returns what it gives. Raises NotLeader after PATIENCE
    seconds."""
    until = monotonic() + PATIENCE
    while True:
        try:
            return look()
        except NotLeader:
            if monotonic() >= until:
                raise
        sleep(0.2)


def check_led(topic: str, at: PartitionInfo, *, sure: bool = False) -> None:
    """Raises NotLeader if the partition's leader could not be asked; or, with `sure`, is not sure that it leads."""
    told = {"topic": topic, "partition": at.partition, "leader": at.leader}
    if at.last_stable_offset < 0:
        raise NotLeader(f"{topic}-{at.partition}: no broker leads it that can be reached", **told)
    if sure and not at.sure:
        text = f"broker {at.leader} is not sure that it still leads it: it may be cut off, or ZooKeeper away"
        raise NotLeader(f"{topic}-{at.partition}: {text}", **told)


def _logs(client: Client, wanted: TopicChoice, missing: bool, sure: bool, known: Collection[str]) -> Logs:
    topics = [] if wanted.pattern is None else client.topics()
    for name in wanted.named() if wanted.pattern is None else {*known} - {topic.name for topic in topics}:
        with suppress(UnknownTopic):  # `among` below raises it for a named one, unless `missing`
            topics.append(client.describe(name))
    found = {topic.name: topic for topic in topics}
    places = wanted.among({name: len(topic.partitions) for name, topic in found.items()}, missing)
    ends = [found[each.topic].partitions[each.partition] for each in places]
    for each, at in zip(places, ends, strict=True):
        check_led(each.topic, at, sure=sure)
    return Logs(
        {each: at.start for each, at in zip(places, ends, strict=True)},
        {each: at.last_stable_offset for each, at in zip(places, ends, strict=True)},
        {each.topic: found[each.topic].id for each in places},
        {each: at.leader for each, at in zip(places, ends, strict=True)},
        wanted.assigned is None,
    )
