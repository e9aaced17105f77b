"""What `krappy restore` makes of a cluster's backup with rare logs and states: these backups are made by hand, file by
file."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path

import msgpack
import pytest

from krappy.broker.groups.shared import SharedSettings
from krappy.cli import cluster_restore
from krappy.cli.errors import Failure
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.state import PartitionState, write_state
from krappy.core.stability import marker
from krappy.core.staging import OWN, Job, JobState, PublishedPart
from krappy.core.transactions import Transaction, TxnStage
from krappy.records import batch as batches
from krappy.settings.topic import TopicConfig
from krappy.store.catalog import LocalCatalog
from krappy.store.groups import GROUP, STATE, GroupStore, group_key
from krappy.store.log import Log
from krappy.store.meta import Meta
from krappy.store.staging import DATA, JOB, STAGING, StagingStore, packed_job
from krappy.store.transactions import TransactionStore, key_of, packed
from krappy.types import TopicPartition

IDS = {"t": b"t" * 16, "__staged_jobs": b"j" * 16, "__transaction_state": b"x" * 16, "__share_group_state": b"s" * 16}
EPOCH = 7


class Made:
    """A backup's files, in `folder`. Each topic has one partition."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ends: dict[str, int] = {}
        self.tree: dict[str, bytes] = dict.fromkeys(("/cluster", paths.TOPICS, paths.CONFIG), b"")
        self.tree[paths.CLUSTER_ID] = znodes.cluster(b"c" * 16)

    def topic(self, name: str, *data: bytes, cut: int = 0) -> None:
        """Makes a topic. `cut`: how many of the last batches are in the files, but not in the backup."""
        log = Log.open(self.folder / "topics" / f"{name}-0", TopicConfig())
        for number, each in enumerate(data):
            if number == len(data) - cut:
                self.ends[name] = log.end_offset
            log.append([(batches.read_header(each), each)], EPOCH, 1)
        self.ends.setdefault(name, log.end_offset)
        log.sync()
        log.close()
        self.tree[paths.topic(name)] = znodes.topic(IDS[name], [(2, 3, 1)], 1)
        self.tree[paths.partitions(name)] = self.tree[paths.partition(name, 0)] = b""
        self.tree[paths.identity(name, IDS[name])] = b""
        self.tree[paths.state(name, 0)] = write_state(PartitionState(2, EPOCH, 1, (2, 3)))

    def table(self, name: str, rows: Mapping[bytes, bytes]) -> None:
        self.topic(name, batches.encode([*rows], [*rows.values()], timestamps=1))

    def build(self) -> cluster_restore.ClusterRestored:
        (self.folder / "cluster").mkdir(parents=True)
        told = {path: base64.b64encode(data).decode() for path, data in self.tree.items()}
        (self.folder / "cluster" / "tree.json").write_text(json.dumps(told))
        ends = [[name, 0, EPOCH, end] for name, end in self.ends.items()]
        return cluster_restore.build(self.folder, {"ends": ends})

    def log(self, name: str) -> Log:
        return Log.open(self.folder / "topics" / f"{name}-0", TopicConfig())


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


def sent(producer: int, value: bytes, epoch: int = 0, sequence: int = 0) -> bytes:
    return batches.encode(
        [None],
        [value],
        timestamps=1,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )


def test_a_log_ends_where_the_backup_does(made: Made) -> None:
    made.topic("t", *(batches.encode(None, [b"%d" % n], timestamps=1) for n in range(5)), cut=2)
    restored = made.build()
    assert (restored.topics, restored.partitions, restored.notes) == (1, 1, [])
    log = made.log("t")
    assert log.end_offset == 3
    log.close()
    meta = Meta(made.folder / "meta")
    catalog = LocalCatalog(meta)
    found = catalog.tree.image.topics["t"]
    assert (found.id, found.restored_factor, len(catalog.numbers.of(found.id))) == (IDS["t"], 3, 1)
    assert found.partitions[0].state.leader_epoch == EPOCH
    assert catalog.tree.image.topics.keys() == {"t"}
    meta.close()


def test_a_log_that_ends_before_the_backup_is_refused(made: Made) -> None:
    made.topic("t", batches.encode(None, [b"v"], timestamps=1))
    made.ends["t"] = 2
    with pytest.raises(Failure, match="t-0 can't be restored"):
        made.build()


def test_transactions_that_nobody_would_end_are_aborted(made: Made) -> None:
    """The coordinator does not know yet that producer 2 wrote here, and does not know producer 3 any more."""
    made.topic("t", sent(1, b"open"), sent(2, b"untold"), sent(3, b"old"), marker(4, 0, True, 1))
    at = frozenset([TopicPartition("t", 0)])
    ids = [
        Transaction("one", 1, 0, 60_000, TxnStage.ONGOING, partitions=at),
        Transaction("two", 2, 4, 60_000, TxnStage.ONGOING),
        Transaction("three", 5, 7, 60_000, TxnStage.PREPARE_COMMIT, partitions=at),
        Transaction("four", 6, 9, 60_000, TxnStage.COMPLETE_COMMIT, last_id=6, last_epoch=8),
    ]
    made.table("__transaction_state", {key_of(each.name): packed(each) for each in ids})
    made.build()
    log = made.log("t")
    assert set(log.producers.stability.open) == {1}
    assert log.end_offset == 6
    log.close()
    meta = Meta(made.folder / "meta")
    found = TransactionStore(meta).load_all()
    assert {name: (each.stage, each.epoch, each.last_id) for name, each in found.items()} == {
        "one": (TxnStage.PREPARE_ABORT, 1, -1),
        "two": (TxnStage.PREPARE_ABORT, 5, -1),
        "three": (TxnStage.PREPARE_COMMIT, 8, -1),
        "four": (TxnStage.COMPLETE_COMMIT, 10, -1),
    }, "a producer is not fenced"
    meta.close()


