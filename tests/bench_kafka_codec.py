"""Speed of the codec of Kafka's messages: `python tests/bench_kafka_codec.py` prints JSON, microseconds a message.

It is the best of several runs; kio's time for the same bytes is beside it. Not a test: nothing here asserts a time.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import timeit
from collections.abc import Callable
from typing import Any

from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from krappy.wire.kafka import ApiKey, decode_request, encode_request, encode_response, parse_header

REPEATS = 5
ID = bytes(range(16))


def partitions(count: int) -> list[dict[str, Any]]:
    offsets = {"high_watermark": 1000, "last_stable_offset": 1000, "log_start_offset": 0}
    return [{"partition_index": index, **offsets, "records": bytes(4000)} for index in range(count)]


def produce(size: int) -> dict[str, Any]:
    topic = {"name": "topic", "topic_id": ID, "partition_data": [{"index": 3, "records": bytes(size)}]}
    return {"acks": -1, "timeout_ms": 30_000, "topic_data": [topic]}


def fetched(count: int) -> dict[str, Any]:
    return {"responses": [{"topic": "topic", "topic_id": ID, "partitions": partitions(count)}]}


def metadata(topics: int) -> dict[str, Any]:
    replicas = {"leader_id": 0, "leader_epoch": 0, "replica_nodes": [0], "isr_nodes": [0]}
    lists = [{"partition_index": index, **replicas} for index in range(3)]
    found = [{"name": f"topic-{number}", "topic_id": ID, "partitions": lists} for number in range(topics)]
    return {"brokers": [{"node_id": 0, "host": "localhost", "port": 9092}], "cluster_id": "c" * 22, "topics": found}


def best(work: Callable[[], object], rounds: int) -> float:
    work()
    return round(min(timeit.repeat(work, number=rounds, repeat=REPEATS)) / rounds * 1e6, 2)


def request(key: ApiKey, version: int, message: dict[str, Any], rounds: int) -> dict[str, float]:
    """Reads a request with its header; returns microseconds of both codecs."""
    frame = memoryview(encode_request(key, version, 1, "rdkafka", message))[4:]

    def ours() -> None:
        header = parse_header(frame)
        decode_request(header.api_key, header.version, frame[header.body_at :])

    body, kio = bytes(frame[parse_header(frame).body_at :]), entity_reader(load_request_schema(key, version))
    return {"krappy": best(ours, rounds), "kio, without header": best(lambda: kio(body, 0), rounds)}


def response(key: ApiKey, version: int, message: dict[str, Any], rounds: int) -> dict[str, float]:
    """Writes a response; returns microseconds of both codecs."""
    frame = b"".join(encode_response(key, version, 1, message))
    schema = load_response_schema(key, version)
    entity = entity_reader(schema)(frame, 9)[0]
    write = entity_writer(schema)
    return {
        "krappy": best(lambda: encode_response(key, version, 1, message), rounds),
        "kio, without header": best(lambda: write(io.BytesIO(), entity), rounds),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    rounds = parser.parse_args().rounds
    found = {
        "read Produce 10, 1 partition": request(ApiKey.PRODUCE, 10, produce(1000), rounds),
        "write Fetch 16, 1 partition": response(ApiKey.FETCH, 16, fetched(1), rounds),
        "write Fetch 16, 10 partitions": response(ApiKey.FETCH, 16, fetched(10), rounds // 4),
        "write Metadata 12, 10 topics of 3": response(ApiKey.METADATA, 12, metadata(10), rounds // 20),
    }
    sys.stdout.write(json.dumps(found, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
