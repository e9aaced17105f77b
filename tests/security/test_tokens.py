"""Users log in with a token of an identity provider (OAUTHBEARER): which tokens are good, and for how long."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives import serialization
from hypothesis import given
from hypothesis import strategies as st

from krappy import errors
from krappy.broker.client_quotas import ClientQuotas
from krappy.core.security.oauthbearer import LONGEST_TOKEN, TokenRefused, first_message, read_claims, read_first
from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import ConfigError
from krappy.ports.tokens import ProviderTrouble
from krappy.server import provider as web
from krappy.server import token_keys
from krappy.settings.server import load
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from krappy.wire.kafka.codes import Code
from tests.handlers.raw import Raw as NativeRaw
from tests.kafka.raw import Closed, Raw
from tests.process import wait_until
from tests.security.authority import Authority
from tests.security.identity import AUDIENCE, IdentityProvider, ProviderKey, identity_provider, new_key

NAME = "krappy_oauth_keys_age_seconds "
LISTENERS = {
    "listen_native": "SASL_PLAINTEXT://127.0.0.1:0",
    "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl_enabled_mechanisms": "OAUTHBEARER",
    "failed_authentication_delay_ms": 10,
    "durability": "os",
}


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the pause between two readings of the keys short. A token with an unknown key waits for the next
    reading."""
    monkeypatch.setattr(token_keys, "PAUSE", 0.05)


@pytest.fixture(scope="module")
def broker(
    provider: IdentityProvider, reported: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    def report(event: str, **facts: Any) -> None:
        reported.append(f"{event} {facts}")

    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada"}
    with run_broker(tmp_path_factory.mktemp("tokens") / "data", report=report, **settings) as found:
        yield found
    assert not [each for each in reported if "internal_error" in each]


def address(broker: RunningBroker) -> str:
    return broker.kafka_addresses["SASL_PLAINTEXT"]


def log_in(raw: Raw, token: str | bytes) -> dict[str, Any]:
    """Begins to log in; returns the broker's first answer."""
    assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"})["error_code"] == 0
    first = token if isinstance(token, bytes) else f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    return raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": first})


def is_taken(broker: RunningBroker, token: str | bytes) -> bool:
    """Whether the token is accepted. Checks that a refusal has the form that it has in Kafka."""
    with Raw(address(broker)) as raw:
        said = log_in(raw, token)
        if said["error_code"] == 0 and said["auth_bytes"] == b"":
            assert raw.ask(ApiKey.METADATA, {"topics": None})["brokers"]
            return True
        if said["error_code"] == 0:
            assert json.loads(said["auth_bytes"]) == {"status": "invalid_token"}
            said = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\x01"})
        assert said["error_code"] == Code.SASL_AUTHENTICATION_FAILED
        assert said["session_lifetime_ms"] == 0
        with pytest.raises(Closed):
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"})
        return False


# --- which tokens are good


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "PS384", "ES256", "ES384", "EdDSA"])
def test_each_algorithm(tmp_path: Path, algorithm: str) -> None:
    """The broker reads the keys from a file here."""
    key, file = new_key(algorithm), tmp_path / "keys with space.json"
    file.write_text(json.dumps({"keys": [{"kty": "oct", "k": "AAAA", "kid": key.id}, key.public]}))
    with identity_provider() as provider:
        settings = {**LISTENERS, **provider.settings, "oauth_jwks_url": file.as_uri()}
        with run_broker(tmp_path / "data", **settings) as broker:
            assert is_taken(broker, provider.token(key=key))
            assert not is_taken(broker, provider.token(key=new_key(algorithm, key.id)))
        assert not provider.asked


def test_a_good_token(broker: RunningBroker, provider: IdentityProvider) -> None:
    assert is_taken(broker, provider.token())
    assert is_taken(broker, provider.token(aud=["other", AUDIENCE]))
    assert is_taken(broker, provider.token(iat=None))
    with Raw(address(broker)) as raw:  # the clocks may differ by 30 s; the session lasts for 1 ms
        assert log_in(raw, provider.token(seconds=-10))["error_code"] == 0
    for identity in ("a=ada", "a=x"):
        first = f"n,{identity},\x01host=h\x01port=1\x01auth=bearer  {provider.token()}\x01traceId=1\x01\x01"
        assert is_taken(broker, first.encode()) == (identity == "a=ada")


