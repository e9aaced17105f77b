"""All internal topics have records that no coordinator can read. Each coordinator leaves them out, goes on with the
rest, and reports them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import pytest

from krappy import errors
from krappy.broker.coordinated.unreadable import MOST_TOLD
from krappy.broker.kafka_groups.offset_records import key_of_offset
from krappy.broker.topics.internal_topics import INTERNAL, JOBS, OFFSETS, SHARES, TRANSACTIONS
from krappy.core.cluster.coordinators import partition_of
from krappy.records import batch
from krappy.store.group_offsets import HEAD, MEMBER, OFFSET, PENDING
from krappy.store.groups import GROUP, STATE, group_key
from krappy.store.staging import ENDED, JOB, OUTCOME, STAGING
from krappy.store.transactions import TRANSACTION
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.cluster.brokers import ClusterProcesses, SharedProcesses, brokers
from tests.cluster.open_doors import open_doors
from tests.cluster.test_groups_kept import commit, offsets
from tests.cluster.zookeeper import ZooKeeperServer
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw
from tests.process import wait_until
from tests.zygote import INTERNAL_PARTITIONS

T = TypeVar("T")
Rows = list[tuple[bytes, bytes]]
GARBAGE = (
    b"",
    b"\xc1",
    msgpack.packb(5),
    msgpack.packb("text"),
    msgpack.packb([["a"], -1, {}]),
    msgpack.packb({"a": 1}),
)
OFFSET_VALUES = [msgpack.packb(["7", -1, "", 0]), msgpack.packb([7, -1, "", 0, "later"]), msgpack.packb([7])]


@pytest.fixture
def cluster(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> Iterator[ClusterProcesses]:
    with brokers(tmp_path, 1, shared=SharedProcesses(shared_zookeeper, open_doors)) as made:
        yield made


def name_in(index: int, count: int, of: str) -> str:
    """A name that belongs to the partition `index`; it begins with `of`."""
    return next(name for name in (f"{of}{number}" for number in range(100_000)) if partition_of(name, count) == index)


def rows_for(topic: str, index: int, count: int, topic_id: bytes) -> Rows:
    """Records that no broker has ever written there."""
    rows: Rows = [(b"\xff\xfe", b"x"), (b"", b"x"), (b"zz/\xa1a", b"x")]
    name = name_in(index, count, "bad")
    other = name_in((index + 1) % count, count, "other")
    keys: dict[str, list[bytes]] = {
        OFFSETS: [
            *(group_key(HEAD, name), group_key(MEMBER, name, "m"), group_key(OFFSET, name, "t", 0)),
            *(group_key(PENDING, name, 5, "t", 0), key_of_offset(name, ("t", 0)), key_of_offset(other, ("t", 0))),
            *(HEAD + msgpack.packb(5), HEAD + msgpack.packb([name]), OFFSET + msgpack.packb(name), b"\0\1\0"),
            *(group_key(OFFSET, name, "t", -1), group_key(OFFSET, name, 5, "t"), group_key(HEAD, other)),
        ],
        TRANSACTIONS: [TRANSACTION + name.encode(), TRANSACTION + b"\xff", TRANSACTION + other.encode()],
        SHARES: [
            *(group_key(GROUP, name), group_key(STATE, name, "t", 0), group_key(GROUP, other), STATE + b"\xc1"),
            *(group_key(STATE, name, "t", -1), GROUP + msgpack.packb({}), group_key(STATE, "nobody", "t", 0)),
        ],
        JOBS: [
            *(
                group_key(JOB, name),
                group_key(STAGING, name, "a"),
                group_key(OUTCOME, name),
                ENDED + bytes(8) + b"\xc1",
            ),
            *(group_key(JOB, other), JOB + msgpack.packb(5), group_key(STAGING, name, 5)),
        ],
    }
    for number, value in enumerate(GARBAGE):  # each value needs a key of its own, because a view has one value of a key
        more = name_in(index, count, f"bad{number}-")
        some = [key.replace(msgpack.packb(name), msgpack.packb(more)) for key in keys[topic]]
        some = [key.replace(TRANSACTION + name.encode(), TRANSACTION + more.encode()) for key in some]
        rows += [(key, value) for key in some]
    if topic == OFFSETS:
        for number, value in enumerate(OFFSET_VALUES):
            wrong = name_in(index, count, f"o{number}-")
            rows += [(group_key(OFFSET, wrong, "t", 0), value), (group_key(PENDING, wrong, 5, "t", 0), value)]
        rows += [(group_key(HEAD, name), msgpack.packb(["consumer", 0, [1, 2]]))]
    if topic == SHARES:
        known = name_in(index, count, "known")
        settings = {"kind": "shared", "order": "none", "max_deliveries": 10, "dead_letter": None}
        rows += [(group_key(GROUP, known), msgpack.packb(settings))]
        rows += [(group_key(STATE, known, "t", at), topic_id + value) for at, value in enumerate(GARBAGE)]
    if topic == TRANSACTIONS:
        rows += [(TRANSACTION + name.encode(), msgpack.packb({"stage": "Empty", "partitions": [], "groups": []}))]
    return rows


def test_coordinators_go_on_with_all_that_can_be_read(cluster: ClusterProcesses) -> None:
    broker = cluster.brokers[1]
    kafka, native = str(broker.settings["listen_kafka"]), str(broker.settings["listen_native"])
    kinds = {"group": 0, "transactional id": 1}
    with Raw(kafka) as raw, Native(native) as peer:
        peer.call(m.CreateTopic("t", len(GARBAGE)))
        for kind in kinds.values():
            raw.ask(ApiKey.FIND_COORDINATOR, {"key": "g", "key_type": kind}, 3)
        wait_until(lambda: commit(raw, "g", 0, 7) == Code.NONE, "its offset is committed")
        init = {"transactional_id": "tx", "transaction_timeout_ms": 60_000}
        told: list[int] = []

        def begun() -> bool:
            answer = raw.ask(ApiKey.INIT_PRODUCER_ID, init, 3)
            told[:] = [answer["producer_id"], answer["producer_epoch"]]
            return bool(answer["error_code"] == Code.NONE)

        wait_until(begun, "the producer has begun")
        id, epoch = told
        token = until_there(lambda: staged(peer))
        until_there(lambda: peer.call(m.ConsumerRegistration(["t"], group="n", start="latest")))
        for topic in INTERNAL:
            count = len(cluster.partitions(topic))
            for index in range(count):
                rows = rows_for(topic, index, count, raw.topic_id("t"))
                data = batch.encode([key for key, _ in rows], [value for _, value in rows], timestamps=1)
                assert raw.produce(topic, data, index)["error_code"] == Code.NONE
    broker.kill()
    broker.start()
    cluster.until_known()
    with Raw(kafka) as raw, Native(native) as peer:
        wait_until(lambda: offsets(raw, "g") is not None, "its group is loaded")
        assert offsets(raw, "g") == {0: 7}
        names = [name_in(index, INTERNAL_PARTITIONS, "free") for index in range(INTERNAL_PARTITIONS)]
        wait_until(lambda: all(offsets(raw, name) is not None for name in names), "all are loaded")
        wait_until(begun, "transactional ids are loaded")
        assert told == [id, epoch + 1]
        until_there(lambda: peer.call(m.Groups("n")))
        assert until_there(lambda: peer.call(m.CommitStaged("j", [token], 60_000))).done == 1
        wait_until(lambda: b"staged" in raw.values("t"), "it is published")

    def told_of() -> Counter[str]:
        return Counter(str(each["partition"]) for each in broker.events("coordinator_record_left_out"))

    parts = sum(len(cluster.partitions(topic)) for topic in INTERNAL)
    wait_until(lambda: len(told_of()) == parts, "each partition of an internal topic is loaded")
    left_out: list[dict[str, Any]] = broker.events("coordinator_record_left_out")
    assert not broker.events("coordinator_not_loaded")
    assert not broker.events("internal_error")
    by_partition = told_of()
    assert max(by_partition.values()) == MOST_TOLD
    assert {each.rpartition("-")[0] for each in by_partition} == set(INTERNAL)
    assert all(each["offset"] >= 0 and each["records"] >= MOST_TOLD and each["key"] for each in left_out)


def staged(peer: Native) -> str:
    begun = peer.call(m.Stage(topic="t", job="j", task="0", attempt="a", ttl_ms=600_000))
    peer.call(m.Batch(begun.handle, 0, batch.encode([b"k"], [b"staged"], timestamps=1)))
    return str(peer.call(m.SealStaged("j", begun.stage, 1)).token)


def until_there(ask: Callable[[], T]) -> T:
    """Asks until there is a coordinator; returns what `ask` returns."""
    found: list[T] = []

    def there() -> bool:
        try:
            found[:] = [ask()]
        except (errors.NotCoordinator, errors.CoordinatorNotAvailable, errors.CoordinatorLoading):
            return False
        return True

    wait_until(there, "there is a coordinator")
    return found[0]
