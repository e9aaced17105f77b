"""Checks that a broker, after a loss of power at some moment of a workload, has all that it had acknowledged."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from krappy.blocking import Client, connect
from krappy.cli import archive, checkup, generations
from krappy.cli.errors import Failure
from krappy.errors import KrappyError
from krappy.store.format import TROUBLE
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.crash.life import check_partition
from tests.kafka.raw import Raw
from tests.kafka.transactional import Transactional
from tests.peer import Peer
from tests.power.workload import DAILY, GROUP, JOBS, KEPT, NEVER, PAIR, ROWS, Backup, Decision, Workload, join
from tests.process import BrokerProcess, wait_until

LOST = re.compile(rf"/{TROUBLE}: lost: offsets (\d+) to (\d+) ")


class Window(NamedTuple):
    """The loss of power was between two moments of the record. What was acknowledged before `first` must be there. What
    was not requested before `last` can't be there."""

    first: int
    last: int


def check_broker(workload: Workload, window: Window, broker: BrokerProcess, random: Random) -> None:
    """Checks a broker that was started on the remaining files. Then stops it, and checks its files as `krappy doctor`
    does."""
    durable = workload.durable
    with Peer(broker.address) as peer:
        there = peer.topics()
        for (topic, partition), ledger in workload.book.partitions.items():
            if durable or topic in there:
                known = replace(ledger.as_of(window.first if durable else -1), torn=True)
                check_partition(peer, workload.book, topic, partition, known, random)
        if durable:
            if window.first == window.last:
                for churn in workload.churn:
                    churn.as_of(window.first).check(peer)
            _check_group(workload, window, peer)
    if durable:
        _check_transactions(workload, window, broker)
        _check_positions(workload, window, broker)
        _check_jobs(workload, window, broker)
    assert not broker.events("internal_error"), "the broker met a bug of its own"
    assert broker.stop() == 0, "the broker did not stop well"
    found = checkup.check(broker.data, repair=False, tell=lambda *_: None)
    others = [each for part in found.partitions for each in _unexpected(workload, window, part)]
    assert not found.problems + others, found


def _unexpected(workload: Workload, window: Window, found: checkup.CheckedPartition) -> list[str]:
    """The problems of a partition that are not expected. Events that were not promised may be lost. If the disk has
    kept later events, the broker reports the loss all the same, because it can't know that they were not
    acknowledged."""
    if not workload.durable:
        return [each for each in found.problems if f"/{TROUBLE}: lost" not in each]
    ledger = workload.book.partitions.get((found.topic, found.index))
    promised = set[int | None]() if ledger is None else ledger.as_of(window.first).acknowledged

    def is_expected(problem: str) -> bool:
        lost = LOST.search(problem)
        return lost is not None and promised.isdisjoint(range(int(lost[1]), int(lost[2]) + 1))

    return [each for each in found.problems if not is_expected(each)]


def _check_group(workload: Workload, window: Window, peer: Peer) -> None:
    """Checks that no acked event is leased again, and that no position of the group is beyond an event that no member
    has acked."""
    acked = {place for each in workload.members for place, at in each.acked.items() if at <= window.first}
    asked = {place for each in workload.members for place, at in each.asked.items() if at <= window.last}
    try:
        positions = peer.ask(m.Positions(GROUP), m.PositionsFound).offsets
    except KrappyError:
        positions = []
    assert positions or not acked, "the group is lost"
    for topic, partition, floor in positions:
        mine = {offset for at, offset in asked if at == partition}
        assert set(range(floor)) <= mine, f"the group's position in {topic}-{partition} passed what nobody acknowledged"
    handle = join(peer)
    while leases := peer.ask(m.Poll(handle, max_records=10_000, max_wait=0), m.Polled).leases:
        for _, partition, first, last, _ in leases:
            again = {(partition, offset) for offset in range(first, last + 1)} & acked
            assert not again, f"acknowledged, and given out again: {sorted(again)[:5]}"