def test_bad_tokens(broker: RunningBroker, provider: IdentityProvider) -> None:
    good = provider.token()
    head, body, signature = good.split(".")
    other = json.loads(base64.urlsafe_b64decode(body + "=="))
    forged = base64.urlsafe_b64encode(json.dumps({**other, "sub": "root"}).encode()).rstrip(b"=").decode()
    bad = {
        "expired": provider.token(seconds=-31),
        "not yet": provider.token(nbf=time.time() + 60),
        "made later": provider.token(iat=time.time() + 60),
        "another issuer": provider.token(iss="https://evil.example"),
        "no issuer": provider.token(iss=None),
        "another audience": provider.token(aud="somebody"),
        "no audience": provider.token(aud=None),
        "no end": provider.token(exp=None),
        "an end that is no time": provider.token(exp="soon"),
        "an end without end": provider.token(exp=float("inf")),
        "no user": provider.token(sub=None),
        "an empty user": provider.token(""),
        "a long user": provider.token("a" * 256),
        "a user that is no text": provider.token(sub=7),
        "a user of lines": provider.token("a\nb"),
        "groups that are none": provider.token(groups=[1]),
        "many groups": provider.token(groups=[f"g{number}" for number in range(257)]),
        "another key": provider.token(key=new_key(id=provider.keys[0].id)),
        "another text": f"{head}.{forged}.{signature}",
        "no signature": f"{head}.{body}.",
        "two parts": f"{head}.{body}",
        "one part": "x",
        "a long one": good + "A" * 1000,
    }
    assert {name: is_taken(broker, token) for name, token in bad.items()} == dict.fromkeys(bad, False)


def unsigned(claims: dict[str, Any], algorithm: str, kid: str, secret: bytes | None = None) -> str:
    def part(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    told = f"{part({'alg': algorithm, 'kid': kid})}.{part(claims)}"
    proof = b"" if secret is None else hmac.digest(secret, told.encode(), hashlib.sha256)
    return told + "." + base64.urlsafe_b64encode(proof).rstrip(b"=").decode()


def test_no_algorithm_and_one_with_the_public_key_as_secret(broker: RunningBroker, provider: IdentityProvider) -> None:
    key = provider.keys[0]
    public = key.private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    der = public.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 60}
    for algorithm in ("none", "None", "NONE", ""):
        assert not is_taken(broker, unsigned(claims, algorithm, key.id))
    for secret in (pem, pem.strip(), der, json.dumps(key.public).encode(), b""):
        assert not is_taken(broker, unsigned(claims, "HS256", key.id, secret))
    for algorithm in ("PS256", "RS512"):  # the JWK says RS256
        assert not is_taken(broker, provider.token(key=ProviderKey(key.id, algorithm, key.private)))


def test_a_token_without_a_key_s_id(broker: RunningBroker, provider: IdentityProvider) -> None:
    claims = {"iss": provider.issuer, "aud": AUDIENCE, "sub": "ada", "exp": int(time.time()) + 60}
    assert is_taken(broker, jwt.encode(claims, provider.keys[0].private, "RS256"))
    one, other, third = new_key(), new_key("ES256"), new_key()

    async def main() -> None:
        async def read() -> bytes:
            await trio.sleep(1)
            return json.dumps({"keys": [each.public for each in keys]}).encode()

        keys = [one, other]
        held = token_keys.TokenKeys(read, 3600, lambda event, **_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(held.follow)
            for key in keys:
                found = await held.find(None, key.algorithm)
                assert found is not None
                assert found.id == key.id
            keys.append(third)
            assert await held.find(third.id, third.algorithm) is not None
            # There are two keys for RS256, so nobody knows which one is meant.
            assert await held.find(None, "RS256") is None
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))


def test_an_attempt_ends_with_a_refusal(broker: RunningBroker, provider: IdentityProvider) -> None:
    """A client can't try one token after another on the same connection."""
    with Raw(address(broker)) as raw:
        assert log_in(raw, provider.token(aud="x"))["auth_bytes"]
        again = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": first_message(provider.token())})
        assert again["error_code"] == Code.SASL_AUTHENTICATION_FAILED
        with pytest.raises(Closed):
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"})


