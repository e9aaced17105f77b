"""How long the heaviest requests of the console hold the event loop at a stretch: python -m tests.console.stalls

Measured is the longest step of any task in processor time of the loop's thread, so that other programs on the machine
do not count. A native request that comes meanwhile waits for that long. `--topics` makes as many topics first.
"""

from __future__ import annotations

import argparse
import base64
import gc
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import msgspec
import trio
import trio.abc

from krappy.console.api import MAX_EVENT
from krappy.console.shown import WHOLE
from krappy.testing.running import RunningBroker, run_broker

HEADERS = {"Krappy-Request": "1", "Content-Type": "application/json"}
PACKED = {"Krappy-Request": "1", "Content-Type": "application/msgpack"}
MANY = 5000  # entries of the table that is scanned


class Longest(trio.abc.Instrument):
    """The longest step since `clear`, and the task whose step it was."""

    def __init__(self) -> None:
        self.began = 0.0
        self.clear()

    def clear(self) -> None:
        self.seconds, self.task = 0.0, ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        took = time.thread_time() - self.began
        if took > self.seconds:
            self.seconds, self.task = took, task.name.rpartition(".")[2]


def fill(broker: RunningBroker, topics: int) -> None:
    with broker.connect(timeout=600.0) as client:
        client.create_topic("large", partitions=8, config={"max.message.bytes": 4 << 20})
        with client.producer("large") as producer:
            for number in range(64):
                producer.send(b"\0" * 1_000_000, key=b"k%03d" % number)
        client.create_topic("many", partitions=4)
        client.create_topic("tiny")
        for topic in ("many", "tiny"):
            with client.producer(topic) as producer:
                producer.post_columns([b"k%06d" % number for number in range(MANY)], [b"{}"] * MANY)
        for number in range(topics):
            client.create_topic(f"crowd-{number:06}")


def requests() -> dict[str, dict[str, Any]]:
    size = MAX_EVENT - 200
    text = '{"value":"' + "x" * size + '"}'
    escaped = '{"value":"' + "\\u00e4" * (size // 6) + '"}'
    coded = json.dumps({"value": {"base64": base64.b64encode(bytes(size // 4 * 3)).decode()}})
    dense = '{"value":{"json":[' + "1," * (size // 2 - 20) + "1]}}"
    heads = '{"value":"x","headers":[' + '["a",null],' * 20_000 + '["a",null]]}'
    packed = msgspec.msgpack.encode({"value": {"bytes": bytes(size)}})
    publish = "/api/v1/topics/large/events"
    whole = {"value_bytes": WHOLE}
    return {
        "publish 2 MB of text": {"method": "POST", "url": publish, "content": text},
        "publish 2 MB of escapes": {"method": "POST", "url": publish, "content": escaped},
        "publish 2 MB of base64": {"method": "POST", "url": publish, "content": coded},
        "publish 2 MB of numbers": {"method": "POST", "url": publish, "content": dense},
        "publish 20,000 headers": {"method": "POST", "url": publish, "content": heads},
        "publish 2 MB of msgpack": {"method": "POST", "url": publish, "content": packed, "headers": PACKED},
        "page of 1 MB events": {"url": publish, "params": whole},
        "table of 1 MB values": {"url": "/api/v1/topics/large/table", "params": {"limit": 1000, **whole}},
        "one event of 1 MB": {"url": "/api/v1/topics/large/partitions/0/events/0"},
        "page of 1,000 events": {"url": "/api/v1/topics/tiny/events", "params": {"limit": 1000}},
        "table, 1,000 entries": {"url": "/api/v1/topics/many/table", "params": {"limit": 1000}},
        "1,000 topics": {"url": "/api/v1/topics", "params": {"limit": 1000}},
        "overview": {"url": "/api/v1/overview"},
        "metrics": {"url": "/metrics"},
        "metrics, all topics": {"url": "/metrics", "params": {"topics": 1_000_000}},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=0)
    parser.add_argument("--times", type=int, default=3)
    given = parser.parse_args()
    longest = Longest()
    added = False

    def report(event: str, **facts: Any) -> None:
        nonlocal added
        if not added:  # it is called on the event loop
            added = True
            trio.lowlevel.add_instrument(longest)

    with (
        tempfile.TemporaryDirectory(prefix="krappy-") as folder,
        run_broker(Path(folder), listen_http="127.0.0.1:0", durability="os", report=report) as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=600.0, trust_env=False) as client,
    ):
        client.get("/healthz")  # the console is imported
        fill(broker, given.topics)
        gc.freeze()  # as `krappy serve` does; here the client's objects are in the broker's process, too
        gc.set_threshold(50_000, 20, 50)
        assert added, "the broker reported nothing that the instrument could be added at"
        for name, request in requests().items():
            worst, whose, began, size = 0.0, "", time.perf_counter(), 0
            for _ in range(given.times):
                longest.clear()
                answer = client.request(**{"method": "GET", "headers": HEADERS, **request})
                size = len(answer.content)
                if longest.seconds > worst:
                    worst, whose = longest.seconds, longest.task
            seconds = (time.perf_counter() - began) / given.times
            print(f"{name:26} {answer.status_code} {size:>10,} B {seconds:7.3f} s  {worst * 1000:6.2f} ms  {whose}")  # noqa: T201


if __name__ == "__main__":
    main()
