"""A member of a share group, message by message; and how a group reads, from where, and where it stands."""

from __future__ import annotations

from typing import Any

from krappy.records import batch
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Raw

ACCEPT, RELEASE, REJECT, RENEW = 1, 2, 3, 4
Batch = tuple[int, int, list[int]]  # first and last offset, acknowledge types


def beat(raw: Raw, group: str, member: str, epoch: int = 0, topics: list[str] | None = None) -> dict[str, Any]:
    body = {"group_id": group, "member_id": member, "member_epoch": epoch, "subscribed_topic_names": topics}
    return raw.ask(ApiKey.SHARE_GROUP_HEARTBEAT, body)


def fill(raw: Raw, topic: str, count: int, index: int = 0) -> None:
    records = batch.encode([None] * count, [b"%d" % n for n in range(count)], timestamps=1_700_000_000_000)
    assert raw.produce(topic, records, index)["error_code"] == 0


def earliest(raw: Raw, group: str, **more: str) -> None:
    settings = {"share.auto.offset.reset": "earliest"} | {name.replace("_", "."): value for name, value in more.items()}
    configs = [{"name": name, "value": value, "config_operation": 0} for name, value in settings.items()]
    body = {"resources": [{"resource_type": 32, "resource_name": group, "configs": configs}]}
    (told,) = raw.ask(ApiKey.INCREMENTAL_ALTER_CONFIGS, body)["responses"]
    assert told["error_code"] == 0, told


def position(raw: Raw, group: str, topic: str, index: int = 0) -> tuple[int, int]:
    """(start offset, lag)."""
    asked = {"group_id": group, "topics": [{"topic_name": topic, "partitions": [index]}]}
    (told,) = raw.ask(ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS, {"groups": [asked]})["groups"]
    assert told["error_code"] == 0, told
    (part,) = told["topics"][0]["partitions"]
    assert part["error_code"] == 0, part
    return part["start_offset"], part["lag"]


class Member:
    """A member of the group, with a share session of its own for one partition of one topic."""

    def __init__(
        self,
        raw: Raw,
        group: str,
        member: str,
        topic: str,
        index: int = 0,
        coordinator: Raw | None = None,
        wait_ms: int = 0,
    ) -> None:
        """`raw`: a connection to the partition's leader. `coordinator`: one to the group's coordinator; None: that is
        the leader, too. `wait_ms`: how long a fetch waits for a record."""
        self.raw, self.group, self.member, self.topic, self.index = raw, group, member, topic, index
        told = beat(coordinator or raw, group, member, 0, [topic])
        assert told["error_code"] == 0, told
        self.epoch, self.wait_ms = 0, wait_ms
        self.id = raw.topic_id(topic)

    def body(self, acks: list[Batch], *, epoch: int | None = None, **more: Any) -> dict[str, Any]:
        batches = [{"first_offset": a, "last_offset": b, "acknowledge_types": types} for a, b, types in acks]
        part = {"partition_index": self.index, "acknowledgement_batches": batches}
        topics = [{"topic_id": self.id, "partitions": [part]}]
        head = {"group_id": self.group, "member_id": self.member}
        return head | {"share_session_epoch": self.epoch if epoch is None else epoch, "topics": topics} | more

    def ask_fetch(self, *acks: Batch, **more: Any) -> dict[str, Any]:
        """Fetches; returns the whole answer."""
        limits = {"max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "max_wait_ms": self.wait_ms}
        version = more.pop("version", None)
        return self.raw.ask(ApiKey.SHARE_FETCH, self.body(list(acks), **{"min_bytes": 1, **limits, **more}), version)

    def fetch(self, *acks: Batch, **more: Any) -> dict[str, Any]:
        """Fetches; returns the one partition of the answer, {} if it is not there."""
        answer = self.ask_fetch(*acks, **more)
        assert answer["error_code"] == 0, answer
        self.epoch += 1
        parts = [part for topic in answer["responses"] for part in topic["partitions"]]
        return dict(parts[0]) if parts else {}

    def acquired(self, *acks: Batch, **more: Any) -> list[tuple[int, int, int]]:
        """Fetches; returns (first offset, last offset, deliveries) of the records that it acquires."""
        got = self.fetch(*acks, **more)
        assert got.get("error_code", 0) == 0, got
        assert got.get("acknowledge_error_code", 0) == 0, got
        rows = [(a["first_offset"], a["last_offset"], a["delivery_count"]) for a in got.get("acquired_records", [])]
        if rows:
            there = set(offsets_of(got["records"]))
            assert all(set(range(first, last + 1)) <= there for first, last, _ in rows), (rows, there)
        return rows

    def acknowledge(self, *acks: Batch, **more: Any) -> int:
        """Acknowledges; returns the partition's error code."""
        answer = self.raw.ask(ApiKey.SHARE_ACKNOWLEDGE, self.body(list(acks), **more))
        assert answer["error_code"] == 0, answer
        self.epoch += 1
        return int(answer["responses"][0]["partitions"][0]["error_code"])


def offsets_of(records: Any) -> list[int]:
    return [at for _, data in batch.split(records) for at in batch.decode(bytes(data)).offsets]