# --- strangers


def test_garbage(broker: RunningBroker, provider: IdentityProvider) -> None:
    chance = random.Random(11)
    good = first_message(provider.token())
    for _ in range(150):
        changed = bytearray(good)
        for _ in range(chance.randrange(1, 4)):
            at = chance.randrange(len(changed))
            how = chance.randrange(3)
            if how == 0:
                changed[at] = (changed[at] + chance.randrange(1, 256)) % 256
            elif how == 1:
                del changed[at : at + chance.randrange(1, 40)]
            else:
                changed[at:at] = chance.randbytes(chance.randrange(1, 40))
        if read_or_none(bytes(changed)) != read_or_none(good):
            assert not is_taken(broker, bytes(changed))
    for data in (
        b"",
        b"\x01",
        b"n,,\x01\x01",
        b"y,,\x01auth=Bearer x\x01\x01",
        b"n,,\x01auth=Basic x\x01\x01",
        b"\xff",
    ):
        assert not is_taken(broker, data)
    for head in ("[" * 20_000, '{"a":' * 5_000, "1" * 20_000, '{"alg":["RS256"],"kid":{}}', '{"alg":1}', "null"):
        encoded = base64.urlsafe_b64encode(head.encode()).rstrip(b"=").decode()
        assert not is_taken(broker, f"{encoded}.e30.AA")


def read_or_none(data: bytes) -> Any:
    try:
        return read_first(data)
    except TokenRefused:
        return None


@given(st.binary(max_size=200) | st.text("n,a=\x01uthBer .-", max_size=60).map(str.encode))
def test_a_first_message_is_read_or_refused(data: bytes) -> None:
    found = read_or_none(data)
    assert found is None or found.token


