"""A stranger can't find out whether a user exists: neither by the work that the check of a password takes, nor by the
challenge that he gets. The time of a check depends on its work, so the tests count the work."""

from __future__ import annotations

import hashlib
import hmac
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from trio.testing import trio_test

from krappy.core.security.sasl import Challenge, SaslExchange, SaslRefused
from krappy.core.security.scram import HASHES, SALT, ScramClient, ScramCredential
from krappy.errors import AuthenticationFailed
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from krappy.wire.kafka.codes import Code
from tests.broker.engine import running
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw as Kafka
from tests.security.test_sasl import SECRET, users_dir

Work = Counter[tuple[str, int]]  # numbers of iterations, by (name of the hash, length of the salt)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Counts what is hashed from now on."""
    hashed: Work = Counter()
    make = hashlib.pbkdf2_hmac

    def counted(name: str, password: bytes, salt: bytes, iterations: int, *more: Any) -> bytes:
        hashed[name, len(salt)] += iterations
        return make(name, password, salt, iterations, *more)

    monkeypatch.setattr(hashlib, "pbkdf2_hmac", counted)
    return hashed


def test_an_unknown_user_is_as_much_work_as_one_who_is_there(tmp_path: Path, work: Work) -> None:
    folder = users_dir(tmp_path / "users", ada=SECRET)
    listeners = {f"listen_{each}": "SASL_PLAINTEXT://127.0.0.1:0" for each in ("kafka", "native", "http")}
    with run_broker(
        tmp_path / "data",
        durability="os",
        users_dir=folder,
        super_users="User:ada",
        sasl_enabled_mechanisms="PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        insecure_listeners="allow",
        failed_authentication_delay_ms=0,
        **listeners,
    ) as broker:
        with broker.connect(user="ada", password=SECRET) as client:
            client.security.set_password("stored", "pw")

        def by_kafka(user: str) -> None:
            with Kafka(broker.kafka_addresses["SASL_PLAINTEXT"]) as raw:
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
                told = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": f"\0{user}\0wrong".encode()})
                assert told["error_code"] == Code.SASL_AUTHENTICATION_FAILED

        def by_native(user: str) -> None:
            with Native(broker.address) as raw, pytest.raises(AuthenticationFailed):
                raw.call(m.Authenticate("PLAIN", f"\0{user}\0wrong".encode()))

        def by_http(user: str) -> None:
            at = f"http://{broker.http_address}/api/v1/topics"
            assert httpx.get(at, auth=(user, "wrong"), trust_env=False).status_code == 401

        for way in (by_kafka, by_native, by_http):
            took = []
            for user in ("ada", "stored", "nobody", "nobody-else"):
                work.clear()
                way(user)
                took.append(dict(work))
            assert took[0], way
            assert all(each == took[0] for each in took), (way, took)


@trio_test
async def test_an_unknown_user_looks_like_a_known_one_in_all_respects(tmp_path: Path, work: Work) -> None:
    """Users have different credentials. An unknown user looks like one of them in all respects: in the work to check a
    password, and in the number of iterations that SCRAM tells."""
    ways = {"both": {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}, "old": {"SCRAM-SHA-256": 4096}}
    ways |= {"strong": {"SCRAM-SHA-512": 10_000}, "mixed": {"SCRAM-SHA-256": 6000, "SCRAM-SHA-512": 4096}}

    async with running(tmp_path) as broker:
        for name, wanted in ways.items():
            made = {each: ScramCredential.of(each, "pw", bytes(SALT), count) for each, count in wanted.items()}
            await broker.users.alter(name, made)
        whole = {
            (("sha256", SALT), 8192): {(8192, 8192)},
            (("sha256", SALT), 4096): {(4096, 8192), (4096, 10_000), (4096, 4096)},
            (("sha512", SALT), 10_000): {(8192, 10_000), (4096, 10_000), (6000, 10_000)},
            (("sha256", SALT), 6000): {(6000, 4096)},
        }
        seen = set()
        for number in range(60):
            work.clear()
            assert not await broker.users.check(f"nobody-{number}", "wrong", "127.0.0.1")
            [cost] = work.items()
            assert tuple(broker.users.credential(f"nobody-{number}", each).iterations for each in HASHES) in whole[cost]
            seen.add(cost)
        assert seen == set(whole)


KAFKAS = re.compile(rb"[0-9a-z]{20,26}")


def salt_of_kafka() -> bytes:
    """A salt as `ScramFormatter.secureRandomBytes` of Kafka makes it, which kafka-configs.sh uses."""
    number, text = int.from_bytes(os.urandom(17)) >> 6, ""
    while number:
        number, digit = divmod(number, 36)
        text = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + text
    return text.encode()


@trio_test
async def test_an_unknown_user_looks_like_one_whom_kafka_s_tools_have_made(tmp_path: Path) -> None:
    """Their salts are text, and of different lengths: random bytes would show that there is no such user."""
    async with running(tmp_path) as broker:
        made = {each: ScramCredential.of(each, "pw", salt_of_kafka(), 4096) for each in HASHES}
        await broker.users.alter("kafkas", made)
        found = [broker.users.credential(f"nobody-{number}", each) for number in range(50) for each in HASHES]
        assert all(KAFKAS.fullmatch(each.salt) and each.iterations == 4096 for each in found)
        assert len({each.salt for each in found}) == len(found)
        assert {len(each.salt) for each in found} >= {25, 26}
        assert all(each.salt[:1] == b"1" for each in found if len(each.salt) == 26)
        assert broker.users.credential("nobody-0", "SCRAM-SHA-256").salt == found[0].salt
        await broker.users.alter("own", {each: ScramCredential.of(each, "pw", bytes(SALT)) for each in HASHES})
        kinds = Counter(
            KAFKAS.fullmatch(broker.users.credential(f"nobody-{number}", "SCRAM-SHA-256").salt) is not None
            for number in range(100)
        )
        assert min(kinds[True], kinds[False]) > 20


@trio_test
async def test_a_login_of_an_unknown_user_takes_as_many_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a stranger finds out by the time that the answers take, over a few hundred connections."""
    steps: list[str] = []
    make = hmac.digest

    def counted(key: bytes, data: bytes, name: str) -> bytes:
        steps.append(name)
        return make(key, data, name)

    async with running(tmp_path) as broker:
        for user, count in (("ada", 8192), ("bob", 4096)):
            made = {each: ScramCredential.of(each, "pw", bytes(SALT), count) for each in HASHES}
            await broker.users.alter(user, made)
        monkeypatch.setattr(hmac, "digest", counted)

        async def taken(user: str) -> tuple[list[str], ...]:
            found = []
            exchange = SaslExchange("SCRAM-SHA-512", broker.users.credential, "nonce")
            client = ScramClient("SCRAM-SHA-512", user, "wrong", "nonce")
            steps.clear()
            challenge = exchange.step(client.first())
            found.append(list(steps))
            assert isinstance(challenge, Challenge)
            final = client.step(challenge.data)
            steps.clear()
            with pytest.raises(SaslRefused, match="a wrong proof"):
                exchange.step(final)
            found.append(list(steps))
            steps.clear()
            assert not await broker.users.check(user, "wrong", "127.0.0.1")
            return (*found, list(steps))

        known = await taken("ada")
        assert all(known)
        assert [await taken(f"nobody-{number}") for number in range(10)] == [known] * 10