def _check_transactions(workload: Workload, window: Window, broker: BrokerProcess) -> None:
    """Checks that transactions are whole. A transaction is there if its commit was answered, and is not there if it was
    aborted or not decided. The position of the group is that of the last transaction."""
    with Raw(broker.kafka) as raw:
        Transactional(raw, workload.transactions.name).init()  # aborts an open transaction
        position = _position(raw, workload.transactions.name, PAIR[0])
    with connect(broker.address) as client:
        seen = [_keys(client, topic) for topic in PAIR]
    assert seen[0] == seen[1], "a transaction is in one of its topics, and not in the other"
    check_decisions(workload.transactions.made, Counter(seen[0]), 1, window)
    last = max((int(name) + 1 for name in seen[0]), default=-1)
    assert position == last, "the position is not that of the last transaction"


def _check_positions(workload: Workload, window: Window, broker: BrokerProcess) -> None:
    made = workload.positions.made
    with Raw(broker.kafka) as raw:
        position = _position(raw, workload.positions.name, "plain")
    least = max((number for number, (_, answered) in enumerate(made) if answered <= window.first), default=-1)
    most = max((number for number, (asked, _) in enumerate(made) if asked <= window.last), default=-1)
    assert least <= position <= most, f"the group committed {least} to {most}, and is at {position}"


def _position(raw: Raw, group: str, topic: str) -> int:
    body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    answer = raw.ask(ApiKey.OFFSET_FETCH, body, 5)
    return int(answer["topics"][0]["partitions"][0]["committed_offset"])


def _check_jobs(workload: Workload, window: Window, broker: BrokerProcess) -> None:
    """Checks the same for staged jobs, and that a sealed job can still be committed."""
    with connect(broker.address) as client:
        wait_until(lambda: not [job for job in client.staged_jobs() if job.state != "Open"], "publications end")
        seen = Counter(key.split()[0] for key in _keys(client, JOBS))
        check_decisions(workload.jobs.made, seen, ROWS, window)
        for name, commit, asked, _ in workload.jobs.made:
            token, sealed = workload.jobs.sealed.get(name, ("", NEVER))
            if commit and sealed <= window.first and window.last <= asked:
                assert client.commit_staged(name, [token]).records == ROWS
        _keys(client, JOBS)


def _keys(client: Client, topic: str) -> list[str]:
    """The keys of all events of a topic. Each event has a key of its own. Checks that the table has the same keys and
    offsets."""
    with client.consumer(topic, start="earliest", end="now") as consumer:
        seen = {event.key: event.offset for event in consumer}
    table = {entry.key: entry.offset for entry in client.table(topic).scan()}
    assert table == seen, f"the table of {topic} is not the fold of its log"
    return [(key or b"").decode() for key in seen]


def check_decisions(made: list[Decision], seen: Counter[str], events: int, window: Window) -> None:
    for name, commit, asked, answered in made:
        found = seen.pop(name, 0)
        assert found in (0, events), f"{found} of {events} events of {name} are there"
        if answered <= window.first:
            assert bool(found) == commit, f"{name} was {'committed' if commit else 'aborted'}: {found} events"
        elif asked > window.last or not commit:
            assert not found, f"nobody has committed {name}"
    assert not seen, f"nobody has written {seen}"


def check_backups(workload: Workload, moment: int, root: Path) -> list[Backup]:
    """Checks that all backups are whole that were reported as complete, or look complete. Returns the reported ones
    that were not deleted since."""
    made = workload.backups.made
    daily = [each for each in made if each.incremental]
    there = []
    for each in made:
        if each.done <= moment:
            later = [other for other in daily if other.asked > each.asked and other.asked <= moment]
            if not each.incremental or len(later) < KEPT:
                assert (root / each.path).exists(), f"the backup {each.path} is lost"
                there.append(each)
    paths = {root / each.path for each in there} | set(generations.list_all(root / DAILY))
    for path in sorted(paths):
        try:
            wrong = wrong_files(path)
        except Failure as error:
            raise AssertionError(f"the backup {path} is broken: {error.message}") from None
        assert not wrong, f"the backup {path} is broken: {wrong}"
    return there


def wrong_files(path: Path) -> list[str]:
    return archive.check((archive.read_folder if path.is_dir() else archive.read_tar)(path), lambda *_: None)[1]