def test_a_token_of_a_megabyte(broker: RunningBroker, provider: IdentityProvider) -> None:
    with Raw(address(broker)) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "OAUTHBEARER"})
        with pytest.raises((Closed, ConnectionError)):
            raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": first_message("A" * (1 << 20))})
    with Raw(address(broker)) as raw:  # after a login the broker takes larger requests, but no larger tokens
        assert not log_in(raw, provider.token())["error_code"]
        assert log_in(raw, first_message("A" * (1 << 20)))["error_code"] == Code.SASL_AUTHENTICATION_FAILED
    assert is_taken(broker, provider.token(more="x" * (LONGEST_TOKEN // 2)))


def test_a_flood_of_unknown_keys_reaches_the_provider_seldom(
    broker: RunningBroker, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_keys, "PAUSE", 0.5)
    before, began = provider.asked["/keys"], time.monotonic()
    with ThreadPoolExecutor(20) as pool:
        tokens = [provider.token(key=new_key_of(provider)) for _ in range(100)]
        assert not any(pool.map(lambda token: is_taken(broker, token), tokens))
    allowed = 1 + (time.monotonic() - began) / token_keys.PAUSE
    assert provider.asked["/keys"] - before <= allowed
    assert is_taken(broker, provider.token())


def test_a_new_key_is_taken_while_others_send_unknown_ones() -> None:
    """A reading that began before the new key was there does not count for it. A token whose key is known does not
    wait."""
    old, new = new_key(), new_key("ES256")
    there, readings = [old], 0

    async def read() -> bytes:
        nonlocal readings
        readings += 1
        await trio.sleep(1)
        return json.dumps({"keys": [each.public for each in there]}).encode()

    async def main() -> None:
        keys = token_keys.TokenKeys(read, 3600, lambda event, **_: None)
        async with trio.open_nursery() as following:
            following.start_soon(keys.follow)
            await trio.sleep(2)
            there.append(new)
            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(keys.find, f"unknown {number}", "RS256")
                before = trio.current_time()
                await trio.testing.wait_all_tasks_blocked()
                assert await keys.find(old.id, "RS256") is not None
                assert trio.current_time() == before
                assert await keys.find(new.id, "ES256") is not None
            following.cancel_scope.cancel()
        assert readings == 2  # one more reading serves all of them

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.001))


def new_key_of(provider: IdentityProvider) -> ProviderKey:
    """The same key under another id, because it takes long to make a new key."""
    return provider.keys[0]._replace(id=random.randbytes(8).hex())


# --- keys


def test_keys_change_and_the_provider_dies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FIRST_RETRY", 0.05)
    events: list[str] = []
    with (
        identity_provider() as provider,
        run_broker(
            tmp_path / "data",
            report=lambda event, **_: events.append(event),
            oauth_jwks_refresh_ms=1000,
            **LISTENERS,
            **{**provider.settings, "oauth_jwks_url": ""},  # the discovery document says where the keys are
        ) as broker,
    ):
        old = provider.token()
        assert is_taken(broker, old)
        provider.rotate("ES256")
        wait_until(lambda: is_taken(broker, provider.token()), "the new key is read")
        wait_until(lambda: not is_taken(broker, old), "the old key is gone")
        provider.answers["/keys"] = b'{"keys": []}'
        wait_until(lambda: "oauth_keys_not_read" in events, "an answer without keys is told")
        assert is_taken(broker, provider.token())
        provider.stop()
        events.clear()
        wait_until(lambda: "oauth_keys_not_read" in events, "the death is told")
        assert is_taken(broker, provider.token())  # the broker still has the old keys
        provider.rotate()
        assert not is_taken(broker, provider.token())
        provider.answers.clear()
        provider.start()
        wait_until(lambda: is_taken(broker, provider.token()), "it is back")


def test_a_broker_starts_without_its_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(token_keys, "LAST_RETRY", 0.05)
    with identity_provider() as provider:
        provider.stop()
        with run_broker(tmp_path / "data", **LISTENERS, **provider.settings) as broker:
            assert not is_taken(broker, provider.token())
            provider.start()
            wait_until(lambda: is_taken(broker, provider.token()), "the keys are read")


def test_a_provider_s_own_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_keys, "FIRST_RETRY", 0.05)
    own, other = Authority(tmp_path), Authority(tmp_path)
    known = {"oauth_ca": own.ca}
    cases: list[tuple[str, dict[str, str], str]] = [
        (own.issue("127.0.0.1"), known, ""),
        (own.issue("127.0.0.1"), {"oauth_ca": other.ca}, "unable to get local issuer certificate"),
        (own.issue("127.0.0.1"), {}, "unable to get local issuer certificate"),
        (own.issue("127.0.0.1", seconds=-60), known, "certificate has expired"),
        (own.issue("idp.example"), known, "IP address mismatch"),
    ]
    for number, (certificate, settings, why) in enumerate(cases):
        reported: list[str] = []

        def report(event: str, reported: list[str] = reported, **facts: Any) -> None:
            reported.append(f"{event} {facts}")

        with (
            identity_provider(certificate) as provider,
            run_broker(
                tmp_path / f"data-{number}",
                report=report,
                **LISTENERS,
                **{**provider.settings, **settings, "oauth_jwks_url": ""},
            ) as broker,
        ):
            assert is_taken(broker, provider.token()) == (not why)
            if why:
                wait_until(lambda: any("oauth_keys_not_read" in each for each in reported), "it is told")  # noqa: B023
                [told, *_] = [each for each in reported if "oauth_keys_not_read" in each]
                assert f"{provider.issuer}/.well-known/openid-configuration: its certificate is not good" in told
                assert why in told
                assert "oauth_ca" in told


def test_an_authority_that_can_not_be_read(tmp_path: Path) -> None:
    settings = {**LISTENERS, "oauth_issuer": "https://idp.example", "oauth_audience": "krappy"}
    (tmp_path / "empty.pem").touch()
    for file in ("none.pem", "empty.pem"):
        with (
            pytest.raises(ConfigError, match=f"^oauth_ca: .*{file}"),
            run_broker(tmp_path / "data", oauth_ca=str(tmp_path / file), **settings),
        ):
            pass


