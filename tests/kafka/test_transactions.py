"""The transactional APIs byte for byte: what each version is told, and what Fetch and DescribeProducers show."""

from __future__ import annotations

from itertools import count
from typing import Any

import pytest

from krappy.records import batch
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw, values_of
from tests.kafka.transactional import Transactional

_names = count()


def fetch(raw: Raw, topic: str, committed: bool) -> dict[str, Any]:
    asked = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    body = {
        "max_wait_ms": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": int(committed),
        "topics": [{"topic": topic, "partitions": [asked]}],
    }
    answer: dict[str, Any] = raw.ask(ApiKey.FETCH, body, 11)["responses"][0]["partitions"][0]
    return answer


def committed_offset(raw: Raw, group: str, topic: str) -> int:
    body = {"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}
    return int(raw.ask(ApiKey.OFFSET_FETCH, body, 5)["topics"][0]["partitions"][0]["committed_offset"])


@pytest.fixture
def topic(raw: Raw) -> str:
    name = f"topic-{next(_names)}"
    raw.make(name)
    return name


@pytest.mark.parametrize("version", range(6))
def test_without_a_transactional_id_every_producer_is_a_new_one(raw: Raw, version: int) -> None:
    body = {"transactional_id": None, "transaction_timeout_ms": 1}
    first = raw.ask(ApiKey.INIT_PRODUCER_ID, body, version)
    again = {**body, "producer_id": first["producer_id"], "producer_epoch": 0}
    second = raw.ask(ApiKey.INIT_PRODUCER_ID, again, version)
    assert (first["error_code"], first["producer_epoch"]) == (Code.NONE, 0)
    assert (second["error_code"], second["producer_epoch"]) == (Code.NONE, 0)
    assert second["producer_id"] > first["producer_id"] >= 0


def test_a_transaction_from_end_to_end(raw: Raw, topic: str) -> None:
    ours = Transactional(raw).init()
    assert ours.write(topic, b"too early") is Code.TRANSACTION_ABORTABLE
    assert ours.write(topic, b"too early", version=10) is Code.INVALID_TXN_STATE
    assert ours.add((topic, 0)) == [Code.NONE]
    assert ours.write(topic, b"1") is Code.NONE
    held = fetch(raw, topic, committed=True)
    assert (held["high_watermark"], held["last_stable_offset"], len(held["records"])) == (1, 0, 0)
    assert len(fetch(raw, topic, committed=False)["records"]) > 0
    assert ours.end(commit=False) is Code.NONE
    assert ours.end(commit=False) is Code.NONE  # asked for once more
    assert ours.end(commit=True) is Code.INVALID_TXN_STATE
    seen = fetch(raw, topic, committed=True)
    assert (seen["high_watermark"], seen["last_stable_offset"]) == (2, 2)
    assert seen["aborted_transactions"] == [{"producer_id": ours.id, "first_offset": 0}]
    headers = [header for header, _ in batch.split(seen["records"])]
    assert [(header.is_control, header.is_transactional) for header in headers] == [(False, True), (True, True)]
    assert fetch(raw, topic, committed=False)["aborted_transactions"] is None


def test_what_is_not_there_is_not_added_nor_what_stands_beside_it(raw: Raw, topic: str) -> None:
    ours = Transactional(raw).init()
    there, missing = Code.OPERATION_NOT_ATTEMPTED, Code.UNKNOWN_TOPIC_OR_PARTITION
    assert ours.add((topic, 0), (topic, 9), ("nowhere", 0)) == [there, missing, missing]
    assert ours.write(topic, b"1") is Code.TRANSACTION_ABORTABLE


def test_offsets_are_committed_with_the_transaction_or_not_at_all(raw: Raw, topic: str) -> None:
    ours, group = Transactional(raw).init(), f"group-{next(_names)}"
    assert ours.commit_offset(group, topic, 5) is Code.INVALID_TXN_STATE
    assert ours.commit_offset(group, topic, 5, version=4) is Code.TRANSACTION_ABORTABLE
    assert ours.add_offsets(group) is Code.NONE
    assert ours.commit_offset(group, topic, 5) is Code.NONE
    assert committed_offset(raw, group, topic) == -1
    assert ours.end(commit=False) is Code.NONE
    assert committed_offset(raw, group, topic) == -1
    assert ours.add_offsets(group) is Code.NONE
    assert ours.commit_offset(group, topic, 7) is Code.NONE
    assert ours.commit_offset(group, "nowhere", 7) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert ours.commit_offset(group, topic, 7, committed_metadata="x" * 5000) is Code.OFFSET_METADATA_TOO_LARGE
    assert ours.end(commit=True) is Code.NONE
    assert committed_offset(raw, group, topic) == 7
    assert ours.add_offsets("") is Code.INVALID_GROUP_ID


@pytest.mark.parametrize("commit", [False, True])
def test_an_open_transaction_does_not_take_back_a_later_commit(raw: Raw, topic: str, commit: bool) -> None:
    """As in Kafka: of two commits the later one counts, and a transaction's was made when it was staged."""
    ours, group = Transactional(raw).init(), f"group-{next(_names)}"
    assert ours.add_offsets(group) is Code.NONE
    assert ours.commit_offset(group, topic, 5) is Code.NONE
    position = {"partition_index": 0, "committed_offset": 50, "committed_metadata": ""}
    body = {"group_id": group, "member_id": "", "topics": [{"name": topic, "partitions": [position]}]}
    assert raw.ask(ApiKey.OFFSET_COMMIT, body, 8)["topics"][0]["partitions"][0]["error_code"] == Code.NONE
    assert ours.end(commit=commit) is Code.NONE
    assert committed_offset(raw, group, topic) == 50


@pytest.mark.parametrize("commit", [False, True])
@pytest.mark.parametrize("again", [False, True])
def test_of_two_transactions_the_one_that_staged_later_counts(raw: Raw, topic: str, commit: bool, again: bool) -> None:
    """Whichever of them ends first; and none that is aborted counts. `again`: the first one stages once more."""
    first, second, group = Transactional(raw).init(), Transactional(raw).init(), f"group-{next(_names)}"
    for each, offset in ((first, 5), (second, 50), *[(first, 7)] * again):
        assert each.add_offsets(group) is Code.NONE
        assert each.commit_offset(group, topic, offset) is Code.NONE
    assert second.end(commit=commit) is Code.NONE
    assert committed_offset(raw, group, topic) == (50 if commit else -1)
    assert first.end(commit=True) is Code.NONE
    assert committed_offset(raw, group, topic) == (7 if again else 50 if commit else 5)


@pytest.mark.parametrize("commit", [False, True])
def test_a_position_in_a_table_is_committed_with_the_transaction_too(raw: Raw, topic: str, commit: bool) -> None:
    ours, group, table = Transactional(raw).init(), f"group-{next(_names)}", f"{topic}@latest"
    assert ours.add_offsets(group) is Code.NONE
    assert ours.commit_offset(group, table, 7) is Code.NONE
    assert ours.commit_offset(group, "nowhere@latest", 7) is Code.UNKNOWN_TOPIC_OR_PARTITION
    assert ours.end(commit=commit) is Code.NONE
    assert committed_offset(raw, group, table) == (7 if commit else -1)
    assert committed_offset(raw, group, topic) == -1


def test_metadata_of_a_position_is_measured_as_elsewhere(raw: Raw, topic: str) -> None:
    ours, group = Transactional(raw).init(), f"group-{next(_names)}"
    assert ours.add_offsets(group) is Code.NONE
    assert ours.commit_offset(group, topic, 7, committed_metadata="ä" * 4096) is Code.NONE
    assert ours.commit_offset(group, topic, 7, committed_metadata="x" * 4097) is Code.OFFSET_METADATA_TOO_LARGE


def test_an_older_producer_is_told_that_it_is_fenced_as_its_version_knows_it(raw: Raw, topic: str) -> None:
    old = Transactional(raw).init()
    assert old.add((topic, 0)) == [Code.NONE]
    new = Transactional(raw, old.name).init()
    assert (new.id, new.epoch) == (old.id, old.epoch + 2)
    for version, code in ((1, Code.INVALID_PRODUCER_EPOCH), (2, Code.PRODUCER_FENCED)):
        assert old.add((topic, 0), version=version) == [code]
        assert old.add_offsets("g", version=version) is code
        assert old.end(commit=True, version=version) is code
    assert old.commit_offset("g", topic, 1) is Code.PRODUCER_FENCED
    assert old.write(topic, b"x") is Code.INVALID_PRODUCER_EPOCH
    told = [old.ask_init(version, producer_id=old.id, producer_epoch=old.epoch)["error_code"] for version in (3, 4)]
    assert told == [Code.INVALID_PRODUCER_EPOCH, Code.PRODUCER_FENCED]


def test_a_producer_goes_on_with_the_next_epoch(raw: Raw, topic: str) -> None:
    """KIP-360."""
    ours = Transactional(raw).init()
    assert ours.add((topic, 0)) == [Code.NONE]
    assert ours.write(topic, b"1") is Code.NONE
    assert ours.end(commit=True) is Code.NONE
    before = ours.id, ours.epoch
    ours.init(producer_id=ours.id, producer_epoch=ours.epoch)
    assert (ours.id, ours.epoch) == (before[0], before[1] + 1)
    again = ours.ask_init(producer_id=before[0], producer_epoch=before[1])
    assert (again["producer_id"], again["producer_epoch"]) == (ours.id, ours.epoch)
    assert ours.add((topic, 0)) == [Code.NONE]
    assert ours.write(topic, b"2") is Code.NONE
    assert ours.end(commit=True) is Code.NONE


@pytest.mark.parametrize("commit", [False, True])
def test_what_an_ended_transaction_wrote_is_no_answer_to_the_next_one(raw: Raw, topic: str, commit: bool) -> None:
    """A client gave up a batch whose answer was lost, and sends other events with the same sequence, as librdkafka
    does."""
    ours = Transactional(raw).init()
    assert ours.add((topic, 0)) == [Code.NONE]
    assert ours.write(topic, b"given up") is Code.NONE
    ours.sequences[topic] = 0
    assert ours.write(topic, b"given up") is Code.NONE  # the event once more, in the same transaction
    assert ours.end(commit) is Code.NONE
    assert ours.add((topic, 0)) == [Code.NONE]
    ours.sequences[topic] = 0
    assert ours.write(topic, b"another") is Code.UNKNOWN_PRODUCER_ID
    again = ours.init(producer_id=ours.id, producer_epoch=ours.epoch)
    assert again.add((topic, 0)) == [Code.NONE]
    assert again.write(topic, b"another") is Code.NONE
    assert again.end(commit=True) is Code.NONE
    seen = fetch(raw, topic, committed=False)
    headers = [header for header, _ in batch.split(seen["records"])]
    written = [each.base_offset for each in headers if not each.is_control]
    assert [values_of(seen["records"])[offset] for offset in written] == [b"given up", b"another"]


def test_what_is_wrong_with_a_request(raw: Raw, topic: str) -> None:
    assert Transactional(raw).ask_init(transactional_id="")["error_code"] == Code.INVALID_REQUEST
    for timeout in (0, -1, 900_001):
        wrong = Transactional(raw).ask_init(transaction_timeout_ms=timeout)
        assert (wrong["error_code"], wrong["producer_id"]) == (Code.INVALID_TRANSACTION_TIMEOUT, -1)
    stranger = Transactional(raw)
    stranger.id, stranger.epoch = 10**9, 0
    assert stranger.add((topic, 0)) == [Code.INVALID_PRODUCER_ID_MAPPING]
    assert stranger.end(commit=True) is Code.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add_offsets("g") is Code.INVALID_PRODUCER_ID_MAPPING
    assert stranger.write(topic, b"x") is Code.INVALID_TXN_STATE
    stranger.name = ""
    assert stranger.add((topic, 0)) == [Code.INVALID_REQUEST]
    assert stranger.end(commit=True) is Code.INVALID_REQUEST


def test_describe_producers(raw: Raw, topic: str) -> None:
    ours = Transactional(raw).init()
    assert ours.add((topic, 0)) == [Code.NONE]
    assert ours.write(topic, b"1") is Code.NONE
    assert ours.write(topic, b"2") is Code.NONE

    def described() -> dict[str, Any]:
        body = {"topics": [{"name": topic, "partition_indexes": [0, 9]}]}
        found, missing = raw.ask(ApiKey.DESCRIBE_PRODUCERS, body)["topics"][0]["partitions"]
        assert missing["error_code"] == Code.UNKNOWN_TOPIC_OR_PARTITION
        (producer,) = found["active_producers"]
        return dict(producer)

    assert described() == {
        "producer_id": ours.id,
        "producer_epoch": ours.epoch,
        "last_sequence": 1,
        "last_timestamp": 1_000,
        "coordinator_epoch": 0,
        "current_txn_start_offset": 0,
    }
    assert ours.end(commit=True) is Code.NONE
    assert described()["current_txn_start_offset"] == -1


def test_each_end_gives_the_next_epoch_to_clients_that_know_it(raw: Raw, topic: str) -> None:
    """KIP-890: what these clients write, and the offsets that they stage, join the transaction without being added."""
    ours, group = Transactional(raw).init(), f"group-{next(_names)}"
    late = Transactional(raw, ours.name)
    assert ours.write(topic, b"1", version=12) is Code.NONE
    assert ours.write(topic, b"2", version=12) is Code.NONE
    assert ours.commit_offset(group, topic, 7, version=5) is Code.NONE
    late.id, late.epoch, late.sequences[topic] = ours.id, ours.epoch, 2
    assert ours.end(commit=True, version=5) is Code.NONE
    assert (ours.id, ours.epoch) == (late.id, late.epoch + 1)
    assert late.write(topic, b"late", version=12) is Code.INVALID_PRODUCER_EPOCH
    assert late.commit_offset(group, topic, 8, version=5) is Code.PRODUCER_FENCED
    assert late.end(commit=True, version=5) is Code.NONE  # asked for once more
    assert (late.id, late.epoch) == (ours.id, ours.epoch)
    assert ours.write(topic, b"aborted", version=12) is Code.NONE
    assert ours.end(commit=False, version=5) is Code.NONE
    assert ours.end(commit=True, version=5) is Code.INVALID_TXN_STATE
    assert ours.end(commit=False, version=5) is Code.NONE  # there is no transaction
    assert (ours.id, ours.epoch) == (late.id, late.epoch + 2)
    seen = fetch(raw, topic, committed=True)
    assert values_of(seen["records"])[:2] == [b"1", b"2"]
    assert seen["high_watermark"] == seen["last_stable_offset"] == 5
    assert [each["first_offset"] for each in seen["aborted_transactions"]] == [3]
    assert committed_offset(raw, group, topic) == 7
