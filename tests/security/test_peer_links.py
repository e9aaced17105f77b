"""Links between brokers over TLS and with users: which brokers are let in, and which are trusted. The brokers are
real."""

from __future__ import annotations

import shutil
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import krappy
from krappy.cluster import peers
from krappy.cluster.inter_broker import InterBroker, PeerLogin
from krappy.cluster.peers import PeerLink
from krappy.errors import ConnectionLost, KrappyError
from krappy.server import tls as server_tls
from krappy.server.tls import ServerTls
from krappy.settings.listeners import parse_address
from krappy.settings.server import load
from krappy.wire.kafka import ApiKey
from tests.security.authority import Authority
from tests.security.guarded import filtered

SECRET = "correct horse"
USER = {"super_users": "User:broker", "failed_authentication_delay_ms": 10}


def login(password: str = SECRET, mechanism: str = "SCRAM-SHA-512") -> PeerLogin:
    return PeerLogin(mechanism, "broker", lambda: password)


def trusting(context: ssl.SSLContext) -> Callable[[], ssl.SSLContext]:
    return lambda: context


@asynccontextmanager
async def linked(folder: Path, way: InterBroker, protocol: str, **settings: Any) -> AsyncIterator[PeerLink]:
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    (users / "broker").write_text(SECRET)
    settings = {**USER, "users_dir": str(users), **settings}
    settings |= dict.fromkeys(("listen_kafka", "listen_native"), f"{protocol}://127.0.0.1:0")
    async with krappy.Broker(folder / "data", ballast_bytes=0, durability="os", **settings) as broker:
        link = PeerLink(lambda: parse_address(broker.kafka_address), "test", way, timeout_s=5)
        try:
            yield link
        finally:
            link.close()


async def ask(link: PeerLink) -> int:
    """Sends a request that is answered only if the link was let in. Returns the number of brokers in the answer."""
    answer = await link.ask(ApiKey.METADATA, {"topics": []})
    return len(answer["brokers"])


def refusal(folder: Path, way: InterBroker, protocol: str, **settings: Any) -> str:
    """Opens a link that is refused; returns the text of the error."""

    async def main() -> str:
        async with linked(folder, way, protocol, **settings) as link:
            with pytest.raises(KrappyError) as error:
                await ask(link)
            return str(error.value)

    return trio.run(main)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_a_broker_logs_in(authority: Authority, tmp_path: Path, mechanism: str) -> None:
    async def main() -> None:
        way = InterBroker("SASL_SSL", trusting(authority.context()), login(mechanism=mechanism))
        settings = {"tls_certificate": authority.issue("127.0.0.1"), "sasl_enabled_mechanisms": mechanism}
        async with linked(tmp_path, way, "SASL_SSL", **settings) as link:
            assert await ask(link) == 1

    trio.run(main)


