"""Somebody who may write to a topic writes outside of transactions, with the producer id of another user's
transactional id. Whoever may read a topic of this producer knows its id. Only the coordinator knows whose it is."""

from __future__ import annotations

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


@pytest.mark.parametrize("bumps", [False, True])
@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("first", [0, 7])
def test_what_he_has_written_before_concerns_no_transaction(
    cluster: ClusterProcesses, bumps: bool, epoch: int, first: int
) -> None:
    """Otherwise one of her events would be taken for a duplicate of his, or she would be fenced."""
    topic = f"t-{bumps}-{epoch}-{first}"
    make_topic(cluster, topic)
    hers = ScatteredProducer(cluster, f"hers-{topic}", bumps=bumps).init()
    coordinator = coordinator_of(cluster, hers.name)
    index = next(each for each in range(6) if leader_of(cluster, topic, each) != coordinator)
    taken = intrude(cluster, hers, (topic, index), epoch, first).count(Code.NONE)
    if not bumps:
        assert hers.add((topic, index)) == Code.NONE
    for number, value in enumerate(HERS):
        assert hers.write(topic, index, value) == Code.NONE
        if number == 0:
            assert set(intrude(cluster, hers, (topic, index), epoch, 3)) == {Code.INVALID_TXN_STATE}
        hers.sequences[topic, index] -= 1  # she sends the event again
        assert hers.write(topic, index, value) == Code.NONE
    assert hers.end(commit=True) == Code.NONE
    assert set(intrude(cluster, hers, (topic, index), epoch, 0)) == {Code.INVALID_TXN_STATE}
    leader = leader_of(cluster, topic, index)
    cluster.brokers[leader].kill()
    cluster.start_again(leader)
    assert values(cluster, topic, index) == [*HIS[:taken], *HERS]
