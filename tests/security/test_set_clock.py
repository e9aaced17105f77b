"""Logins while somebody sets the broker's wall clock. A machine may start with a clock that is far behind, and set it
when it reaches a time server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest

from krappy.core.security.oauthbearer import first_message
from krappy.errors import AuthenticationFailed, RequestTimeout
from krappy.records import batch
from krappy.server import authentication, channel
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.handlers.raw import Raw as NativeRaw
from tests.kafka.raw import Closed, Raw, fetch
from tests.process import wait_until
from tests.security.identity import IdentityProvider
from tests.security.test_login_ends import records_of
from tests.security.test_tokens import LISTENERS, address, log_in

ALL = {"topics": None}
HOUR = 3600


class WallClock(SimpleNamespace):
    """Takes the place of the module `time` where logins end."""

    ahead = 0.0

    def time(self) -> float:
        return time.time() + self.ahead


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WallClock:
    made = WallClock()
    for module in (authentication, channel):
        monkeypatch.setattr(module, "time", made)
    return made


@pytest.fixture(scope="module")
def broker(provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    settings = {
        **LISTENERS,
        **provider.settings,
        "listen_http": "SASL_PLAINTEXT://127.0.0.1:0",
        "super_users": "User:ada",
        "authentication_timeout_ms": 1000,
    }
    with run_broker(tmp_path_factory.mktemp("clock") / "data", **settings) as found:
        yield found


def lives(raw: Raw) -> bool:
    try:
        return bool(raw.ask(ApiKey.METADATA, ALL)["brokers"])
    except (Closed, ConnectionError):
        return False


def is_one_waiting(broker: RunningBroker, provider: IdentityProvider) -> bool:
    """Whether a request of Kafka's protocol waits for its answer."""
    headers = {"Authorization": f"Bearer {provider.token()}"}
    told = httpx.get(f"http://{broker.http_address}/api/v1/connections", headers=headers, trust_env=False).json()
    return any(each["protocol"] == "kafka" and each["in_flight_bytes"] for each in told["connections"])


def native(broker: RunningBroker, token: str) -> NativeRaw:
    raw = NativeRaw(broker.address)
    assert raw.call(m.Authenticate("OAUTHBEARER", first_message(token))).done
    return raw


def test_a_token_ends_when_the_clock_is_set_forward(
    broker: RunningBroker, provider: IdentityProvider, clock: WallClock
) -> None:
    """Only logins whose token is over by the new time end, and only until the client shows another token."""
    soon, later = provider.token(seconds=HOUR / 2), provider.token(seconds=10 * HOUR)
    with Raw(address(broker)) as first, Raw(address(broker)) as other, Raw(address(broker)) as again:
        for raw, token in ((first, soon), (other, later), (again, soon)):
            assert not log_in(raw, token)["error_code"]
            assert lives(raw)
        clock.ahead = HOUR
        assert not lives(first)
        assert lives(other)
        assert not log_in(again, later)["error_code"]
        assert lives(again)


def test_a_fetch_that_waits_brings_nothing_once_the_clock_says_that_the_token_is_over(
    broker: RunningBroker, provider: IdentityProvider, clock: WallClock
) -> None:
    with Raw(address(broker)) as waits, Raw(address(broker)) as writes:
        assert not log_in(writes, provider.token(seconds=10 * HOUR))["error_code"]
        writes.make("fetched")
        assert not log_in(waits, provider.token(seconds=HOUR / 2))["error_code"]
        waits.send(ApiKey.FETCH, fetch([("fetched", 0, 0)], max_wait_ms=500_000, min_bytes=1), 12)
        wait_until(lambda: is_one_waiting(broker, provider), "the Fetch waits")
        clock.ahead = HOUR
        assert writes.produce("fetched", batch.encode([b"k"], [b"later"], timestamps=1_000))["error_code"] == 0
        assert records_of(waits.receive()) == []
        assert not lives(waits)


def test_a_native_login_ends_when_the_clock_is_set_forward(
    broker: RunningBroker, provider: IdentityProvider, clock: WallClock
) -> None:
    """Also that of a peer which asks for nothing more, but waits."""
    with native(broker, provider.token(seconds=10 * HOUR)) as other:
        other.producer("watched")
        soon = provider.token(seconds=HOUR / 2)
        with native(broker, soon) as asks, native(broker, soon) as waits:
            watch = waits.send(m.Watch("watched"))
            assert asks.call(m.Ping()).principal == "User:ada"
            clock.ahead = HOUR
            wait_until(lambda: refused(asks), "it is asked who it is")
            wait_until(lambda: ended(waits, watch), "the watch ends")
        assert other.call(m.Ping()).principal == "User:ada"


def refused(raw: NativeRaw) -> bool:
    try:
        raw.call(m.DescribeTopics())
    except AuthenticationFailed:
        return True
    return False


def ended(raw: NativeRaw, watch: int) -> bool:
    """Takes the next answer of a watch. Raises TimeoutError if none comes."""
    try:
        raw.receive(watch)
    except (EOFError, ConnectionError, RequestTimeout):
        return True
    return False


def test_a_token_lasts_no_longer_when_the_clock_is_set_back(
    broker: RunningBroker, provider: IdentityProvider, clock: WallClock
) -> None:
    with Raw(address(broker)) as raw:
        assert not log_in(raw, provider.token(seconds=2))["error_code"]
        assert lives(raw)
        clock.ahead = -24 * HOUR
        wait_until(lambda: not lives(raw), "it ends after as long as the token had left")
