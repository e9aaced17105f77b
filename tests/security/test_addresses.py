"""A peer has the same address in all protocols, even at a listener for IPv6 that also takes IPv4."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from krappy.console import oidc
from krappy.console.api import MAX_BODIES, BodyRoom, who_of
from krappy.console.attempts import MOST, Attempts, TooManyAttempts, WrongToken
from krappy.console.oidc import MOST_OF_ONE, ProviderLogins
from krappy.console.problems import HttpError
from krappy.core.security.operations import Op, Resource
from krappy.core.security.quota import Payer, QuotaSet, QuotaUse
from krappy.core.security.quota_entities import QuotaEntity, QuotaKey, entity_of
from krappy.errors import AuthorizationFailed
from krappy.hosts import plain
from krappy.logs import MANY, Reporter
from krappy.server.places import Places
from krappy.settings.listeners import NATIVE
from krappy.settings.server import load
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey, Code
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw as Kafka
from tests.process import wait_until
from tests.security.guarded import rule

TOKEN = "a-token-of-some-length"
DENIED = {"127.0.0.9": "127.0.0.9", "127.0.0.10": "::ffff:127.0.0.10"}  # by address of a peer: how an ACL names it


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::FFFF:0a00:0007", "10.0.0.7"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("10.0.0.7", "10.0.0.7"),
        ("host", "host"),
    ],
)
def test_one_form(written: str, meant: str) -> None:
    assert plain(written) == meant


def test_quotas_and_limits_name_the_same_address() -> None:
    assert entity_of({"ip": "::ffff:10.0.0.7"}) == QuotaEntity(ip="10.0.0.7")
    config = load({"max_connections_per_ip_overrides": "[::ffff:10.0.0.7]:5"}, {})
    assert config.overrides_of_connections_per_ip == {"10.0.0.7": 5}


@pytest.fixture(scope="module")
def audit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("audit") / "audit"


@pytest.fixture(scope="module")
def broker(audit: Path) -> Iterator[RunningBroker]:
    listeners = dict.fromkeys(("listen_native", "listen_kafka", "listen_http"), "[::]:0")
    with run_broker(
        audit.parent / "data",
        durability="os",
        insecure_listeners="allow",
        console_token=TOKEN,
        authorizer="acl",
        super_users="User:root",
        allow_everyone_if_no_acl_found=True,
        audit_log=f"file:{audit}",
        **listeners,
    ) as found:
        with Kafka(here(found.kafka_address)) as raw:
            raw.make("t")
            rules = [rule(Resource.TOPIC, "t", Op.ALL, "*", principal="User:*")]
            rules += [
                rule(Resource.TOPIC, "t", Op.ALL, host, principal=who, deny=True)
                for host in DENIED.values()
                for who in ("User:ANONYMOUS", "User:console")
            ]
            assert not any(each["error_code"] for each in raw.ask(ApiKey.CREATE_ACLS, {"creations": rules})["results"])
        yield found


def here(address: str) -> str:
    return "127.0.0.1:" + address.rpartition(":")[2]


def asked(broker: RunningBroker, source: str) -> list[bool]:
    """Whether a client from this address may read by [Kafka's protocol, the native protocol, HTTP]."""
    with Kafka(here(broker.kafka_address), source=source) as raw:
        [topic] = raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"]
        assert topic["error_code"] in (0, Code.TOPIC_AUTHORIZATION_FAILED)
    with Native(here(broker.address), source=source) as native:
        try:
            native.call(m.Get("t", b"k"))
            let_in = True
        except AuthorizationFailed:
            let_in = False
    transport = httpx.HTTPTransport(local_address=source)
    with httpx.Client(transport=transport, trust_env=False, timeout=60) as http:
        url = f"http://{here(broker.http_address)}/api/v1/topics/t/events"
        status = http.get(url, headers={"Authorization": f"Bearer {TOKEN}"}).status_code
    assert status in (200, 403)
    return [not topic["error_code"], let_in, status == 200]


def test_an_acl_for_an_address_counts_in_each_protocol(broker: RunningBroker, audit: Path) -> None:
    for host in DENIED:
        assert asked(broker, host) == [False] * 3
    assert asked(broker, "127.0.0.11") == [True] * 3
    with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.9"), trust_env=False) as http:
        url = f"http://{here(broker.http_address)}/api/v1/topics"
        assert http.get(url, headers={"Authorization": "Bearer wrong-token-of-some"}).status_code == 401

    wait_until(
        lambda: any("HTTP" in line and '"127.0.0.9"' in line for line in audit.read_text().splitlines()),
        "the wrong token is in the audit log",
    )


# --- whoever has one IPv6 address has all addresses of its network


ONE, NEXT, THIRD, OTHER = "2001:db8::1", "2001:db8::ffff:2", "2001:db8::3", "2001:db8:0:1::1"


def test_guesses_are_bounded_by_network() -> None:
    async def main() -> None:
        attempts = Attempts()
        async with trio.open_nursery() as nursery:
            for number in range(MOST):
                nursery.start_soon(attempts.refused, (ONE, NEXT)[number % 2], WrongToken())
            await wait_all_tasks_blocked()
            for host in (ONE, NEXT):
                with pytest.raises(TooManyAttempts):
                    attempts.check(host)
            attempts.check(OTHER)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_who_waits_for_the_provider_is_bounded_by_network() -> None:
    class Silent:
        async def begin(self) -> Any:
            await trio.sleep_forever()

        async def finish(self, code: str, attempt: Any) -> Any: ...

    async def main() -> None:
        logins = ProviderLogins(Silent(), b"", lambda event, **facts: None)
        async with trio.open_nursery() as nursery:
            for number in range(MOST_OF_ONE):
                nursery.start_soon(logins.begin, {}, 0, (ONE, NEXT)[number % 2])
            nursery.start_soon(logins.begin, {}, 0, OTHER)
            await wait_all_tasks_blocked()
            with pytest.raises(HttpError, match="too many logins wait"):
                await logins.begin({}, 0, ONE)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_few_networks_leave_room_for_another_one_at_the_provider() -> None:
    class Silent:
        waiting = 0

        async def begin(self) -> Any:
            self.waiting += 1
            await trio.sleep_forever()

        async def finish(self, code: str, attempt: Any) -> Any: ...

    async def main() -> None:
        silent = Silent()
        logins = ProviderLogins(silent, b"", lambda event, **facts: None)

        async def come(host: str) -> None:
            with suppress(HttpError):
                await logins.begin({}, 0, host)

        async with trio.open_nursery() as nursery:
            for number in range(2 * oidc.MOST):
                nursery.start_soon(come, f"10.0.0.{number % 6}")
            await wait_all_tasks_blocked()
            before = silent.waiting
            nursery.start_soon(come, "10.0.0.9")
            await wait_all_tasks_blocked()
            assert silent.waiting == before + 1
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_what_is_done_before_the_login_counts_by_network() -> None:
    use = QuotaUse()
    use.take(QuotaSet({QuotaEntity(user=""): {QuotaKey.REQUEST: 1.0}}))
    use.spend(QuotaKey.REQUEST, Payer(host=ONE), 100.0, 0.0)
    waits = [use.wait(QuotaKey.REQUEST, Payer(host=host), 0.0) > 0 for host in (ONE, NEXT, OTHER)]
    assert waits == [True, True, False]


def test_connections_are_counted_by_network_but_for_addresses_with_a_limit_of_their_own() -> None:
    places = Places(100, 2, {ONE: 1})

    def opened(host: str) -> bool:
        if places.refusal(NATIVE, host, 10, 0.0) is not None:
            return False
        places.take(cast("Any", host), NATIVE, host)
        return True

    assert [opened(host) for host in (ONE, ONE, NEXT, THIRD, NEXT, OTHER)] == [True, False, True, True, False, True]
    for host in (ONE, THIRD):
        places.leave(cast("Any", host), NATIVE, host)
    assert [opened(host) for host in (ONE, ONE, NEXT, NEXT)] == [True, False, True, False]


def test_new_connections_are_counted_by_network_but_for_addresses_with_a_quota_of_their_own() -> None:
    use = QuotaUse()
    use.take(QuotaSet({QuotaEntity(ip=ONE): {QuotaKey.CONNECTION: 1.0}}))
    opened = [host for host in [NEXT, OTHER, ONE] * 50 if use.connect(host, 10.0, 0.0)]
    assert opened.count(ONE) == 2
    assert opened.count(NEXT) == opened.count(OTHER) == 11
    assert not use.connect(THIRD, 10.0, 0.0)


def test_the_log_of_failures_is_bounded_by_network() -> None:
    told: list[str] = []
    report = Reporter(lambda level, event, facts: told.append(facts["client"]), lambda: 0.0)
    for number in range(3 * MANY):
        report("authentication_failed", client=f"[2001:db8::{number:x}]:1")
        report("authentication_failed", client=f"2001:db8::{number:x}")
    report("authentication_failed", client=OTHER)
    assert len(told) == MANY + 1


def test_who_has_not_logged_in_shares_memory_and_turns_of_the_console_by_network() -> None:
    bodies, half = BodyRoom(), MAX_BODIES // 2
    assert bodies.take(ONE, half)
    assert not bodies.take(NEXT, 1)
    bodies.take(NEXT, -1)
    assert bodies.take(OTHER, half // 2)
    first, second, other = (who_of({"client": (host, 1)}) for host in (ONE, NEXT, OTHER))
    assert first == second != other
