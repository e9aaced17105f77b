"""A waiting read of Kafka's protocol ends with the login under which it was sent, and returns nothing that was written
later. A client that logs in again after it goes on (KIP-368)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from krappy.core.security.oauthbearer import first_message
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Closed, Raw, fetch
from tests.kafka.shares import Member
from tests.security.identity import IdentityProvider
from tests.security.test_sasl import SECRET, users_dir

LOGIN_MS = 3000
LONG_MS = 500_000


@pytest.fixture(scope="module")
def broker(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("ends")
    with run_broker(
        folder / "data",
        durability="os",
        listen_kafka="SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
        listen_http="none",
        insecure_listeners="allow",
        users_dir=users_dir(folder / "users", ada=SECRET),
        super_users="User:ada;User:ANONYMOUS",
        sasl_enabled_mechanisms="PLAIN,OAUTHBEARER",
        connections_max_reauth_ms=LOGIN_MS,
        **provider.settings,
    ) as found:
        yield found


@pytest.fixture
def other(broker: RunningBroker) -> Iterator[Raw]:
    """A client whose connection needs no login."""
    with Raw(broker.kafka_addresses["PLAINTEXT"]) as raw:
        yield raw


def log_in(raw: Raw, mechanism: str, first: bytes) -> None:
    assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})["error_code"] == 0
    prove(raw, first)


def prove(raw: Raw, first: bytes) -> None:
    told = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": first})
    assert told["error_code"] == 0
    assert 0 < told["session_lifetime_ms"] <= LOGIN_MS


def records_of(answer: dict[str, Any]) -> list[bytes]:
    return [part["records"] for topic in answer["responses"] for part in topic["partitions"] if part["records"]]


def write(other: Raw, topic: str) -> None:
    assert other.produce(topic, batch.encode([b"k"], [b"later"], timestamps=1_000))["error_code"] == 0


@pytest.mark.parametrize("mechanism", ["PLAIN", "OAUTHBEARER"])
def test_a_fetch_that_waits_ends_with_the_login(
    broker: RunningBroker, other: Raw, provider: IdentityProvider, mechanism: str
) -> None:
    topic = f"fetched-{mechanism}"
    other.make(topic)
    proof = first_message(provider.token()) if mechanism == "OAUTHBEARER" else b"\0ada\0" + SECRET.encode()
    asked = fetch([(topic, 0, 0)], max_wait_ms=LONG_MS, min_bytes=1)
    with Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as raw, Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as silent:
        for each in (raw, silent):
            log_in(each, mechanism, proof)
            each.send(ApiKey.FETCH, asked, 12)
        raw.send(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})  # this client knows when its login ends
        assert records_of(raw.receive()) == []
        assert records_of(silent.receive()) == []
        write(other, topic)
        assert raw.receive()["error_code"] == 0
        prove(raw, proof)
        assert raw.values(topic) == [b"later"]
        silent.send(ApiKey.FETCH, asked, 12)
        with pytest.raises(Closed):
            silent.receive()


def test_a_fetch_of_a_share_group_that_waits_ends_with_the_login(broker: RunningBroker, other: Raw) -> None:
    other.make("shared")
    with Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as raw:
        log_in(raw, "PLAIN", b"\0ada\0" + SECRET.encode())
        member = Member(raw, "sharers", "AAAAAAAAAAAAAAAAAAAAAA", "shared")
        member.fetch()
        limits = {"max_bytes": 1 << 20, "max_records": 100, "batch_size": 100, "min_bytes": 1, "max_wait_ms": LONG_MS}
        raw.send(ApiKey.SHARE_FETCH, member.body([], **limits))
        answer = raw.receive()
        assert answer["error_code"] == 0
        assert records_of(answer) == []
        write(other, "shared")
        raw.send(ApiKey.METADATA, {"topics": None})
        with pytest.raises(Closed):
            raw.receive()
