"""Attempts to evade quotas, or to make quotas themselves costly: before the login, by many names, by old versions."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.broker import client_quotas
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire.kafka import ApiKey, Code
from tests.kafka.raw import Raw
from tests.process import Stopwatch
from tests.quotas.quotas import Quotas


@pytest.fixture(scope="module")
def with_users(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("users")
    (folder / "ada").write_text("correct-horse")
    with run_broker(
        tmp_path_factory.mktemp("login"),
        durability="os",
        listen_kafka="PLAINTEXT://127.0.0.1:0,SASL_PLAINTEXT://127.0.0.1:0",
        users_dir=str(folder),
        sasl_enabled_mechanisms="PLAIN",
        failed_authentication_delay_ms=0,
        authorizer="none",
    ) as broker:
        yield broker


def log_in(at: str, password: str, source: str) -> int:
    with Raw(at, source=source) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        code: int = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0" + password.encode()})["error_code"]
        return code


def test_checks_of_passwords_count_for_the_address_they_come_from(with_users: RunningBroker) -> None:
    at = with_users.kafka_addresses["SASL_PLAINTEXT"]
    assert log_in(at, "correct-horse", "127.0.0.3") == 0  # from here on this password is known to be right
    with Quotas(with_users.kafka_addresses["PLAINTEXT"]) as quotas:
        quotas.set({"user": None}, request_percentage=1.0)
        began = time.monotonic()
        for number in range(12):
            assert log_in(at, f"guess-{number}", "127.0.0.2") == Code.SASL_AUTHENTICATION_FAILED
        # Each guess takes at least 2 ms of a core, and 10 ms a second are allowed.
        assert time.monotonic() - began > 0.7
        watch = Stopwatch()
        assert log_in(at, "correct-horse", "127.0.0.3") == 0
        assert watch.seconds < 1


def test_a_storm_of_new_topics_by_versions_that_know_no_refusal(broker: RunningBroker, quotas: Quotas) -> None:
    """Ten connections ask at once for 4 partitions each; one partition a second is allowed. So 11 partitions may be
    made at once, and the request that passes this number is still done."""
    quotas.set({"user": "ANONYMOUS"}, controller_mutation_rate=1.0)
    storm = [Raw(broker.kafka_address, client_id=f"storm-{number}") for number in range(10)]
    for number, raw in enumerate(storm):
        topics = [{"name": f"storm-{number}", "num_partitions": 4, "replication_factor": 1}]
        raw.send(ApiKey.CREATE_TOPICS, {"topics": topics, "timeout_ms": 30_000}, 4)
    began, waiting, made = time.monotonic(), {raw.socket for raw in storm}, 0
    while made < 3:
        answered, _, _ = select.select(waiting, [], [], 60)
        waiting -= set(answered)
        made += len(answered)
    made += len(select.select(waiting, [], [], 0.5)[0])
    took = time.monotonic() - began
    for raw in storm:
        raw.close()
    assert made <= (11 + took) / 4 + 1


def test_a_request_names_not_too_many_entities(quotas: Quotas) -> None:
    entries = [
        {
            "entity": [{"entity_type": "client-id", "entity_name": f"many-{number}"}],
            "ops": [{"key": "producer_byte_rate", "value": 1.0, "remove": False}],
        }
        for number in range(1001)
    ]
    answers = quotas.raw.ask(ApiKey.ALTER_CLIENT_QUOTAS, {"entries": entries})["entries"]
    assert {each["error_code"] for each in answers} == {Code.INVALID_REQUEST}
    twice = quotas.raw.ask(ApiKey.ALTER_CLIENT_QUOTAS, {"entries": [entries[0], entries[0]], "validate_only": True})
    assert [each["error_code"] for each in twice["entries"]] == [0, Code.INVALID_REQUEST]


def test_there_are_not_too_many_entities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_quotas, "MOST", 2)
    with run_broker(tmp_path, durability="os") as broker:
        quotas = Quotas(broker.kafka_address)
        codes = [quotas.alter({"user": name}, producer_byte_rate=1e9)["error_code"] for name in ("a", "b", "c", "a")]
        quotas.raw.close()
    assert codes == [0, 0, Code.POLICY_VIOLATION, 0]
