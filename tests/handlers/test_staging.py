"""Staged writes over a real socket: what a peer may do wrong, and which events of a job Kafka's clients read."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from krappy import errors
from krappy.records import batch
from krappy.testing.running import RunningBroker
from krappy.wire import messages as m
from tests.handlers.raw import Raw

PATIENCE = 60.0


def records(keys: list[bytes], stage: m.Staged, sequence: int = 0) -> bytes:
    return batch.encode(
        list(keys),
        list(keys),
        timestamps=1_000,
        producer_id=stage.producer_id,
        producer_epoch=stage.producer_epoch,
        base_sequence=sequence,
    )


def staged(raw: Raw, job: str, keys: list[bytes], task: str = "0", topic: str = "t") -> str:
    """The token of an attempt with these keys."""
    stage = raw.call(m.Stage(topic, job, task, "0"))
    raw.call(m.Batch(stage.handle, 0, records(keys, stage)))
    token: str = raw.call(m.SealStaged(job, stage.stage, len(keys))).token
    return token


def consumed(broker: RunningBroker, isolation: str) -> list[bytes]:
    """The values that a consumer of Kafka's protocol gets of the topic t."""
    settings: dict[str, Any] = {"bootstrap.servers": broker.kafka_address, "group.id": "check", "log_level": 0}
    consumer = Consumer({**settings, "isolation.level": isolation, "enable.partition.eof": True})
    consumer.assign([TopicPartition("t", 0, 0)])
    found: list[bytes] = []
    until = time.monotonic() + PATIENCE
    try:
        while time.monotonic() < until:
            for message in consumer.consume(1_000, 0.05):
                error = message.error()
                if error is None:
                    found.append(bytes(message.value() or b""))
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
        raise AssertionError("no end of the topic")
    finally:
        consumer.close()


def test_what_is_refused(broker: RunningBroker, raw: Raw) -> None:
    stage = raw.call(m.Stage("t", "j", "0", "0"))
    good = records([b"a"], stage)
    wrong: list[tuple[m.Request, type[errors.KrappyError]]] = [
        (m.Batch(stage.handle, 0, good), errors.UnknownHandle),  # the handle of the first connection
        (m.Stage("t", "k", "0", "0", stage=stage.stage), errors.UnknownStaging),  # the stage of the first job
        (m.SealStaged("k", stage.stage, 0), errors.UnknownStaging),
        (m.SealStaged("j", "../../topics", 0), errors.UnknownStaging),
        (m.CommitStaged("j", [stage.stage]), errors.InvalidRequest),  # it is not sealed
        (m.CommitStaged("j", ["../../topics"]), errors.UnknownStaging),
        (m.CommitStaged("", []), errors.InvalidRequest),
        (m.AbortStaged("x" * 1_001), errors.InvalidRequest),
        (m.Stage("no/topic", "j", "1", "0"), errors.InvalidTopic),
        (m.Stage("t", "j" * 1_001, "1", "0"), errors.InvalidRequest),
    ]
    with Raw(broker.address) as other:
        for request, error in wrong:
            with pytest.raises(error):
                other.call(request)
    wrong = [
        (m.Batch(stage.handle, 0, good, [(0, -1)]), errors.InvalidRequest),  # with a condition
        (m.Batch(stage.handle, 9, good), errors.UnknownPartition),
        (m.Batch(stage.handle, 0, b""), errors.CorruptBatch),
        (m.Batch(stage.handle, 0, good + good), errors.CorruptBatch),
        (m.Batch(stage.handle, 0, good[:-1]), errors.CorruptBatch),
        (m.Message(stage.handle, b"v"), errors.UnknownHandle),
        (m.Poll(stage.handle), errors.UnknownHandle),
    ]
    for request, error in wrong:
        with pytest.raises(error):
            raw.call(request)
    raw.call(m.Batch(stage.handle, 0, good))
    raw.call(m.Unregister(stage.handle))
    with pytest.raises(errors.UnknownHandle):
        raw.call(m.Batch(stage.handle, 0, records([b"b"], stage, 1)))
    assert raw.call(m.SealStaged("j", stage.stage, 1)).token == stage.stage
    [job] = raw.call(m.StagedJobs()).jobs
    assert (job["job"], job["sealed"]) == ("j", 1)