def test_a_session_is_renewed_before_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The link logs in again on the same connection, while requests wait."""
    monkeypatch.setattr(peers, "RENEWED", 0.1)  # early, so that no session ends if the machine stalls for some seconds

    async def main() -> None:
        made = 0

        def password() -> str:
            nonlocal made
            made += 1
            return SECRET

        way = InterBroker("SASL_PLAINTEXT", None, PeerLogin("SCRAM-SHA-512", "broker", password))
        async with linked(tmp_path, way, "SASL_PLAINTEXT", connections_max_reauth_ms=4000) as link:
            await ask(link)
            connection = link._connection
            end = trio.current_time() + 2
            while trio.current_time() < end:
                async with trio.open_nursery() as nursery:
                    for _ in range(5):
                        nursery.start_soon(ask, link)
                await trio.sleep(0.01)
            assert link._connection is connection
        assert made >= 4

    trio.run(main)


def test_who_is_not_let_in_says_why_and_not_the_password(authority: Authority, tmp_path: Path) -> None:
    found = refusal(tmp_path, InterBroker("S", None, login("battery staple")), "SASL_PLAINTEXT")
    assert "does not let the user 'broker' in" in found
    assert "battery" not in found
    found = refusal(tmp_path, InterBroker("S", None, login(mechanism="PLAIN")), "SASL_PLAINTEXT")
    assert "does not let users log in by PLAIN, but by SCRAM-SHA-512" in found
    certificate = authority.issue("127.0.0.1")
    secured = InterBroker("S", trusting(authority.context()), login())
    assert "no TLS with it" in refusal(tmp_path, secured, "SASL_PLAINTEXT")
    found = refusal(tmp_path, InterBroker("S", None, login()), "SASL_SSL", tls_certificate=certificate)
    assert "TLS" in found
    assert SECRET not in repr((login(), InterBroker("S", None, login())))


def test_a_certificate_has_to_be_good(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    way = InterBroker("SSL", trusting(authority.context(authority.issue("127.0.0.1"))))
    mutual = {"tls_client_ca": authority.ca, "ssl_client_auth": "required", "super_users": "User:x"}
    for certificate, why in (
        (other.issue("127.0.0.1"), "unable to get local issuer certificate"),
        (authority.issue("127.0.0.1", seconds=-60), "certificate has expired"),
        (authority.issue("127.0.0.2"), "IP address mismatch"),
    ):
        found = refusal(tmp_path, way, "SSL", tls_certificate=certificate, **mutual)
        assert "its certificate is not good" in found
        assert why in found


def test_a_broker_without_a_good_certificate_is_not_let_in(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    mutual = {"tls_client_ca": authority.ca, "ssl_client_auth": "required", "super_users": "User:x"}
    for own in (None, other.issue("127.0.0.1"), authority.issue("127.0.0.1", seconds=-60)):
        way = InterBroker("SSL", trusting(authority.context(own)))
        refusal(tmp_path, way, "SSL", tls_certificate=authority.issue("127.0.0.1"), **mutual)


def outgoing(folder: Path, authority: Authority, certificate: Path, **more: str) -> ServerTls:
    """The TLS contexts of a broker in a cluster, for its links to others."""
    settings = {
        "data": folder,
        "zookeeper_connect": "127.0.0.1:1",
        "listen_kafka": "SSL://127.0.0.1:0",
        "tls_certificate": str(certificate),
        "tls_client_ca": authority.ca,
        "ssl_client_auth": "required",
        "super_users": "User:x",
        **more,
    }
    return ServerTls(load(settings, {}), lambda event, **facts: None)


def test_a_renewed_certificate_is_shown_to_others(authority: Authority, tmp_path: Path) -> None:
    """The next connection shows it, without a restart."""

    async def main() -> None:
        own = tmp_path / "own.pem"
        shutil.copy(authority.issue("127.0.0.1", subject="before"), own)
        own.chmod(0o600)
        tls = outgoing(tmp_path, authority, own)
        settings = {
            "tls_certificate": authority.issue("127.0.0.1"),
            "tls_client_ca": authority.ca,
            "ssl_client_auth": "required",
            "ssl_principal_mapping_rules": "RULE:^CN=([^,]+).*$/$1/",
            "super_users": "User:after",
        }
        async with linked(tmp_path, InterBroker("SSL", tls.for_brokers), "SSL", **settings) as link:

            async def may_alter() -> bool:
                answer = await link.ask(ApiKey.DESCRIBE_ACLS, filtered())
                return int(answer["error_code"]) == 0

            assert not await may_alter()
            shutil.copy(authority.issue("127.0.0.1", subject="after"), own)
            tls.look()
            link.close()
            assert await may_alter()

    trio.run(main)


async def ended(link: PeerLink) -> None:
    assert link._connection is not None
    with trio.fail_after(10):
        assert not await link._connection._stream.receive_some(1)


def test_a_link_ends_with_the_authority_of_the_broker_that_it_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other links stay. The link is opened again once that broker has a certificate of a trusted authority."""
    monkeypatch.setattr(server_tls, "LOOK_SECONDS", 0.05)
    stays, goes = Authority(tmp_path), Authority(tmp_path)
    trusted, theirs = tmp_path / "trusted.pem", tmp_path / "theirs.pem"

    def replace(file: Path, *parts: str) -> None:
        new = tmp_path / "new"
        new.write_text("".join(Path(each).read_text() for each in parts))
        new.chmod(0o600)
        new.rename(file)

    async def main() -> None:
        replace(trusted, stays.ca, goes.ca)
        replace(theirs, goes.issue("127.0.0.1"))
        tls = outgoing(tmp_path, stays, Path(stays.issue("127.0.0.1")), tls_client_ca=str(trusted))
        way, mutual = InterBroker("SSL", tls.for_brokers), {"tls_client_ca": stays.ca, "ssl_client_auth": "required"}
        good = {**mutual, "tls_certificate": stays.issue("127.0.0.1")}
        async with (
            trio.open_nursery() as nursery,
            linked(tmp_path / "good", way, "SSL", **good) as unharmed,
            linked(tmp_path / "bad", way, "SSL", **mutual, tls_certificate=str(theirs)) as link,
        ):
            nursery.start_soon(tls.watch)
            assert await ask(link) == await ask(unharmed) == 1
            before = unharmed._connection
            replace(trusted, stays.ca)
            await ended(link)
            while True:
                with pytest.raises(ConnectionLost) as error:
                    await ask(link)
                if "its certificate is not good" in str(error.value):
                    break
            assert await ask(unharmed) == 1
            assert unharmed._connection is before
            replace(theirs, stays.issue("127.0.0.1"))
            with trio.fail_after(10):
                while True:
                    with suppress(ConnectionLost):
                        assert await ask(link) == 1
                        break
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_connection_of_the_gateway_ends_with_the_authority_of_its_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection is that of a client which uses the TLS context of links."""
    monkeypatch.setattr(server_tls, "LOOK_SECONDS", 0.05)
    stays, goes = Authority(tmp_path), Authority(tmp_path)
    trusted = tmp_path / "trusted.pem"
    trusted.write_text(Path(stays.ca).read_text() + Path(goes.ca).read_text())

    async def main() -> None:
        tls = outgoing(tmp_path, stays, Path(stays.issue("127.0.0.1")), tls_client_ca=str(trusted))
        settings = {"tls_certificate": goes.issue("127.0.0.1"), "tls_client_ca": stays.ca, "super_users": "User:x"}
        settings |= {"listen_native": "SSL://127.0.0.1:0", "listen_kafka": "SSL://127.0.0.1:0"}
        settings["ssl_client_auth"] = "required"
        async with (
            trio.open_nursery() as nursery,
            krappy.Broker(tmp_path / "data", ballast_bytes=0, durability="os", **settings) as broker,  # type: ignore[arg-type]
            krappy.connect(broker.native_address, tls=tls.for_brokers, timeout=5) as client,
        ):
            nursery.start_soon(tls.watch)
            assert (await client.ping()).cluster
            trusted.write_text(Path(stays.ca).read_text())
            why = ""
            with trio.fail_after(40):
                while "not trusted" not in why:
                    try:
                        await client.ping()
                    except ConnectionLost as error:
                        why = str(error)
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_the_name_of_a_host_need_not_be_checked(authority: Authority, tmp_path: Path) -> None:
    async def main() -> None:
        own = Path(authority.issue("127.0.0.1"))
        tls = outgoing(tmp_path, authority, own, ssl_endpoint_identification_algorithm="")
        settings = {"tls_certificate": authority.issue("elsewhere.example"), "tls_client_ca": authority.ca}
        settings |= {"ssl_client_auth": "required", "super_users": "User:x"}
        async with linked(tmp_path, InterBroker("SSL", tls.for_brokers), "SSL", **settings) as link:
            assert await ask(link) == 1

    trio.run(main)


def test_large_requests_and_answers_go_through(authority: Authority, tmp_path: Path) -> None:
    """A request and its answer are larger than what a socket takes at once."""

    async def main() -> None:
        way = InterBroker("SASL_SSL", trusting(authority.context()), login())
        certificate = authority.issue("127.0.0.1")
        async with linked(tmp_path, way, "SASL_SSL", tls_certificate=certificate) as link:
            topics = [{"name": f"{'x' * 200}{number}"} for number in range(9_000)]
            body = {"topics": topics, "allow_auto_topic_creation": False}
            answer = await link.ask(ApiKey.METADATA, body)
            assert len(answer["topics"]) == 9_000

    trio.run(main)


def test_a_lost_connection_ends_those_that_wait(authority: Authority, tmp_path: Path) -> None:
    async def main() -> None:
        way = InterBroker("SASL_SSL", trusting(authority.context()), login())
        async with linked(tmp_path, way, "SASL_SSL", tls_certificate=authority.issue("127.0.0.1")) as link:
            await ask(link)

            async def wait() -> None:
                while True:
                    await ask(link)

            async def lost() -> None:
                with pytest.raises(ConnectionLost):
                    await wait()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(lost)
                await trio.sleep(0.05)
                assert link._connection is not None
                link._connection._stream.close()
            assert await ask(link) == 1

    trio.run(main)
