"""A transactional producer over the bare client."""

from __future__ import annotations

from collections import Counter
from itertools import count
from typing import Any

from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, produce

_names = count()


class Transactional:
    """A producer that does what it is told, and no more."""

    def __init__(self, raw: Raw, name: str | None = None) -> None:
        self.raw = raw
        self.name = name or f"id-{next(_names)}"
        self.id = self.epoch = -1
        self.sequences: Counter[str] = Counter()  # the next sequence of each topic

    def init(self, version: int = 5, **more: Any) -> Transactional:
        answer = self.ask_init(version, **more)
        assert answer["error_code"] == Code.NONE, answer
        self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
        self.sequences.clear()
        return self

    def ask_init(self, version: int = 5, **more: Any) -> dict[str, Any]:
        body = {"transactional_id": self.name, "transaction_timeout_ms": 60_000, **more}
        return self.raw.ask(ApiKey.INIT_PRODUCER_ID, body, version)

    def add(self, *partitions: tuple[str, int], version: int = 3) -> list[Code]:
        body = {
            "v3_and_below_transactional_id": self.name,
            "v3_and_below_producer_id": self.id,
            "v3_and_below_producer_epoch": self.epoch,
            "v3_and_below_topics": [{"name": topic, "partitions": [index]} for topic, index in partitions],
        }
        answer = self.raw.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, version)
        return [
            Code(each["partition_error_code"])
            for topic in answer["results_by_topic_v3_and_below"]
            for each in topic["results_by_partition"]
        ]

    def add_offsets(self, group: str, version: int = 3) -> Code:
        body = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "group_id": group,
        }
        return Code(self.raw.ask(ApiKey.ADD_OFFSETS_TO_TXN, body, version)["error_code"])

    def commit_offset(self, group: str, topic: str, offset: int, version: int = 3, **more: Any) -> Code:
        position = {"partition_index": 0, "committed_offset": offset, "committed_metadata": "m", **more}
        body = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "group_id": group,
            "topics": [{"name": topic, "partitions": [position]}],
        }
        answer = self.raw.ask(ApiKey.TXN_OFFSET_COMMIT, body, version)
        return Code(answer["topics"][0]["partitions"][0]["error_code"])

    def end(self, commit: bool, version: int = 3) -> Code:
        body = {
            "transactional_id": self.name,
            "producer_id": self.id,
            "producer_epoch": self.epoch,
            "committed": commit,
        }
        answer = self.raw.ask(ApiKey.END_TXN, body, version)
        if version >= 5 and answer["error_code"] == Code.NONE:
            self.id, self.epoch = answer["producer_id"], answer["producer_epoch"]
            self.sequences.clear()
        return Code(answer["error_code"])

    def write(self, topic: str, value: bytes, key: bytes = b"k", version: int = 11) -> Code:
        data = batch.encode(
            [key],
            [value],
            timestamps=1_000,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[topic],
            transactional=True,
        )
        body = produce(topic, data) | {"transactional_id": self.name}
        [found] = self.raw.ask(ApiKey.PRODUCE, body, version)["responses"][0]["partition_responses"]
        code = Code(found["error_code"])
        self.sequences[topic] += code is Code.NONE
        return code