def test_an_attempt_outlives_its_connection(broker: RunningBroker, raw: Raw) -> None:
    with Raw(broker.address) as first:
        stage = first.call(m.Stage("t", "j", "0", "0"))
        first.call(m.Batch(stage.handle, 0, records([b"a"], stage)))
        first.send(m.Batch(stage.handle, 0, records([b"b"], stage, 1)))
    again = raw.call(m.Stage("t", "j", "0", "0", stage=stage.stage))
    assert (again.stage, again.producer_id) == (stage.stage, stage.producer_id)
    for sequence, key in enumerate([b"a", b"b", b"c"]):  # whatever had come of it before
        assert raw.call(m.Batch(again.handle, 0, records([key], stage, sequence))).offset == sequence
    token = raw.call(m.SealStaged("j", stage.stage, 3)).token
    answer = raw.call(m.CommitStaged("j", [token], max_wait=60_000))
    assert [tuple(each) for each in answer.published] == [("t", 0, 0, 2, 3)]


def test_one_commit_from_many_connections(broker: RunningBroker, raw: Raw) -> None:
    tokens = [staged(raw, "j", [b"%d-%d" % (task, row) for row in range(500)], str(task)) for task in range(4)]
    peers = [Raw(broker.address) for _ in range(6)]
    asked = [(peer, peer.send(m.CommitStaged("j", tokens, max_wait=60_000))) for peer in peers for _ in range(3)]
    answers = [peer.receive(id) for peer, id in asked]
    for peer in peers:
        peer.socket.close()
    assert all(answer.done for answer in answers)
    assert {tuple(map(tuple, answer.published)) for answer in answers} == {(("t", 0, 0, 1_999, 2_000),)}
    assert len(consumed(broker, "read_committed")) == 2_000


def test_kafkas_consumers_see_committed_jobs_alone(broker: RunningBroker, raw: Raw) -> None:
    good, bad = [b"good-%d" % row for row in range(300)], [b"bad-%d" % row for row in range(300)]
    token = staged(raw, "good", good)
    tokens = [staged(raw, "bad", bad), staged(raw, "bad", [b"more"], "1")]
    assert consumed(broker, "read_uncommitted") == []
    damaged = broker.data_dir / "staging" / f"{tokens[1]}.staged"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(errors.StagingFenced):
        raw.call(m.CommitStaged("bad", tokens, max_wait=60_000))
    assert raw.call(m.CommitStaged("good", [token], max_wait=60_000)).done
    assert consumed(broker, "read_committed") == good
    assert consumed(broker, "read_uncommitted") == bad + good


def test_an_attempt_that_a_full_connection_gets_no_handle_for_is_dropped(
    raw: Raw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody knows the attempt's id, so nobody would ever drop it. An attempt that its sender goes on with stays."""
    raw.call(m.CreateTopic("t", 1))
    kept = raw.call(m.Stage("t", "j", "0", "0"))
    monkeypatch.setattr("krappy.server.session.MAX_HANDLES", 1)
    with pytest.raises(errors.Overloaded):
        raw.call(m.Stage("t", "j", "1", "0"))
    with pytest.raises(errors.Overloaded):
        raw.call(m.Stage("t", "j", "0", "0", stage=kept.stage))
    assert [job["attempts"] for job in raw.call(m.StagedJobs()).jobs] == [1]
    raw.call(m.Unregister(kept.handle))
    assert raw.call(m.Stage("t", "j", "0", "0", stage=kept.stage)).stage == kept.stage
