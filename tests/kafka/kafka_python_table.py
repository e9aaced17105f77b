"""A program for test_latest_alias.py: kafka-python reads a topic, alone or (with a group) as a member, and commits.

Arguments: the broker's address, the topic, how many records, and the group if there is one. Prints them as JSON. It is
a process of its own because this client leaves sockets for the garbage collector to close.
"""

from __future__ import annotations

import json
import sys

from kafka import KafkaConsumer, TopicPartition


def main(address: str, topic: str, count: str, group: str | None = None) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=address, group_id=group, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    if group is None:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
    else:
        consumer.subscribe([topic])
    found = [next(consumer) for _ in range(int(count))]
    if group is not None:
        consumer.commit()
    consumer.close()
    sys.stdout.write(json.dumps([[each.topic, each.offset, each.key.decode(), each.value.decode()] for each in found]))


if __name__ == "__main__":
    main(*sys.argv[1:])