def test_the_age_of_the_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The age is infinite until the keys are first read. It begins at 0 again with each reading, and grows while no
    reading succeeds."""
    monkeypatch.setattr(token_keys, "FIRST_RETRY", 0.05)
    settings = {**LISTENERS, "listen_http": "127.0.0.1:0", "authorizer": "none", "oauth_jwks_refresh_ms": 1000}
    with identity_provider() as provider:
        provider.stop()
        with (
            run_broker(tmp_path / "data", **{**settings, **provider.settings}) as broker,
            httpx.Client(base_url=f"http://{broker.http_address}", trust_env=False, timeout=60) as http,
        ):

            def age() -> float:
                [line] = [each for each in http.get("/metrics").text.splitlines() if each.startswith(NAME)]
                return float(line.removeprefix(NAME))

            assert age() == math.inf
            assert http.get("/api/v1/overview").json()["oauth_keys_age"] is None
            provider.start()
            wait_until(lambda: age() < math.inf, "they are read")
            asked = provider.asked["/keys"]
            wait_until(lambda: provider.asked["/keys"] > asked + 1 and age() < 1, "they are read again and again")
            assert http.get("/api/v1/overview").json()["oauth_keys_age"] is not None
            provider.stop()
            wait_until(lambda: age() > 2, "they grow old")


def test_which_keys_are_read() -> None:
    good = new_key("ES256").public
    small = {"kty": "RSA", "n": base64.urlsafe_b64encode(b"\xff" * 128).decode().rstrip("="), "e": "AQAB"}
    wrong: list[Any] = [
        *({**good, "use": "enc"}, {**good, "alg": "HS256"}, {**good, "crv": "P-999"}, {"kty": "oct", "k": "AAAA"}),
        *(small, {"kty": "EC"}, {}, None, 7, {**good, "x": "!"}, {**good, "kty": ["EC"]}),
    ]
    [read] = token_keys.read_keys(json.dumps({"keys": [*wrong, good]}).encode())
    assert (read.id, read.algorithms) == (good["kid"], ["ES256"])
    for data in (b"", b"[]", b"{}", b'{"keys": 7}', b"[" * 100_000, json.dumps({"keys": wrong}).encode()):
        with pytest.raises(ProviderTrouble):
            token_keys.read_keys(data)


ODD = st.none() | st.integers() | st.text(max_size=8) | st.lists(st.text(max_size=2), max_size=2)
JWK = st.fixed_dictionaries(
    {"kty": st.sampled_from(["RSA", "EC", "OKP", "oct"]) | ODD},
    optional={
        **dict.fromkeys(("n", "e", "x", "y"), st.sampled_from(["AQAB", "AA", "_" * 400, "A" * 43]) | ODD),
        "crv": st.sampled_from(["P-256", "P-384", "P-521", "Ed25519", "X25519"]) | ODD,
        "alg": st.sampled_from(["RS256", "ES256", "EdDSA", "none"]) | ODD,
        **dict.fromkeys(("use", "kid", "d"), ODD),
    },
)


@given(st.lists(JWK | ODD, max_size=3))
def test_keys_are_read_or_left_out(keys: list[Any]) -> None:
    try:
        found = token_keys.read_keys(json.dumps({"keys": keys}).encode())
    except ProviderTrouble:
        return
    for key in found:
        assert set(key.algorithms) <= {each for every in token_keys.ALGORITHMS.values() for each in every}


def test_what_is_read_at_a_provider(provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "SECONDS", 2.5)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")  # no proxy is used for addresses of this machine

    async def main() -> None:
        reader = web.Provider(load(provider.settings, {}))
        assert token_keys.read_keys(await reader.keys())
        for path, why in (("/moved", "answers 302"), ("/hang", "not answer in 2.5 s"), ("/none", "answers 404")):
            with pytest.raises(ProviderTrouble, match=why):
                await reader.read(provider.issuer + path)
        provider.answers["/keys"] = b" " * (web.LONGEST + 1)
        with pytest.raises(ProviderTrouble, match="more than 1048576 bytes"):
            await reader.keys()
        with pytest.raises(ProviderTrouble, match=r"127\.0\.0\.1:1/: "):
            await reader.read("http://127.0.0.1:1/?secret")
        provider.answers.clear()
        there = f"{provider.issuer}/keys"
        wrongs: list[Any] = [{"issuer": "https://evil.example", "jwks_uri": there}, {"issuer": provider.issuer}, []]
        for wrong in wrongs:
            provider.answers["/.well-known/openid-configuration"] = json.dumps(wrong).encode()
            found = web.Provider(load({**provider.settings, "oauth_jwks_url": ""}, {}))
            with pytest.raises(ProviderTrouble):
                await found.keys()
        for url in ("file:///etc/passwd", "http://idp.example/keys", "data:,x", "", 7):
            with pytest.raises(ProviderTrouble):
                web.Provider.endpoint({"jwks_uri": url}, "jwks_uri")

    try:
        trio.run(main)
    finally:
        provider.answers.clear()
        provider.hanging.set()


def test_only_so_many_wait_for_keys() -> None:
    """Clients that come while a provider hangs must not hold up everything."""
    reading = 0

    async def hang() -> bytes:
        nonlocal reading
        reading += 1
        await trio.sleep(5)
        return b"{}"

    async def main() -> None:
        keys = token_keys.TokenKeys(hang, 3600, lambda event, **_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.follow)
            for _ in range(token_keys.MOST_OF_ONE):
                nursery.start_soon(keys.find, "x", "RS256", "10.0.0.1")
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(1):
                assert await keys.find("x", "RS256", "10.0.0.1") is None
            with trio.move_on_after(1) as waited:  # a client of another address may still wait
                await keys.find("x", "RS256", "10.0.0.2")
            assert waited.cancelled_caught
            await trio.sleep(7)  # a reading takes 5 s, and `follow` tries again 1 s later
            assert reading == 2  # the second one is by `follow`
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_many_addresses_leave_room_for_another() -> None:
    """Ten addresses could fill all places for clients that wait."""
    there = [new_key()]

    async def read() -> bytes:
        await trio.sleep(1)
        return json.dumps({"keys": [each.public for each in there]}).encode()

    async def main() -> None:
        keys = token_keys.TokenKeys(read, 3600, lambda event, **_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.follow)
            await trio.sleep(2)
            there.append(there[0]._replace(id="new"))
            for number in range(token_keys.MOST_WAITING):
                nursery.start_soon(keys.find, "x", "RS256", f"10.0.{number % 10}.1")
            await trio.testing.wait_all_tasks_blocked()
            assert await keys.find("new", "RS256", "10.1.0.1") is not None
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_who_waits_for_a_key_may_leave_at_once() -> None:
    """Also when the broker stops while the provider hangs. Others wait on for the same reading."""
    key = new_key()

    async def read() -> bytes:
        await trio.sleep(9)
        return json.dumps({"keys": [key.public]}).encode()

    async def main() -> None:
        keys = token_keys.TokenKeys(read, 3600, lambda event, **_: None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keys.follow)
            with trio.move_on_after(1):
                await keys.find("x", "RS256", "10.0.0.1")
            assert trio.current_time() - began == pytest.approx(1)
            assert await keys.find(key.id, "RS256", "10.0.0.2") is not None
            nursery.cancel_scope.cancel()
        assert trio.current_time() - began == pytest.approx(9)

    clock = trio.testing.MockClock(autojump_threshold=0.001)
    began = clock.current_time()
    trio.run(main, clock=clock)


# --- how long


@pytest.mark.parametrize(
    ("reauth", "seconds", "wanted"),
    [
        ({}, 7200, 3_600_000),
        ({}, 60, 60_000),
        ({"connections_max_reauth_ms": 0}, 7200, 7_200_000),
        ({"connections_max_reauth_ms": 5000}, 60, 5000),
        ({"connections_max_reauth_ms": 5000}, -5, 1),
    ],
)
def test_how_long_a_session_lasts(
    tmp_path: Path, provider: IdentityProvider, reauth: dict[str, int], seconds: float, wanted: int
) -> None:
    with run_broker(tmp_path / "data", **LISTENERS, **reauth, **provider.settings) as broker:
        with Raw(address(broker)) as raw:
            told = log_in(raw, provider.token(seconds=seconds))["session_lifetime_ms"]
            assert wanted - 10_000 < told <= wanted
            assert told > 0
        with NativeRaw(broker.address) as native:
            answer = native.call(m.Authenticate("OAUTHBEARER", first_message(provider.token(seconds=seconds))))
            assert answer.done
            assert wanted - 10_000 < answer.lifetime <= wanted


def test_a_session_ends_with_its_token(broker: RunningBroker, provider: IdentityProvider) -> None:
    with Raw(address(broker)) as lazy, Raw(address(broker)) as diligent:
        for raw in (lazy, diligent):
            assert not log_in(raw, provider.token(seconds=3))["error_code"]
        ended = False
        while not ended:  # by then the first token of the diligent client has expired, too
            assert not log_in(diligent, provider.token(seconds=60))["error_code"]
            assert diligent.ask(ApiKey.METADATA, {"topics": None})["brokers"]
            try:
                lazy.ask(ApiKey.METADATA, {"topics": None})
            except (Closed, ConnectionError):
                ended = True
            time.sleep(0.05)
        assert not log_in(diligent, provider.token())["error_code"]
        assert log_in(diligent, provider.token("bob"))["error_code"] == Code.SASL_AUTHENTICATION_FAILED


# --- the native protocol


def test_the_native_protocol(broker: RunningBroker, provider: IdentityProvider) -> None:
    with NativeRaw(broker.address) as raw:
        assert raw.call(m.Ping()).mechanisms == ["OAUTHBEARER"]
        assert raw.call(m.Authenticate("OAUTHBEARER", first_message(provider.token()))).done
        assert raw.call(m.Ping()).principal == "User:ada"
    with NativeRaw(broker.address) as raw:
        answer = raw.call(m.Authenticate("OAUTHBEARER", first_message(provider.token(seconds=-60))))
        assert (answer.data, answer.done) == (b'{"status":"invalid_token"}', False)
        with pytest.raises(errors.AuthenticationFailed):
            raw.call(m.Authenticate("", b"\x01"))
        with pytest.raises((EOFError, ConnectionError)):
            raw.call(m.Ping())


def test_the_time_of_a_check_counts_once(
    provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time counts for request_percentage, for a client that has not logged in yet and for one that has."""
    counted: list[Payer] = []
    spend, decode, seconds = ClientQuotas.spend, jwt.decode, 0.2

    def noted(self: ClientQuotas, key: QuotaKey, payer: Payer, amount: float) -> float:
        if key is QuotaKey.REQUEST and amount >= 100 * seconds:
            counted.append(payer)
        return spend(self, key, payer, amount)

    def slow(*args: Any, **given: Any) -> Any:
        time.sleep(seconds)
        return decode(*args, **given)

    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada"}
    settings["listen_http"] = "SASL_PLAINTEXT://127.0.0.1:0"
    with run_broker(tmp_path / "data", **settings) as broker, NativeRaw(broker.address) as raw:
        first = m.Authenticate("OAUTHBEARER", first_message(provider.token()))
        assert raw.call(first).done
        raw.call(m.AlterQuotas({"request_percentage": 1e6}, user="bob"))
        monkeypatch.setattr(ClientQuotas, "spend", noted)
        monkeypatch.setattr(jwt, "decode", slow)
        with NativeRaw(broker.address) as other:
            assert other.call(first).done
        assert raw.call(first).done
        bearer = {"Authorization": f"Bearer {provider.token()}"}
        assert httpx.get(f"http://{broker.http_address}/api/v1/topics", headers=bearer).status_code == 200
    assert counted == [Payer(host="127.0.0.1"), Payer("ada"), Payer("", host="127.0.0.1")]


