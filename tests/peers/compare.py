"""Measures Apache Kafka beside Krappy, in one run on one machine, under the same load (driver.c): `make peers`.

All servers run all the time, and take turns: each measure is taken on one after the other, for a few rounds, with new
topics each time. Only one of them works at a time; idle ones take little, and all the same. Consumers read from the
page cache, since the events were just written. Kafka's heap is bounded to 1 GiB.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

from tests.peers.command import compare, parser
from tests.peers.driver import build
from tests.peers.peer import KINDS, Peer
from tests.peers.report import summary
from tests.security.authority import Authority

SHAPES = [(100, 1), (100, 16), (1000, 1), (1000, 16)]  # bytes a message, partitions
KEYS = 1_000_000
BEFORE = ("start-up (s)", "memory idle (MiB)")  # measured before the servers have done anything
Measure = Callable[[Peer, float], None]


def throughput(peer: Peer, scale: float) -> None:
    """Events a second, written with acks=all, then read from the beginning of the log (timed from the first answer
    on)."""
    for size, partitions in SHAPES:
        count = int((2_000_000 if size == 100 else 500_000) * scale)
        topic = peer.topic(partitions)
        label = f"{size} B, {partitions} partition{'s' * (partitions > 1)}"
        made = peer.drive("produce", topic, partitions, count, size, 0)
        peer.note(f"produce {label}", count / made["seconds"])
        read = peer.drive("consume", topic, partitions)
        peer.note(f"consume {label}", read["per_second"])
        peer.admin.delete(topic)


def tls(peer: Peer, scale: float) -> None:
    """Events of 1 KB a second over TLS; the ratio of that rate to the rate just before without TLS; and the CPU time of
    the server for each event, with and without."""
    count = int(500_000 * scale)
    for partitions in (1, 16):
        label = f"1000 B, {partitions} partition{'s' * (partitions > 1)}"
        found: dict[str, list[float]] = {}
        for over in (False, True):
            topic, began = peer.topic(partitions), peer.cpu()
            made = peer.drive("produce", topic, partitions, count, 1000, 0, tls=over)
            found.setdefault("produce", []).append(count / made["seconds"])
            between = peer.cpu()
            read = peer.drive("consume", topic, partitions, tls=over)
            found.setdefault("consume", []).append(read["per_second"])
            for what, seconds in (("produce", between - began), ("consume", peer.cpu() - between)):
                peer.note(f"CPU of {what} {label}{', TLS' * over} (us an event)", seconds / count * 1e6)
            peer.admin.delete(topic)
        for what, (plain, encrypted) in found.items():
            peer.note(f"{what} {label}, TLS", encrypted)
            peer.note(f"{what} {label}, TLS / without", encrypted / plain)


def keyed(peer: Peer, scale: float) -> None:
    """Events a second, each with one of a million keys; for Krappy with a view and without."""
    count = int(500_000 * scale)
    for view in (True, False) if peer.has_table else (None,):
        config = {} if view is None else {"view_enable": str(view).lower()}
        topic = peer.topic(4, **config)
        found = peer.drive("produce", topic, 4, count, 100, KEYS)
        if view is not False:
            peer.note("produce keyed 100 B, view on", count / found["seconds"])
        if view is not True:
            peer.note("produce keyed 100 B, view off", count / found["seconds"])
        peer.admin.delete(topic)


def latency(peer: Peer, scale: float) -> None:
    """Milliseconds from when an event is due to be sent until a consumer has it, at 1,000 events/s."""
    topic = peer.topic(1)
    found = peer.drive("latency", topic, 1000, max(2, int(10 * scale)))
    for name, shown in (("p50", "p50"), ("p99", "p99"), ("p999", "p99.9")):
        peer.note(f"latency {shown} (ms)", found[name] * 1000)
    peer.admin.delete(topic)


def bootstrap(peer: Peer, scale: float) -> None:
    """Seconds until a connected client has the latest state of 1 M keys after 10 M events.

    Kafka's consumer reads the whole log, Krappy's reads TOPIC@latest: the first time, when the broker makes it, and
    again; and the first time after a restart, when it was made ahead (`latest.ahead.enable`). The time includes the
    client's table of the keys; another measure is of a client that only counts events.
    """
    events, keys = int(10_000_000 * scale), int(KEYS * scale)
    topic = peer.topic(4)
    peer.drive("produce", topic, 4, events, 100, keys)
    source = f"{topic}@latest" if peer.has_table else topic
    first = peer.drive("table", source, 4)
    again = [peer.drive("table", source, 4)["seconds"] for _ in range(3)]
    counting = [peer.drive("consume", source, 4)["seconds"] for _ in range(3)]
    assert peer.has_table is False or first["count"] == first["keys"], "one event for each key"
    peer.note("bootstrap, first (s)", first["seconds"])
    peer.note("bootstrap (s)", median(again))
    peer.note("bootstrap, counted only (s)", median(counting))
    if peer.has_table:
        peer.admin.set_config(topic, "latest.ahead.enable", "true")
        peer.server.stop()
        peer.server.start()
        peer.settle()
    peer.note("bootstrap, first, made ahead (s)", peer.drive("table", source, 4)["seconds"])
    peer.admin.delete(topic)


MEASURES: dict[str, tuple[Measure, bool]] = {  # function, whether it is repeated each round
    "throughput": (throughput, True),
    "tls": (tls, True),
    "keyed": (keyed, True),
    "latency": (latency, True),
    "bootstrap": (bootstrap, False),
}


def run(names: list[str], measures: list[str], rounds: int, scale: float, folder: Path) -> dict[str, object]:
    """Runs all measures on all servers; returns the summary."""
    peers: list[Peer] = []
    authority = Authority(folder)
    try:
        for name in names:
            peers.append(Peer(name, folder / name, authority))
        for peer in peers:
            peer.start()
        for peer in peers:
            peer.note("memory idle (MiB)", peer.rss())
        for peer in peers:  # a Java process becomes faster as it runs
            sys.stderr.write(f"warming up {peer.name}\n")
            keyed(peer, 1.0)
            tls(peer, 0.2)
            latency(peer, 0.2)
            peer.results = {key: values for key, values in peer.results.items() if key in BEFORE}
        for number in range(rounds):
            for measure in measures:
                function, repeated = MEASURES[measure]
                if number and not repeated:
                    continue
                for peer in peers if number % 2 == 0 else reversed(peers):
                    sys.stderr.write(f"round {number + 1}: {measure} of {peer.name}\n")
                    function(peer, scale)
            for peer in peers:
                peer.note("memory loaded (MiB)", peer.rss())
        for peer in peers:
            peer.results["start-up, empty (s)"] = peer.results.pop("start-up (s)")
            for _ in range(rounds):
                peer.server.stop()
                peer.start()
        return summary({peer.name: peer.results for peer in peers}, {name: text for name, (_, text) in KINDS.items()})
    finally:
        for peer in peers:
            peer.close()


def main(arguments: list[str] | None = None) -> int:
    arguing = parser("peers", __doc__, KINDS, "of the number of events; 1.0: 10 M for bootstrap")
    arguing.add_argument("--measures", nargs="+", choices=MEASURES, default=list(MEASURES))
    arguing.add_argument("--ahead", action="store_true", help="ahead of this machine's other programs (needs root)")
    asked = arguing.parse_args(arguments)
    if asked.ahead:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))  # servers and load inherit it
        except PermissionError:
            arguing.error("--ahead needs root, or CAP_SYS_NICE")
    return compare(asked, build, lambda folder: run(asked.servers, asked.measures, asked.rounds, asked.scale, folder))


if __name__ == "__main__":
    sys.exit(main())
