"""Random histories of a share group whose members behave as Kafka's Java consumer does, with broken connections, lost
answers, locks that end, and kills of the broker: no record is lost, or comes to a member that does not know of it.

The Java consumer forgets at its next fetch what it has unsubscribed from; what an acknowledgement names is in its next
fetch once more; and it drops records of a partition that is not in its session."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from krappy.broker.broker import LocalBroker
from krappy.broker.clock import Clock
from krappy.core.kafka.share import ShareRules
from krappy.handlers.kafka.share_fetch import share_acknowledge, share_fetch
from krappy.records import batch
from krappy.testing.sessions import kafka_session
from krappy.wire.kafka import Code
from tests.broker.engine import as_killed, publish, running
from tests.kafka.shares import ACCEPT, REJECT, RELEASE

FINAL = -1  # epoch
LOCK_MS = 10_000
At = tuple[int, int]  # topic, partition
Acks = dict[At, dict[int, int]]  # by partition: how each offset is acknowledged


class History:
    """What one seed makes. `given`: how often each record came to some member."""

    def __init__(self, seed: int) -> None:
        self.random = random = Random(seed)
        self.topics, self.partitions = random.choice([1, 2, 3]), random.choice([1, 2])
        self.limit = random.choice([2, 3, 5])
        self.steps, self.kills = random.choice([40, 120, 250]), 0
        self.published: set[tuple[At, int]] = set()
        self.given: Counter[tuple[At, int]] = Counter()
        self.delivered: set[tuple[At, int]] = set()  # to the application
        self.settled: set[tuple[At, int]] = set()
        self.later_ms = 0  # how far time has been put forward
        self.ids: list[bytes] = []
        self.names = 0
        self.members: list[Member] = []
        self.broker: LocalBroker

    @property
    def parts(self) -> Iterator[At]:
        return ((topic, part) for topic in range(self.topics) for part in range(self.partitions))

    async def run(self, folder: Path) -> None:
        self.members = [Member(self) for _ in range(self.random.choice([2, 3, 4]))]
        while True:
            async with running(folder) as self.broker:
                self.broker.groups.shares.rules_of = lambda _: ShareRules(
                    lock_ms=LOCK_MS, max_deliveries=self.limit, max_locks=200, start="earliest"
                )
                if not self.ids:
                    self.ids = [(await self.broker.create_topic(f"t{n}", self.partitions, {}))[0].id
                                for n in range(self.topics)]  # fmt: skip
                    await self.broker.groups.states.begin("g")
                while self.steps and not (killed := self.kills < 3 and self.random.random() < 0.02):
                    self.steps -= 1
                    await self._step(self.random.randrange(len(self.members)))
                if not killed:
                    await self._end()
                    return
                self.kills += 1
                left = folder.with_name(f"after-kill-{self.kills}")
                as_killed(folder, left)
                for member in self.members:
                    member.drop_connection()
            folder = left

    async def _step(self, number: int) -> None:
        random, member = self.random, self.members[number]
        match random.choices(STEPS, WEIGHTS)[0]:
            case "publish":
                at, count = random.choice([*self.parts]), random.choice([1, 3, 20, 60])
                first = await publish(self.broker.topics[f"t{at[0]}"].led(at[1]), count)
                self.published |= {(at, offset) for offset in range(first, first + count)}
            case "fetch":
                await member.fetch(lost=random.random() < 0.1)
            case "work":
                member.work()
            case "acknowledge":
                await member.acknowledge(lost=random.random() < 0.1)
            case "subscribe":
                member.subscribe()
            case "reconnect":
                member.drop_connection()
            case "close":
                member.work()
                await member.acknowledge(final=True)
                self.members[number] = Member(self)
            case "die":
                member.drop_connection()
                self.members[number] = Member(self)
            case "wait":
                self.later_ms += random.choice([100, LOCK_MS // 2, LOCK_MS + 1])

    async def _end(self) -> None:
        """All leave, and another one takes what is left."""
        for member in self.members:
            member.drop_connection()
        last, idle = Member(self), 0
        last.wanted = set(self.parts)
        while idle < 4:
            before = self.given.total()
            await last.fetch()
            last.work(accepts_all=True)
            idle = 0 if self.given.total() > before else idle + 1
            self.later_ms += (LOCK_MS + 1) * bool(idle)
        unseen = self.published - self.delivered
        assert all(self.given[each] >= self.limit for each in unseen), "a record is lost"
        for group in self.broker.groups.shares.all():
            for shared in group.shared.values():
                assert shared.leases.floor == shared.partition.high_watermark


STEPS = ["publish", "fetch", "work", "acknowledge", "subscribe", "reconnect", "close", "die", "wait"]
WEIGHTS = [12, 38, 15, 8, 12, 3, 3, 2, 7]


class Member:
    def __init__(self, history: History) -> None:
        history.names += 1
        self._history, self._name = history, f"member-{history.names}"
        self._connection: Any = None
        self._epoch = 0
        self._session: set[At] = set()  # the partitions that the broker should know of
        self._named: set[At] = set()  # acknowledgements have named these since the last fetch
        self._fetched: list[tuple[At, int]] = []
        self._acks: Acks = {}
        self.wanted: set[At] = set()
        self.subscribe()

    def subscribe(self) -> None:
        topics = {topic for topic in range(self._history.topics) if self._history.random.random() < 0.6}
        self.wanted = {at for at in self._history.parts if at[0] in topics}

    def drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection, self._epoch = None, 0

    def work(self, *, accepts_all: bool = False) -> None:
        """The application gets what was fetched, and decides about some of it."""
        random = self._history.random
        self._history.delivered.update(self._fetched)
        for at, offset in self._fetched:
            if accepts_all or random.random() < 0.7:
                kind = ACCEPT if accepts_all else random.choices([ACCEPT, RELEASE, REJECT], [12, 3, 1])[0]
                self._acks.setdefault(at, {})[offset] = kind
        self._fetched = []

    async def fetch(self, *, lost: bool = False) -> None:
        """`lost`: whether the connection breaks before the answer comes."""
        wanted, self._named = self.wanted | self._named, set()
        if not self._epoch:
            self._acks, self._session = {}, set()
        acks, self._acks = self._acks, {}
        forgotten, added = self._session - wanted, wanted - self._session
        if not (self._epoch or added):
            return
        self._session = wanted
        random, ids = self._history.random, self._history.ids
        answer = await self._ask(
            share_fetch,
            {
                "share_session_epoch": self._epoch,
                "topics": _topics(ids, added | acks.keys(), acks),
                "forgotten_topics_data": [{"topic_id": ids[topic], "partitions": [part]} for topic, part in forgotten],
                "max_bytes": random.choice([1, 3_000, 1 << 20]),
                "max_records": random.choice([1, 5, 30, 500]),
                **{"max_wait_ms": 0, "min_bytes": 1, "batch_size": 100},
            },
        )
        for at, row in self._rows(answer):
            if not lost and not row.get("acknowledge_error_code"):
                self._settle(at, acks.get(at, {}))
            self._take(at, row, lost)
        self._go_on(answer, lost)

    def _take(self, at: At, row: Mapping[str, Any], lost: bool) -> None:
        history = self._history
        there = [offset for _, data in batch.split(row["records"]) for offset in batch.decode(bytes(data)).offsets]
        for acquired in row["acquired_records"]:
            assert at in self._session, "records of a partition that the member does not know of"
            assert acquired["delivery_count"] <= history.limit
            for offset in range(acquired["first_offset"], acquired["last_offset"] + 1):
                assert offset in there, "a record without its data"
                assert (at, offset) not in history.settled, "a settled record comes again"
                history.given[at, offset] += 1
                if not lost:
                    self._fetched.append((at, offset))

    async def acknowledge(self, *, final: bool = False, lost: bool = False) -> None:
        acks, self._acks = self._acks, {}
        if not self._epoch or not (acks or final):
            return
        self._named |= acks.keys()
        request = {
            "share_session_epoch": FINAL if final else self._epoch,
            "topics": _topics(self._history.ids, acks, acks),
        }
        answer = await self._ask(share_acknowledge, request)
        for at, row in self._rows(answer):
            if not (lost or row["error_code"]):
                self._settle(at, acks[at])
        self._go_on(answer, lost or final)

    def _settle(self, at: At, acks: Mapping[int, int]) -> None:
        self._history.settled |= {(at, offset) for offset, kind in acks.items() if kind != RELEASE}

    async def _ask(self, handler: Any, request: dict[str, Any]) -> Any:
        if self._connection is None:
            self._connection = kafka_session(self._history.broker)
        named = {"group_id": "g", "member_id": self._name, "is_renew_ack": False}
        return await handler(self._connection, named | request, 2)

    def _rows(self, answer: Any) -> Iterator[tuple[At, Mapping[str, Any]]]:
        for topic in answer["responses"]:
            for row in topic["partitions"]:
                yield (self._history.ids.index(bytes(topic["topic_id"])), row["partition_index"]), row

    def _go_on(self, answer: Any, over: bool) -> None:
        if over:
            self.drop_connection()
        elif answer["error_code"] in (Code.SHARE_SESSION_NOT_FOUND, Code.INVALID_SHARE_SESSION_EPOCH):
            self._epoch = 0
        else:
            assert answer["error_code"] == Code.NONE
            self._epoch += 1


def _topics(ids: list[bytes], parts: Iterable[At], acks: Acks) -> list[dict[str, Any]]:
    return [
        {
            "topic_id": ids[topic],
            "partitions": [
                {
                    "partition_index": part,
                    "acknowledgement_batches": [
                        {"first_offset": offset, "last_offset": offset, "acknowledge_types": [kind]}
                        for offset, kind in sorted(acks.get((topic, part), {}).items())
                    ],
                }
            ],
        }
        for topic, part in parts
    ]


@pytest.mark.parametrize("seed", range(15))
def test_no_record_is_lost_or_given_to_a_member_that_does_not_know_of_it(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, steady_ms = History(seed), Clock.steady_ms
    monkeypatch.setattr(Clock, "steady_ms", lambda clock: steady_ms(clock) + history.later_ms)
    trio.run(history.run, tmp_path / "data")