# --- claims


def test_claims() -> None:
    def read(user_is: Any = "sub", groups_are: Any = "groups", **claims: Any) -> tuple[str, tuple[str, ...]]:
        found = read_claims({"exp": 1, **claims}, user_is, groups_are)
        return found.user, found.groups

    assert read(sub="ada") == ("ada", ())
    assert read(sub="ada", groups=["ops", "dev", "ops"]) == ("ada", ("dev", "ops"))
    assert read(sub="ada", groups="ops") == ("ada", ("ops",))
    assert read("user.name", user={"name": "ada"}) == ("ada", ())
    assert read(groups_are="https://x.example/g", sub="ada", **{"https://x.example/g": ["ops"]}) == ("ada", ("ops",))
    assert read(groups_are="realm.roles", sub="ada", realm={"roles": ["ops"]}) == ("ada", ("ops",))
    assert read(groups_are="realm.roles", sub="ada", realm=7) == ("ada", ())
    wrongs: list[dict[str, Any]] = [
        {},
        {"sub": None},
        {"sub": ""},
        {"sub": "a", "groups": {}},
        {"sub": "a", "groups": [""]},
    ]
    for wrong in wrongs:
        with pytest.raises(TokenRefused):
            read(**wrong)


# --- settings, and what is logged

NEEDED = {
    "listen_native": "SASL_PLAINTEXT://127.0.0.1:0",
    "sasl_enabled_mechanisms": "oauthbearer",
    "oauth_issuer": "https://idp.example",
    "oauth_audience": "krappy",
}


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"oauth_issuer": ""}, "oauth_issuer"),
        ({"oauth_issuer": "idp.example"}, "oauth_issuer"),
        ({"oauth_issuer": "http://idp.example"}, "oauth_issuer"),
        ({"oauth_audience": ""}, "oauth_audience"),
        ({"oauth_audience": " , "}, "oauth_audience"),
        ({"oauth_jwks_url": "http://idp.example/keys"}, "oauth_jwks_url"),
        ({"oauth_jwks_url": "ftp://idp.example/keys"}, "oauth_jwks_url"),
        ({"oauth_jwks_url": "/etc/keys"}, "oauth_jwks_url"),
        ({"listen_kafka": "SASL_PLAINTEXT://0.0.0.0:9092"}, "listen_kafka"),
    ],
)
def test_settings_that_can_not_be(changed: dict[str, str], setting: str) -> None:
    load(NEEDED, {})
    with pytest.raises(ConfigError, match=f"^{setting}: ") as error:
        load({**NEEDED, **changed}, {})
    assert error.value.details["setting"] == setting


