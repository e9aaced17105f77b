"""Speed of the codec of Kafka's messages: `python tests/bench_kafka_codec.py` prints JSON, microseconds a message.

It is the best of several runs; kio's time for the same bytes is beside it. Not a test: nothing here asserts a time.

kio reads faster, but the broker does not use it, since a few hostile bytes end the whole process: kio reserves memory
for as many elements as an array claims to have, before it looks for them, and if there is not so much memory Rust
aborts. `--hostile` shows what becomes of a process that reads such bytes.
"""

from __future__ import annotations

import argparse
import io
import json
import signal
import subprocess
import sys
import textwrap
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


def hostile() -> dict[str, dict[str, str]]:
    """What becomes of a process that reads requests which claim 2**31 - 1 elements and have none."""
    many = (2**31 - 1).to_bytes(4, "big")
    bodies = {
        "Metadata 1": (ApiKey.METADATA, 1, many),
        "Produce 3": (ApiKey.PRODUCE, 3, bytes.fromhex("ffffffff00007530") + many),
        "Fetch 4": (ApiKey.FETCH, 4, bytes.fromhex("ffffffff000000010000000100000001") + b"\0" + many),
    }
    found = {}
    for name, (key, version, body) in bodies.items():
        kio = f"entity_reader(load_request_schema({key:d}, {version}))(bytes.fromhex('{body.hex()}'), 0)"
        ours = f"decode_request(ApiKey({key:d}), {version}, memoryview(bytes.fromhex('{body.hex()}')))"
        found[f"{name}, {len(body)} bytes"] = {"krappy": _becomes(ours), "kio": _becomes(kio)}
    return found


def _becomes(expression: str) -> str:
    imports = """
        import resource
        from kio.index import load_request_schema
        from kio.serial import entity_reader
        from krappy.wire.kafka import ApiKey, decode_request
        resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    """
    done = subprocess.run(
        [sys.executable, "-c", f"{textwrap.dedent(imports)}\n{expression}"], capture_output=True, text=True, timeout=60
    )
    if done.returncode < 0:
        return signal.Signals(-done.returncode).name
    return (done.stderr.strip().splitlines() or ["read"])[-1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--rounds", type=int, default=5000)
    arguments = parser.parse_args()
    if arguments.hostile:
        sys.stdout.write(json.dumps(hostile(), indent=2) + "\n")
        return 0
    rounds = arguments.rounds
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
