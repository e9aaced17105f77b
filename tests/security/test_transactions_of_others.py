"""To write in a transaction needs WRITE on its transactional id, by whatever door."""

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


def sent(producer: Transactional, sequence: int, value: bytes) -> bytes:
    return batch.encode(
        [b"k"],
        [value],
        timestamps=1_000,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        base_sequence=sequence,
        transactional=True,
    )


def written(raw: Raw, data: bytes, transactional_id: str | None, version: int = 12) -> int:
    body = produce(TOPIC, data) | {"transactional_id": transactional_id}
    [found] = raw.ask(ApiKey.PRODUCE, body, version)["responses"][0]["partition_responses"]
    return int(found["error_code"])


def test_nobody_writes_in_the_open_transaction_of_another(guarded: Guarded) -> None:
    """He knows its producer's id, epoch and sequence: whoever may read the topic is told them."""
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
