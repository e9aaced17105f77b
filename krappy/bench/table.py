"""`krappy bench get` and `krappy bench scan`: how fast a table is read."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Any

from krappy.bench import load
from krappy.bench.brokers import leader_of
from krappy.bench.pipe import close_pipes, drive, open_pipes
from krappy.bench.report import Round
from krappy.bench.settings import BenchSettings
from krappy.bench.topics import fill, own_topic
from krappy.cli.errors import Failure
from krappy.wire.messages import Get, MultiGet

if TYPE_CHECKING:
    from krappy.blocking import Client


def get(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """Looks up keys of a full table, drawn at random: one at a time, or with `batch` > 1 that many in one multi-get.

    Timed: packing the requests, sending them, receiving and unpacking the entries.
    """
    stored = load.every_key(settings.keys, settings.record_bytes)
    size = len(stored.keys[0]) + len(stored.values[0])
    per_request = max(1, settings.batch)
    requests = max(1, settings.count // per_request)
    with own_topic(client, settings) as topic:
        leader = leader_of(address, topic)
        for _ in range(settings.history):
            fill(client, topic, stored, settings)
        client.table(topic).get(stored.keys[0])  # returns when the view includes all events
        rounds = []
        for seed in range(settings.rounds):
            chance = random.Random(seed)
            picked = [chance.choices(range(settings.keys), k=per_request) for _ in range(requests)]
            wanted = [list(map(load.key, numbers)) for numbers in picked]

            def one(id: int, wanted: list[list[bytes]] = wanted) -> bytes:
                return Get(topic, wanted[id][0]).frame(id)

            def many(id: int, wanted: list[list[bytes]] = wanted) -> bytes:
                return MultiGet(topic, wanted[id]).frame(id)

            frame = one if settings.batch <= 1 else many
            pipes = open_pipes(leader, settings.connections)
            try:
                run = drive(pipes, [frame] * len(pipes), requests, settings.window, _entries_found)
            finally:
                close_pipes(pipes)
            found = requests * per_request
            rounds.append(Round(found, run.seconds, found * size, run.latencies))
    return rounds


def _entries_found(values: dict[str, Any]) -> None:
    found = values["entries"] if "entries" in values else values["entry"]
    if None in found:
        raise Failure("a key that was stored was not found: this broker has lost an event")


def scan(client: Client, address: str, settings: BenchSettings) -> list[Round]:
    """Reads a whole table of `count` keys. Timed: from the request until the client has decoded the last entry."""
    stored = load.every_key(settings.count, settings.record_bytes)
    with own_topic(client, settings) as topic:
        fill(client, topic, stored, settings)
        client.table(topic).get(stored.keys[-1])  # returns when the view includes all events
        rounds = []
        for _ in range(settings.rounds):
            start = time.perf_counter()
            found = sum(map(len, client.table(topic).scan().pages()))
            seconds = time.perf_counter() - start
            if found != len(stored):
                raise Failure(f"a scan found {found:,} of {len(stored):,} entries")
            rounds.append(Round(found, seconds, stored.size))
    return rounds
