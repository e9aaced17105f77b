"""What administrators do meanwhile: they elect preferred leaders, and reassign replicas."""

from __future__ import annotations

from krappy.wire.kafka import ApiKey
from tests.chaos.faults.base import TOPICS, Fault, fault
from tests.chaos.world import BROKERS, World


def reassign(world: World, wanted: dict[str, dict[int, list[int]]]) -> bool:
    """Asks for these replicas, by topic and partition. Returns whether all reassignments were accepted."""
    topics = [
        {"name": topic, "partitions": [{"partition_index": index, "replicas": to} for index, to in of.items()]}
        for topic, of in wanted.items()
    ]
    told = world.ask(ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics, "timeout_ms": 4000})
    if told is None or told["error_code"]:
        return False
    return not any(each["error_code"] for topic in told["responses"] for each in topic["partitions"])


def reassign_home(world: World) -> bool:
    """Asks for replicas on all brokers for each partition that lacks one. Returns True if no replica is missing and no
    reassignment is under way."""
    told = world.ask(ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None, "timeout_ms": 4000})
    found = world.look()
    if told is None or told["error_code"] or told["topics"] or found is None:
        return False
    wanted: dict[str, dict[int, list[int]]] = {}
    for topic, count in TOPICS.items():
        for index in range(count):
            each = found.topics[topic].partitions.get(index) if topic in found.topics else None
            if each is None:
                return False
            if sorted(each.replicas) != list(BROKERS):
                more = [id for id in BROKERS if id not in each.replicas]
                wanted.setdefault(topic, {})[index] = [*each.replicas, *more]
    if wanted:
        reassign(world, wanted)
    return not wanted


@fault("preferred-leaders", "partitions are given back to their first replicas", (1,))
class PreferredLeaders(Fault):
    def begin(self, world: World) -> str:
        told = world.ask(ApiKey.ELECT_LEADERS, {"election_type": 0, "topic_partitions": None, "timeout_ms": 4000})
        return f"preferred leaders: {'no answer' if told is None else told['error_code']}"

    def end(self, world: World) -> str:
        return ""


@fault("reassign", "partitions get their replicas in another order, or lose one, which comes back later", (3, 10))
class Reassign(Fault):
    """It marks all machines as taken, because a replica that is removed is deleted: it must come back before a disk is
    replaced."""

    def begin(self, world: World) -> str:
        topic = self.random.choice(sorted(TOPICS))
        order = self.random.sample(BROKERS, len(BROKERS))
        to = order[: self.random.choice([2, 3])]
        chosen = self.random.sample(range(TOPICS[topic]), self.random.randint(1, TOPICS[topic]))
        done = reassign(world, {topic: dict.fromkeys(chosen, to)})
        return f"{topic} {sorted(chosen)} to {to}: {'taken' if done else 'refused, or no answer'}"

    def end(self, world: World) -> str:
        return "replicas on all brokers: " + ("they are" if reassign_home(world) else "not yet, or it is asked for")
