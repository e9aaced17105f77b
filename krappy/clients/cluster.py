"""What a client knows of a cluster: its brokers, and who leads the partitions of the topics that it uses. No I/O.

It is what some broker knew when it was asked, so it may be out of date. The leader epoch tells which of two answers is
the newer one: it rises with every election.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from krappy.clients.values import Address, address
from krappy.errors import ConfigError, NotLeader, ProtocolError, UnknownPartition, UnknownTopic
from krappy.wire import messages

NOBODY = -1  # an id that no broker has
NEW = 10.0  # seconds for which a leader may not know a topic, or a partition, of which another broker tells
HEARD = 5.0  # seconds without such an answer after which it counts as knowing it: clients that wait ask again sooner


class KnownBroker(NamedTuple):
    """`address`: of its native protocol; None: it has no such listener. `kafka`: HOST:PORT by the listener's name."""

    id: int
    address: Address | None
    kafka: Mapping[str, str]
    http: str | None
    rack: str | None


class KnownPartition(NamedTuple):
    """`leader`: a broker's id, or NOBODY. `isr`: the replicas that have all that is acknowledged."""

    leader: int = NOBODY
    leader_epoch: int = -1
    replicas: Sequence[int] = ()
    isr: Sequence[int] = ()


class KnownPlaces(NamedTuple):
    """`scattered`: keys may stand in other partitions than those that murmur2 gives them, as far as is known."""

    id: str
    scattered: bool
    partitions: list[KnownPartition]


class KnownCluster:
    """`topics`: of those that were asked for, the ones that exist. `denied`: those that may not be described.
    `several`: whether the cluster is known to have several brokers."""

    def __init__(self) -> None:
        self.id = ""
        self.several = False
        self.controller = NOBODY
        self.brokers: dict[int, KnownBroker] = {}
        self.topics: dict[str, KnownPlaces] = {}
        self.denied: set[str] = set()
        self._unknown: dict[str, tuple[float, float]] = {}  # by topic: when a leader did not know it, first and last

    def take(self, found: messages.MetadataFound) -> None:
        """Takes over a broker's answer, except for partitions that have a higher leader epoch here. Raises
        ProtocolError."""
        try:
            self.brokers = {each["id"]: _broker(each) for each in found.brokers}
            for each in found.topics:
                self._take_topic(each)
        except (KeyError, TypeError, AttributeError, ConfigError) as error:
            raise ProtocolError(f"an answer to Metadata that is not what it should be: {error!r:.80}") from None
        self.id, self.controller = found.cluster, found.controller
        self.several = self.several or len(self.brokers) > 1

    def _take_topic(self, told: Mapping[str, Any]) -> None:
        name, id = told["name"], told["id"]
        self.denied.discard(name)
        if id is None:
            self.topics.pop(name, None)
            if told.get("denied"):
                self.denied.add(name)
            return
        rows = [
            KnownPartition(each["leader"], each["leader_epoch"], each["replicas"], each["isr"])
            for each in told["partitions"]
        ]
        before = self.topics.get(name)
        if before is not None and before.id == id:
            known = before.partitions
            rows = [
                known[i] if i < len(known) and known[i].leader_epoch > row.leader_epoch else row
                for i, row in enumerate(rows)
            ]
            rows += known[len(rows) :]
        self.topics[name] = KnownPlaces(id, told["scattered"], rows)

    def note(self, error: NotLeader) -> bool:
        """Takes over what a broker says of a partition's leader when it refuses a request. Returns whether it is news,
        and tells of a leader."""
        told = error.details
        topic, index = self.topics.get(str(told.get("topic"))), told.get("partition")
        leader, epoch = told.get("leader"), told.get("leader_epoch")
        if topic is None or type(index) is not int or type(leader) is not int or type(epoch) is not int:
            return False
        if not 0 <= index < len(topic.partitions) or topic.partitions[index].leader_epoch >= epoch:
            return False
        topic.partitions[index] = topic.partitions[index]._replace(leader=leader, leader_epoch=epoch)
        return leader in self.brokers

    def may_hear(self, topic: str, now: float) -> bool:
        """Whether a leader that does not know a topic, or a partition of it, may only hear of it later than other
        brokers. `now`: when it said that it does not know it."""
        self._unknown = {each: times for each, times in self._unknown.items() if now - times[1] < HEARD}
        first, _ = self._unknown.get(topic, (now, now))
        self._unknown[topic] = first, now
        return topic in self.topics and now - first < NEW

    def topic(self, name: str) -> KnownPlaces:
        """Raises UnknownTopic."""
        found = self.topics.get(name)
        if found is None:
            raise UnknownTopic(f"there is no topic '{name}'", topic=name)
        return found

    def leader(self, topic: str, partition: int) -> KnownBroker | None:
        """None: there is none now. Raises UnknownTopic, UnknownPartition."""
        partitions = self.topic(topic).partitions
        if not 0 <= partition < len(partitions):
            raise UnknownPartition(f"the topic '{topic}' has partitions 0 to {len(partitions) - 1}, not {partition}")
        return self.brokers.get(partitions[partition].leader)

    def in_sync(self, topic: str, partitions: Iterable[int]) -> dict[int, list[int]]:
        """By broker, which of these partitions it has with all that is acknowledged. Raises UnknownTopic."""
        known = self.topic(topic).partitions
        found: dict[int, list[int]] = {}
        for index in partitions:
            for broker in known[index].isr if 0 <= index < len(known) else ():
                if broker in self.brokers:
                    found.setdefault(broker, []).append(index)
        return found


def _broker(told: Mapping[str, Any]) -> KnownBroker:
    native = told["native"]
    return KnownBroker(
        told["id"], None if native is None else address(native), dict(told["kafka"]), told["http"], told["rack"]
    )