@pytest.mark.parametrize("listener", ["listen_native", "listen_kafka", "listen_http"])
def test_a_provider_has_to_be_named_where_users_log_in(listener: str) -> None:
    """Where nobody logs in, no token is taken, whatever the mechanisms are."""
    load({"sasl_enabled_mechanisms": "SCRAM-SHA-512,OAUTHBEARER"}, {})
    protocol = "SASL_SSL" if listener == "listen_http" else "SASL_PLAINTEXT"
    with pytest.raises(ConfigError, match=r"^oauth_issuer: "):
        load({"sasl_enabled_mechanisms": "OAUTHBEARER", listener: f"{protocol}://127.0.0.1:0"}, {})


def test_kafka_s_names(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text(
        """
        sasl.enabled.mechanisms = "OAUTHBEARER"
        sasl.oauthbearer.jwks.endpoint.url = "https://idp.example/keys"
        sasl.oauthbearer.jwks.endpoint.refresh.ms = 60000
        sasl.oauthbearer.expected.issuer = "https://idp.example"
        sasl.oauthbearer.expected.audience = "krappy, kafka"
        sasl.oauthbearer.sub.claim.name = "email"
        sasl.oauthbearer.clock.skew.seconds = 5
        """
    )
    config = load({}, {}, file)
    assert (config.oauth_jwks_url, config.oauth_jwks_refresh_ms) == ("https://idp.example/keys", 60_000)
    assert (config.oauth_issuer, config.oauth_audiences) == ("https://idp.example", ["krappy", "kafka"])
    assert (config.oauth_subject_claim, config.oauth_clock_skew_seconds) == ("email", 5)


def test_tokens_are_in_no_log(broker: RunningBroker, provider: IdentityProvider, reported: list[str]) -> None:
    tokens = [provider.token(), provider.token(seconds=-60), provider.token(aud="x"), provider.token(sub=7)]
    for token in tokens:
        is_taken(broker, token)
    assert any("authentication_failed" in each and "OAUTHBEARER" in each for each in reported)
    for token in tokens:
        assert repr(read_first(first_message(token))) == "<BearerToken>"
        for part in token.split("."):
            assert not [each for each in reported if part in each]
    for what in ("expired", "Audience"):
        assert [each for each in reported if what in each]  # the administrator can read why
