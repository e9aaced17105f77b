"""A program for test_groups_pure_clients.py: consumers of kafka-python share a group. Argument: the broker's address.

It is a process of its own because this client leaves sockets for the garbage collector to close.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

from kafka import KafkaConsumer, KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from tests.process import wait_until

TIMES: dict[str, Any] = {"session_timeout_ms": 60_000, "heartbeat_interval_ms": 200}


def create(address: str, topic: str) -> None:
    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(topic, 4, 1)])
    admin.close()


def produce(address: str, topic: str, values: range) -> None:
    producer = KafkaProducer(bootstrap_servers=address)
    for value in values:
        producer.send(topic, str(value).encode(), partition=value % 4)
    producer.flush(30)
    producer.close()


def until(condition: Any, what: str) -> None:
    wait_until(condition, what)


class Member:
    """A kafka-python consumer in a thread of its own."""

    def __init__(self, address: str, group: str, topic: str, **more: Any) -> None:
        settings = TIMES | {"auto_offset_reset": "earliest", "enable_auto_commit": False} | more
        self.consumer = KafkaConsumer(topic, bootstrap_servers=address, group_id=group, **settings)
        self.got: list[int] = []
        self.parts: set[int] = set()
        self._stop = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop:
            for records in self.consumer.poll(timeout_ms=50).values():
                self.got += [int(record.value) for record in records]
                self.consumer.commit()
            self.parts = {part.partition for part in self.consumer.assignment()}
        self.consumer.close()

    def close(self) -> None:
        self._stop = True
        self._thread.join(30)


def main(address: str) -> None:
    create(address, "plain")
    produce(address, "plain", range(20))
    first = Member(address, "plain", "plain")
    until(lambda: len(first.got) == 20, "all events")
    second = Member(address, "plain", "plain")
    until(lambda: len(first.parts) == len(second.parts) == 2, "two partitions each")
    produce(address, "plain", range(20, 40))
    until(lambda: len(first.got) + len(second.got) == 40, "the others")
    second.close()
    until(lambda: first.parts == {0, 1, 2, 3}, "all partitions again")
    first.close()
    assert sorted(first.got + second.got) == [*range(40)]
    admin = KafkaAdminClient(bootstrap_servers=address)
    offsets = admin.list_group_offsets({"plain": None})["plain"]
    assert {part.partition: told.offset for part, told in offsets.items()} == dict.fromkeys(range(4), 10)
    admin.close()


if __name__ == "__main__":
    main(sys.argv[1])