def test_a_staged_job_that_was_being_marked_is_committed_and_others_are_not(made: Made) -> None:
    marking, publishing = OWN + 1, OWN + 2
    made.topic("t", sent(marking, b"yes"), sent(publishing, b"no"))
    part = PublishedPart("t", 0, 0, 0, 1)
    jobs = [
        Job("marking", JobState.MARKING, 60_000, 1, ("a",), marking, (part,), topics=(("t", IDS["t"]),)),
        Job("publishing", JobState.PUBLISHING, 60_000, 1, ("b",), publishing),
    ]
    rows = {group_key(JOB, each.name): packed_job(each) for each in jobs}
    staged = {group_key(DATA, "publishing", "b", 0): b"frames", group_key(STAGING, "publishing", "b"): b"no attempt"}
    made.table("__staged_jobs", rows | staged)
    restored = made.build()
    assert restored.notes == ["the staged job 'publishing' was not committed, and has to be run again"]
    log = made.log("t")
    assert not log.producers.stability.open
    assert [each.producer_id for each in log.producers.stability] == [publishing]
    log.close()
    meta = Meta(made.folder / "meta")
    store = StagingStore(meta)
    found = store.find("marking")
    assert found is not None
    assert (found.state, found.published) == (JobState.COMMITTED, (part,))
    assert store.find("publishing") is None
    assert store.load_all() == []
    meta.close()


def test_what_cannot_be_read_is_left_out_and_told_of(made: Made) -> None:
    made.topic("t", batches.encode(None, [b"v"], timestamps=1))
    good = Transaction("one", 1, 0, 60_000)
    made.table("__transaction_state", {b"x/bad": b"?", key_of("one"): packed(good), b"y/what": b""})
    restored = made.build()
    assert [each.partition(":")[0] for each in restored.notes] == [
        "left out of __transaction_state, as it can't be read",
        "left out of __transaction_state, as they can't be read",
    ]
    meta = Meta(made.folder / "meta")
    assert TransactionStore(meta).load_all().keys() == {"one"}
    meta.close()


def test_a_state_of_a_native_group_in_a_topic_that_was_made_anew_is_left_out(made: Made) -> None:
    made.topic("t", batches.encode(None, [b"v"], timestamps=1))
    rows = {
        group_key(b"s/", "g", "t", 0): IDS["t"] + b"state",
        group_key(b"s/", "old", "t", 0): b"?" * 16 + b"state",
        group_key(b"s/", "nobody", "t", 0): IDS["t"] + b"state",
        group_key(b"g/", "g"): b"settings",
        group_key(b"g/", "old"): b"settings",
    }
    made.table("__share_group_state", rows)
    made.build()
    meta = Meta(made.folder / "meta")
    assert dict(meta.items(b"s/")) == {group_key(b"s/", "g", "t", 0): b"state"}
    assert len(dict(meta.items(b"g/"))) == 2
    meta.close()


@pytest.mark.parametrize("share", [False, True])
def test_a_group_that_has_read_lost_events_goes_back(made: Made, share: bool) -> None:
    """The group had not seen the unclean election. The broker, which is alone, has no leader epochs of positions."""
    made.topic("t", *(batches.encode(None, [b"%d" % n], timestamps=1) for n in range(9)))  # all of one epoch
    head = [2, 5, 3, 1] if share else []
    states = {
        "lost": ([0, EPOCH - 1, 0], [1, 7, 1, 2, 5, 3, 0], [1, 0, 1]),  # of an epoch that the log lacks
        "same": ([0, EPOCH, 0], [1, 7, 1, 2, 5, 3, 0], [1, 7, 1, 2, 5, 3, 0]),
        "beyond": ([0, EPOCH, 0], [1, 20, 1, 2, 2, 3, 0, 3, 1, 1, 50], [1, 9, 1, 2, 2, 3, 0, 3, 1, 1, 50]),
        "parted": ([0, EPOCH, 0, EPOCH + 1, 4], [1, 7, 0], [1, 4, 0]),
        "unknown": ([], [1, 20, 0], [1, 20, 0]),
    }
    settings = SharedSettings("share" if share else "shared").packed()
    keys, values, headers = [], [], []
    for name, (lineage, leases, _) in states.items():
        keys += [group_key(GROUP, name), group_key(STATE, name, "t", 0)]
        values += [settings, IDS["t"] + msgpack.packb([*head, *leases])]
        headers += [(), (("lineage", msgpack.packb(lineage)),) if lineage else ()]
    made.topic("__share_group_state", batches.encode(keys, values, timestamps=1, headers=headers))
    assert made.build().notes == []
    meta = Meta(made.folder / "meta")
    found = GroupStore(meta).load_all()
    meta.close()
    expected = {name: [*head, *leases] for name, (_, _, leases) in states.items()}
    assert {name: msgpack.unpackb(each.states["t", 0]) for name, each in found.items()} == expected


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', "{"])
def test_an_invalid_tree(made: Made, text: str) -> None:
    (made.folder / "cluster").mkdir()
    (made.folder / "cluster" / "tree.json").write_text(text)
    with pytest.raises(Failure, match="not a whole backup of a cluster"):
        cluster_restore.build(made.folder, {"ends": []})
