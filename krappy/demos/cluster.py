"""`krappy demo cluster`: flights stream through three brokers while a leader, the controller and ZooKeeper are killed.

At the end every replica's log is compared with the file: each event is there once, in order; and every table with the
fold of its log.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from krappy import blocking
from krappy.cli.checkup import view_problems
from krappy.cli.commands.cluster import ClusterWatch
from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures
from krappy.demos.cluster_processes import DemoBroker, DemoZooKeeper, find_jars, free_ports
from krappy.demos.flights import find_file, rows
from krappy.demos.show import Show
from krappy.partitioner import partition_for
from krappy.records import batch as batches
from krappy.settings.topic import TopicConfig
from krappy.store.catalog import LocalCatalog
from krappy.store.log import Log
from krappy.store.meta import Meta
from krappy.store.views import Views
from krappy.types import id_of

TOPIC, PARTITIONS, REPLICAS = "flights", 6, 3
CHUNKS, PAUSE_S = 250, 0.1  # the stream comes in so many parts, with a pause between two
PATIENCE_S = 90.0
AWAY_S = 3.0  # for ZooKeeper: less than a session, so that leaders stay
TOLD = {"leader", "controller", "broker_came", "broker_left", "broker_restarted"}


class FlightStream:
    """Sends all flights, keyed by aircraft. `expected`: by partition, the values in their order. `done`: how much of
    it was sent, from 0 to 1."""

    def __init__(self, addresses: str, file: Path, limit: int | None) -> None:
        names, *found = islice(rows(file), None if limit is None else limit + 1)
        aircraft = names.index("tailnum")
        self._keys = [row[aircraft] for row in found]
        self._values = [json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":")) for row in found]
        self.expected: dict[int, list[bytes]] = {index: [] for index in range(PARTITIONS)}
        for key, value in zip(self._keys, self._values, strict=True):
            self.expected[partition_for(key.encode(), PARTITIONS)].append(value.encode())
        self.count, self.done = len(found), 0.0
        self.failed: BaseException | None = None
        self._addresses = addresses
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        size = max(1, -(-self.count // CHUNKS))
        try:
            with blocking.connect(self._addresses, timeout=PATIENCE_S) as client, client.producer(TOPIC) as producer:
                for first in range(0, self.count, size):
                    producer.post_columns(self._keys[first : first + size], self._values[first : first + size])
                    self.done = (first + size) / self.count
                    time.sleep(PAUSE_S)
        except BaseException as error:
            self.failed = error

    def wait(self, part: float) -> None:
        """Waits until this part of the stream, from 0 to 1, was sent. Raises Failure."""
        until(lambda: self.done >= part or self.failed is not None, "the stream goes on", 3 * PATIENCE_S)
        if self.failed is not None:
            raise Failure(f"the stream ended: {self.failed}")

    def finish(self) -> None:
        """Waits until all events are acknowledged. Raises Failure."""
        self._thread.join(2 * PATIENCE_S)
        if self.failed is not None or self._thread.is_alive():
            raise Failure(f"not every event was acknowledged: {self.failed or 'it takes too long'}")


def run(show: Show, limit: int | None, zookeeper: str | None, jars: Path | None) -> None:
    """Runs the demo. `zookeeper`: one that runs, HOST:PORT. Raises Failure when something is not as it should be."""
    file = find_file()  # first: without it nothing needs to be started
    with tempfile.TemporaryDirectory(prefix="krappy-demo-") as temporary, ExitStack() as stack:
        folder = Path(temporary)
        own = None
        if zookeeper is None:
            own = DemoZooKeeper(folder / "zookeeper", free_ports(1)[0], find_jars(jars))
            stack.callback(own.kill)
            own.start()
            zookeeper = own.address
        where = f"{zookeeper}/{folder.name}"
        ports = iter(free_ports(3 * REPLICAS))
        brokers = {
            id: DemoBroker(id, folder, where, (next(ports), next(ports), next(ports))) for id in range(1, REPLICAS + 1)
        }
        for each in brokers.values():
            stack.callback(each.kill)
        show.heading(f"three brokers over ZooKeeper at {where}")
        for each in brokers.values():
            each.start()
        until(lambda: len(state(brokers)["brokers"]) == REPLICAS, "all brokers are registered")
        _stream(show, brokers, own, file, limit)


def _stream(
    show: Show, brokers: dict[int, DemoBroker], zookeeper: DemoZooKeeper | None, file: Path, limit: int | None
) -> None:
    addresses = ",".join(each.address for each in brokers.values())
    with blocking.connect(addresses, timeout=PATIENCE_S) as client:
        client.create_topic(TOPIC, PARTITIONS, replication_factor=REPLICAS)
        topic_id = client.describe(TOPIC).id
    stream = FlightStream(addresses, file, limit)
    show.heading(f"{stream.count:,} flights stream into {PARTITIONS} partitions with {REPLICAS} replicas each")
    with _told(show, brokers):
        stream.start()
        stream.wait(0.1)
        leader = next(id for id in (3, 2) if id != state(brokers)["controller"])
        _away(show, stream, brokers, leader, f"broker {leader}, which leads two partitions", 0.35)
        controller = state(brokers)["controller"]
        _away(show, stream, brokers, controller, f"broker {controller}, which is the controller", 0.65)
        if zookeeper is not None:
            show.line(f"ZooKeeper is killed, for {AWAY_S:g} s")
            before = stream.done
            zookeeper.kill()
            time.sleep(AWAY_S)
            show.line(f"without it {max(0, round((stream.done - before) * stream.count)):,} events went on")
            zookeeper.start()
        stream.finish()
        until(lambda: whole(state(brokers)), "every replica has everything")
    show.line("every event is acknowledged, and every replica in sync; now the brokers are stopped")
    for each in brokers.values():
        each.stop()
    for each in brokers.values():
        _check(show, each, stream, topic_id)
    show.fact("events", stream.count)


def _away(show: Show, stream: FlightStream, brokers: dict[int, DemoBroker], id: int, who: str, back: float) -> None:
    """Kills a broker while events come, and starts it again later."""
    show.line(f"SIGKILL to {who}")
    began = time.monotonic()
    brokers[id].kill()
    until(lambda: id not in leaders(brokers), f"broker {id} leads nothing")
    show.line(f"its partitions have other leaders after {time.monotonic() - began:.1f} s")
    until(lambda: state(brokers)["controller"] not in (id, None), "there is a controller")
    stream.wait(back)
    brokers[id].start()
    until(lambda: whole(state(brokers), lag=None), f"broker {id} is in sync again")
    show.line(f"broker {id} has caught up, and is in sync again")


@contextmanager
def _told(show: Show, brokers: dict[int, DemoBroker]) -> Iterator[None]:
    """Prints what changes in the cluster, except in ISRs, until the block ends."""
    began = time.time()
    ended = threading.Event()

    def tell() -> None:
        for each in ClusterWatch(console(brokers), {}, lambda line: None).changes():
            if ended.is_set():
                return
            if each["kind"] in TOLD:
                show.line(f"  {each['at_ms'] / 1000 - began:5.1f} s  {each['text']}")

    threading.Thread(target=tell, daemon=True).start()
    yield
    ended.set()


def console(brokers: dict[int, DemoBroker]) -> ConsoleFigures:
    """The console of a broker that runs."""
    return ConsoleFigures(next(each.http for each in brokers.values() if each.runs), None)


def state(brokers: dict[int, DemoBroker]) -> dict[str, Any]:
    found: dict[str, Any] = console(brokers).get("cluster/state")
    return found


def leaders(brokers: dict[int, DemoBroker]) -> set[int | None]:
    return {each["leader"] for topic in state(brokers)["topics"] for each in topic["partitions"]}


def whole(found: dict[str, Any], lag: int | None = 0) -> bool:
    """Whether all replicas are in sync; with `lag` 0 also whether each has everything."""
    rows = [each for topic in found["topics"] for each in topic["partitions"]]
    followers = [one for each in rows for one in each["replicas"] if one["broker"] != each["leader"]]
    there = len(found["brokers"]) == REPLICAS and not found["under_replicated"] and not found["offline"]
    return there and (lag is None or all(one["lag"] == lag for one in followers))


def until(done: Callable[[], bool], what: str, seconds: float = PATIENCE_S) -> None:
    """Waits until `done()`. Raises Failure, which names `what`, after `seconds`."""
    end = time.monotonic() + seconds
    why = ""
    while True:
        try:
            if done():
                return
        except Failure as failure:  # the broker that was asked does not answer now
            why = f": {failure.format_message()}"
        if time.monotonic() > end:
            raise Failure(f"still not so after {seconds:.0f} s: {what}{why}")
        time.sleep(0.1)


def _check(show: Show, broker: DemoBroker, stream: FlightStream, topic_id: str) -> None:
    """Compares the replicas of a stopped broker with the file, and its tables with its logs."""
    wrong, tables = [], []
    meta = Meta(broker.data / "meta")
    numbers = LocalCatalog(meta).numbers.of(id_of(topic_id))
    views = Views(broker.data / "views")
    for index, expected in stream.expected.items():
        log = Log.open(broker.data / "topics" / f"{TOPIC}-{index}", TopicConfig())
        if _values(log) != expected:
            wrong.append(index)
        tables += view_problems(log, views, numbers[index])
        tables += [f"{index} is behind"] if views.applied(numbers[index]) < log.end_offset else []
        log.close()
    views.close()
    meta.close()
    show.check(
        f"broker {broker.id} has every event once, in the file's order, in each partition", not wrong, f"{wrong}"
    )
    show.check(f"broker {broker.id}'s tables are the fold of its logs", not tables, "; ".join(tables[:3]))


def _values(log: Log) -> list[bytes | None]:
    found: list[bytes | None] = []
    offset = log.start_offset
    while offset < log.end_offset:
        span = log.read_span(offset, 1 << 20)
        for header, view in batches.split(span.data):
            if not header.is_control:
                found += batches.decode(view).values
        offset = span.next_offset
    return found
