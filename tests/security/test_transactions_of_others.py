"""To write in a transaction, a client needs WRITE on its transactional id, in each protocol."""

from __future__ import annotations

import pytest

from krappy.core.security.operations import Op, Resource
from krappy.errors import TransactionalIdAuthorizationFailed
from krappy.records import batch
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, produce
from tests.kafka.transactional import Transactional
from tests.security.guarded import Guarded, rule

TOPIC = "of-all"


def sent(producer: Transactional, sequence: int, value: bytes, *, epochs: int = 0, transactional: bool = True) -> bytes:
    """A batch of this producer. `epochs`: how far its epoch is ahead of the producer's."""
    return batch.encode(
        [b"k"],
        [value],
        timestamps=1_000,
        producer_id=producer.id,
        producer_epoch=producer.epoch + epochs,
        base_sequence=sequence,
        transactional=transactional,
    )


def written(raw: Raw, data: bytes, transactional_id: str | None, version: int = 12) -> int:
    body = produce(TOPIC, data) | {"transactional_id": transactional_id}
    [found] = raw.ask(ApiKey.PRODUCE, body, version)["responses"][0]["partition_responses"]
    return int(found["error_code"])


def test_nobody_writes_in_the_open_transaction_of_another(guarded: Guarded) -> None:
    """He knows the producer's id, epoch and sequence, because whoever may read the topic can see them."""
    guarded.admin.make(TOPIC)
    guarded.allow(rule(Resource.TOPIC, TOPIC, Op.WRITE))
    producer = Transactional(guarded.admin, "hers").init()
    assert written(guarded.admin, sent(producer, 0, b"one"), "hers") == Code.NONE
    with guarded.kafka() as eve, guarded.native() as native:
        stolen = sent(producer, 1, b"his")
        for version in (3, 8, 12):
            for id in (None, "hers"):
                assert written(eve, stolen, id, version) == Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        handle = native.producer(TOPIC).handle
        with pytest.raises(TransactionalIdAuthorizationFailed):
            native.call(m.Batch(handle, 0, stolen))
    assert written(guarded.admin, sent(producer, 1, b"two"), "hers") == Code.NONE
    assert producer.end(commit=True) == Code.NONE
    assert guarded.admin.values(TOPIC)[:2] == [b"one", b"two"]
    guarded.take_away()


def test_nobody_writes_under_another_transactional_id_than_the_producers(guarded: Guarded) -> None:
    """He has a transactional id of his own, and may write to the topic. The errors do not tell him the sequence
    either."""
    guarded.admin.make("shared")
    guarded.allow(rule(Resource.TOPIC, "shared", Op.WRITE), rule(Resource.TRANSACTIONAL_ID, "his", Op.WRITE))

    def asked(raw: Raw, data: bytes, id: str | None, version: int = 12) -> Code:
        [found] = raw.ask(ApiKey.PRODUCE, produce("shared", data) | {"transactional_id": id}, version)["responses"]
        return Code(found["partition_responses"][0]["error_code"])

    def tries(eve: Raw) -> None:
        for sequence in (0, 1, 7):
            for version in (3, 11, 12):
                found = asked(eve, sent(producer, sequence, b"his"), "his", version)
                assert found == Code.INVALID_PRODUCER_ID_MAPPING
            for epochs in (0, 1):
                for id in (None, "his"):
                    data = sent(producer, sequence, b"his", epochs=epochs, transactional=False)
                    assert asked(eve, data, id) == Code.INVALID_TXN_STATE

    with guarded.kafka() as eve:
        producer = Transactional(guarded.admin, "hers").init()
        Transactional(eve, "his").init()
        tries(eve)
        assert asked(guarded.admin, sent(producer, 0, b"one"), "hers") == Code.NONE
        tries(eve)
        assert asked(guarded.admin, sent(producer, 1, b"two"), "hers") == Code.NONE
        assert producer.end(commit=True) == Code.NONE
        tries(eve)
    assert guarded.admin.values("shared")[:2] == [b"one", b"two"]
    guarded.take_away()


@pytest.mark.parametrize("topic", ["added-here", "added-nowhere"])
def test_who_may_not_use_a_transactional_id_is_told_that_first(guarded: Guarded, topic: str) -> None:
    """Kafka's answer, which ends a producer of Java. One about a topic would only have it abort the transaction, and
    go on."""
    guarded.admin.make("added-here")
    asked = {"transactional_id": "hers", "producer_id": 0, "producer_epoch": 0}
    asked |= {"topics": [{"name": topic, "partitions": [0]}, {"name": "added-here", "partitions": [0]}]}
    body = {f"v3_and_below_{name}": value for name, value in asked.items()}
    with guarded.kafka() as eve:

        def codes() -> set[int]:
            topics = eve.ask(ApiKey.ADD_PARTITIONS_TO_TXN, body, 3)["results_by_topic_v3_and_below"]
            return {each["partition_error_code"] for one in topics for each in one["results_by_partition"]}

        assert codes() == {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
        guarded.allow(rule(Resource.TOPIC, "added-here", Op.WRITE))
        assert codes() == {Code.TRANSACTIONAL_ID_AUTHORIZATION_FAILED}
    guarded.take_away()
