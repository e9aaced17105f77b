"""Members of a share group (KIP-932), by Kafka's protocol. A session reads the partitions that one broker leads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Any, NamedTuple

from krappy.wire.kafka import ApiKey, Code
from tests.chaos.groups import Delivery
from tests.chaos.members import Member
from tests.chaos.world import World
from tests.kafka.raw import Closed, Raw
from tests.kafka.shares import ACCEPT, RELEASE, beat

SHARE_SECONDS = 2.0, 6.0  # the length of a session: short, because each session reads at only one of the brokers
BEAT_SECONDS = 1.0
ANSWER_SECONDS = 15.0
LIMITS = {"max_wait_ms": 300, "min_bytes": 1, "max_bytes": 1 << 20, "max_records": 500, "batch_size": 500}
SETTINGS = {
    "share.auto.offset.reset": "earliest",
    "share.isolation.level": "read_committed",
    "share.record.lock.duration.ms": "5000",
    "share.delivery.count.limit": "100",
}
Run = tuple[int, int, int]  # partition, first and last offset
_numbers = count()


class ShareTrouble(OSError):
    """A broker has refused something."""


class LedParts(NamedTuple):
    """The partitions of the topic that one broker leads. `leader`: its address."""

    topic_id: bytes
    leader: str
    partitions: list[int]


def configure(world: World, group: str) -> bool:
    """Sends the group's settings to a broker; returns whether it accepted them."""
    configs = [{"name": name, "value": value, "config_operation": 0} for name, value in SETTINGS.items()]
    body = {"resources": [{"resource_type": 32, "resource_name": group, "configs": configs}]}
    told = world.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
    return told is not None and told["responses"][0]["error_code"] == Code.NONE


class ShareMember(Member):
    seconds = SHARE_SECONDS

    def __init__(self, bootstrap: str, *more: Any) -> None:
        super().__init__(*more)
        self._addresses = bootstrap.split(",")
        self._number = next(_numbers)

    def _session(self, number: int, until: float) -> None:
        found, coordinator = self._look()
        name = f"sharer-{self._number}-{number}"
        with (
            Raw(coordinator, timeout=ANSWER_SECONDS) as its,
            Raw(found.leader, timeout=ANSWER_SECONDS) as raw,
        ):
            epoch = self._beat(its, name, 0)
            session = ShareClient(raw, self.history.group, name, found)
            beaten = time.monotonic()
            while not self._over(until):
                runs = session.fetch()
                self.history.deliver(
                    [Delivery(number, at, offset, None) for at, *of in runs for offset in range(of[0], of[1] + 1)]
                )
                if runs and self._random.random() < 0.05:
                    session.acknowledge(runs, RELEASE)
                elif runs:
                    taken = session.acknowledge(runs, ACCEPT)
                    self.history.settle((at, offset) for at, *of in taken for offset in range(of[0], of[1] + 1))
                if time.monotonic() - beaten > BEAT_SECONDS:
                    epoch = self._beat(its, name, epoch)
                    beaten = time.monotonic()
            if self._random.random() < 0.5:  # otherwise it dies without leaving
                session.end()
                beat(its, self.history.group, name, -1)

    def _beat(self, raw: Raw, name: str, epoch: int) -> int:
        """Sends a heartbeat; returns the member's epoch."""
        told = beat(raw, self.history.group, name, epoch, [self._topic])
        _check(told["error_code"])
        return int(told["member_epoch"])

    def _look(self) -> tuple[LedParts, str]:
        """The partitions of one of the leaders, each time of another one; and the address of the group's coordinator.
        Raises OSError."""
        for address in self._random.sample(self._addresses, len(self._addresses)):
            with suppress(OSError, Closed), Raw(address, timeout=3) as raw:
                told = raw.ask(ApiKey.METADATA, {"topics": [{"name": self._topic}]})
                asked = {"key_type": 0, "coordinator_keys": [self.history.group]}
                [coordinator] = raw.ask(ApiKey.FIND_COORDINATOR, asked)["coordinators"]
                [topic] = told["topics"]
                brokers = {each["node_id"]: f"{each['host']}:{each['port']}" for each in told["brokers"]}
                led: dict[int, list[int]] = {}
                for each in topic["partitions"]:
                    if each["leader_id"] in brokers:
                        led.setdefault(each["leader_id"], []).append(each["partition_index"])
                if led and not coordinator["error_code"]:
                    leader = sorted(led)[len(self.history.began) % len(led)]
                    where = f"{coordinator['host']}:{coordinator['port']}"
                    return LedParts(bytes(topic["topic_id"]), brokers[leader], led[leader]), where
        raise ShareTrouble("no broker tells who leads, and who coordinates")


class ShareClient:
    """A share session at one broker. Its methods raise OSError, Closed."""

    def __init__(self, raw: Raw, group: str, member: str, found: LedParts) -> None:
        self._raw, self._found = raw, found
        self._head = {"group_id": group, "member_id": member}
        self._epoch = 0

    def fetch(self) -> list[Run]:
        body = self._body({} if self._epoch else {index: [] for index in self._found.partitions})
        answer = self._ask(ApiKey.SHARE_FETCH, {**body, **LIMITS})
        return [
            (part["partition_index"], each["first_offset"], each["last_offset"])
            for part in self._parts(answer)
            for each in part["acquired_records"]
        ]

    def acknowledge(self, runs: Sequence[Run], kind: int) -> list[Run]:
        """Acknowledges the runs with this type; returns the runs that the broker accepted."""
        acks: dict[int, list[dict[str, Any]]] = {}
        for index, first, last in sorted(runs):
            row = {"first_offset": first, "last_offset": last, "acknowledge_types": [kind]}
            acks.setdefault(index, []).append(row)
        answer = self._ask(ApiKey.SHARE_ACKNOWLEDGE, self._body(acks))
        parts = [part for topic in answer["responses"] for part in topic["partitions"]]
        taken = {part["partition_index"] for part in parts if part["error_code"] == Code.NONE}
        return [run for run in runs if run[0] in taken]

    def end(self) -> None:
        self._raw.ask(ApiKey.SHARE_ACKNOWLEDGE, {**self._body({}), "share_session_epoch": -1})

    def _ask(self, key: ApiKey, body: dict[str, Any]) -> dict[str, Any]:
        answer = self._raw.ask(key, body)
        _check(answer["error_code"])
        self._epoch += 1
        return answer

    def _body(self, acks: dict[int, list[dict[str, Any]]]) -> dict[str, Any]:
        parts = [{"partition_index": index, "acknowledgement_batches": rows} for index, rows in acks.items()]
        topics = [{"topic_id": self._found.topic_id, "partitions": parts}] if parts else []
        return {**self._head, "share_session_epoch": self._epoch, "topics": topics}

    def _parts(self, answer: dict[str, Any]) -> list[dict[str, Any]]:
        found = [part for topic in answer["responses"] for part in topic["partitions"]]
        for part in found:
            _check(part["error_code"])
        return found


def _check(code: int) -> None:
    if code != Code.NONE:
        raise ShareTrouble(f"refused: {code}")
