"""Unmodified clients log in with tokens of an identity provider."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.process import wait_until
from tests.security.identity import IdentityProvider
from tests.security.test_tokens import LISTENERS, address


@pytest.fixture(scope="module")
def broker(
    provider: IdentityProvider, reported: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    """A broker whose sessions last two seconds. Its reports are in `reported`."""
    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada", "connections_max_reauth_ms": 2000}
    data = tmp_path_factory.mktemp("token-clients") / "data"

    def report(event: str, **facts: object) -> None:
        reported.append(f"{event} {facts}")

    with run_broker(data, group_initial_rebalance_delay_ms=0, report=report, **settings) as found:
        yield found


def librdkafka(broker: RunningBroker, provider: IdentityProvider, how: str, said: list[str]) -> dict[str, Any]:
    options = {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "OAUTHBEARER",
        "error_cb": lambda error: said.append(error.name()),
        "log_level": 0,
    }
    if how == "oidc":
        return {
            **options,
            "sasl.oauthbearer.method": "oidc",
            "sasl.oauthbearer.token.endpoint.url": f"{provider.issuer}/token",
            "sasl.oauthbearer.client.id": "ada",
            "sasl.oauthbearer.client.secret": "a-secret",
        }
    return {**options, "oauth_cb": lambda _: (provider.token(seconds=2), time.time() + 2)}


@pytest.mark.parametrize("how", ["callback", "oidc"])
def test_librdkafka_logs_in_again_under_load(
    broker: RunningBroker, provider: IdentityProvider, reported: list[str], how: str
) -> None:
    """No event is lost or comes twice over several sessions and tokens, even if a client stalls for so long that its
    session ends. The broker then closes the connection, and librdkafka may call that _AUTHENTICATION. So the test looks
    at the broker's reports to see whether a login was refused."""
    confluent = pytest.importorskip("confluent_kafka")
    before = len(reported)
    said: list[str] = []
    options = librdkafka(broker, provider, how, said)
    offsets: list[int] = []
    producer = confluent.Producer({**options, "enable.idempotence": True})
    consumer = confluent.Consumer({**options, "group.id": how, "auto.offset.reset": "earliest"})
    consumer.subscribe([f"rd-{how}"])
    sent, taken = 0, list[int]()
    end = time.monotonic() + 7
    while time.monotonic() < end or len(taken) < sent:
        assert time.monotonic() < end + 60, (len(taken), sent, said)
        if time.monotonic() < end:
            for _ in range(20):
                producer.produce(
                    f"rd-{how}",
                    b"%d" % sent,
                    partition=0,
                    on_delivery=lambda _, message: offsets.append(message.offset()),
                )
                sent += 1
        producer.poll(0)
        taken += [int(each.value()) for each in consumer.consume(500, 0.02) if not each.error()]
    assert producer.flush(30) == 0
    consumer.close()
    assert offsets == list(range(sent))
    assert taken == list(range(sent))
    assert not [each for each in reported[before:] if "authentication_failed" in each], said


# A session may last so many seconds longer than its token. If it did not end with its token, it would last for an hour.
LATE = 15.0


def test_librdkafka_that_gets_no_other_token_is_ended_in_time(provider: IdentityProvider, tmp_path: Path) -> None:
    """The client writes all the time. No event is lost, and with another token all the rest is written."""
    confluent = pytest.importorskip("confluent_kafka")
    said: list[str] = []
    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada", "oauth_clock_skew_seconds": 0}
    stored: dict[int, tuple[bytes, float]] = {}

    def delivered(error: Any, message: Any) -> None:
        assert error is None
        stored[message.offset()] = message.value(), time.time()

    with run_broker(tmp_path / "data", **settings) as broker:
        ends = time.time() + 3
        tokens = [provider.token(exp=ends)]
        options = librdkafka(broker, provider, "callback", said)
        producer = confluent.Producer(
            {**options, "oauth_cb": lambda _: (tokens[0], time.time() + 2), "enable.idempotence": True}
        )
        sent = 0

        def produce(count: int) -> None:
            nonlocal sent
            for _ in range(count):
                producer.produce("lazy", b"%d" % sent, partition=0, on_delivery=delivered)
                sent += 1
            producer.poll(0.02)

        def refused() -> bool:
            if time.time() < ends + 1 or sent < 20:
                produce(10)
            producer.poll(0.02)
            return time.time() > ends + 1 and "_AUTHENTICATION" in said

        wait_until(refused, "its token is refused")
        assert stored
        before = len(stored)
        assert before < sent
        producer.poll(1)
        assert len(stored) == before
        assert max(at for _, at in stored.values()) < ends + LATE
        tokens[0] = provider.token()
        assert producer.flush(60) == 0
    assert [stored[offset][0] for offset in range(sent)] == [b"%d" % number for number in range(sent)]


def test_librdkafka_with_a_bad_token(broker: RunningBroker, provider: IdentityProvider) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    said: list[str] = []
    options = librdkafka(broker, provider, "callback", said)
    producer = confluent.Producer({**options, "oauth_cb": lambda _: (provider.token(aud="x"), time.time() + 60)})
    producer.produce("rd", "never")
    deadline = time.monotonic() + 30
    while "_AUTHENTICATION" not in said and time.monotonic() < deadline:
        producer.poll(0.1)
    assert "_AUTHENTICATION" in said
    producer.purge()


def test_kafka_python(broker: RunningBroker, provider: IdentityProvider) -> None:
    python = pytest.importorskip("kafka")
    from kafka.net.sasl.oauth import AbstractTokenProvider

    class Giver(AbstractTokenProvider):  # type: ignore[misc]
        def __init__(self, **claims: Any) -> None:
            self._claims = claims

        def token(self) -> str:
            return provider.token(**self._claims)

    options = {"bootstrap_servers": address(broker), "security_protocol": "SASL_PLAINTEXT"}
    producer = python.KafkaProducer(**options, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Giver())
    end = time.monotonic() + 4.5
    offsets = []
    while time.monotonic() < end:
        offsets.append(producer.send("kp", b"x").get(30).offset)
        time.sleep(0.01)
    producer.close()
    assert offsets == list(range(len(offsets)))
    with pytest.raises(python.errors.KafkaError):
        python.KafkaAdminClient(
            **options, sasl_mechanism="OAUTHBEARER", sasl_oauth_token_provider=Giver(aud="x"), bootstrap_timeout_ms=3000
        )


def test_aiokafka(broker: RunningBroker, provider: IdentityProvider) -> None:
    """It connects again when a session ends."""
    aiokafka = pytest.importorskip("aiokafka")
    import asyncio

    from aiokafka.abc import AbstractTokenProvider

    class Giver(AbstractTokenProvider):  # type: ignore[misc]
        async def token(self) -> str:
            return provider.token()

    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address(broker),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="OAUTHBEARER",
            sasl_oauth_token_provider=Giver(),
            enable_idempotence=True,
        )
        await producer.start()
        end = time.monotonic() + 4.5
        offsets = []
        while time.monotonic() < end:
            offsets.append((await producer.send_and_wait("aio", b"x")).offset)
            await asyncio.sleep(0.01)
        await producer.stop()
        assert offsets == list(range(len(offsets)))

    asyncio.run(asyncio.wait_for(main(), 60))
