"""Somebody who may write to a topic writes outside of transactions, with the producer id of another user's
transactional id. Whoever may read a topic of this producer knows its id. Only the coordinator knows whose it is."""

from __future__ import annotations

from itertools import count, product

import pytest

from krappy.records import batch
from krappy.wire.kafka import Code
from tests.cluster.brokers import ClusterProcesses
from tests.cluster.scattered_transactions import ScatteredProducer, coordinator_of, leader_of
from tests.cluster.test_cluster import make_topic
from tests.cluster.test_transactions import values

HIS, HERS = [b"his %d" % each for each in range(3)], [b"hers %d" % each for each in range(3)]


@pytest.fixture
def cluster(lasting: ClusterProcesses) -> ClusterProcesses:
    return lasting


def intrude(
    cluster: ClusterProcesses, of: ScatteredProducer, at: tuple[str, int], epoch: int, first: int
) -> list[Code]:
    """Writes the values of `HIS`, each in a batch of its own. `epoch`: how far his epoch is ahead of hers. `first`: his
    first sequence. Returns the codes of the answers."""
    codes = []
    with cluster.asked(leader_of(cluster, *at)) as raw:
        for number, value in enumerate(HIS):
            data = batch.encode(
                [None],
                [value],
                timestamps=1_000,
                producer_id=of.id,
                producer_epoch=of.epoch + epoch,
                base_sequence=first + number,
            )
            codes.append(Code(raw.produce(at[0], data, at[1])["error_code"]))
    return codes


def write(cluster: ClusterProcesses, topic: str, leader: int, bumps: bool, epoch: int, first: int) -> tuple[int, int]:
    """Writes his events and hers to a partition that this broker leads, while another one coordinates her transaction.
    Returns the partition, and how many of his events were taken."""
    names = (f"hers-{topic}-{number}" for number in count())
    name = next(each for each in names if coordinator_of(cluster, each) != leader)
    hers = ScatteredProducer(cluster, name, bumps=bumps).init()
    at = topic, next(index for index in count() if leader_of(cluster, topic, index) == leader)
    taken = intrude(cluster, hers, at, epoch, first).count(Code.NONE)
    if not bumps:
        assert hers.add(at) == Code.NONE, topic
    for number, value in enumerate(HERS):
        assert hers.write(*at, value) == Code.NONE, topic
        if number == 0:
            assert set(intrude(cluster, hers, at, epoch, 3)) == {Code.INVALID_TXN_STATE}, topic
        hers.sequences[at] -= 1  # she sends the event again
        assert hers.write(*at, value) == Code.NONE, topic
    assert hers.end(commit=True) == Code.NONE, topic
    assert set(intrude(cluster, hers, at, epoch, 0)) == {Code.INVALID_TXN_STATE}, topic
    return at[1], taken


def test_what_he_has_written_before_concerns_no_transaction(cluster: ClusterProcesses) -> None:
    """Otherwise one of her events would be taken for a duplicate of his, or she would be fenced. That holds with and
    without KIP-890, for his epochs and sequences, and for a leader that was killed and has read its log again."""
    leader = 1
    wanted: dict[tuple[str, int], list[bytes]] = {}
    ScatteredProducer(cluster, "first").init()  # makes the topic for transactions
    for bumps, epoch, first in product((False, True), (0, 1), (0, 7)):
        topic = f"t-{bumps}-{epoch}-{first}"
        make_topic(cluster, topic)
        index, taken = write(cluster, topic, leader, bumps, epoch, first)
        wanted[topic, index] = [*HIS[:taken], *HERS]
    cluster.brokers[leader].kill()
    cluster.start_again(leader)
    assert {at: values(cluster, *at) for at in wanted} == wanted
