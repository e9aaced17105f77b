"""ZooKeeper with TLS, and with ACLs on the cluster's znodes: a real server, and kazoo as a stranger."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from krappy.cli.cluster_users import ClusterUsers
from krappy.cluster.zk import client as zk_client
from krappy.cluster.zk.client import ZooKeeper
from krappy.core.cluster.tree import Create, Put
from krappy.core.security.scram import HASHES, ScramCredential
from krappy.errors import StorageError
from krappy.server.tls import ZooKeeperTls, to_zookeeper
from krappy.settings.server import load
from krappy.tls import client_context
from krappy.wire.kafka import ApiKey
from tests.cluster.secured import log_in
from tests.cluster.test_zookeeper import connected, until
from tests.cluster.zookeeper import Missing, SecuredBy, ZooKeeperServer, jars
from tests.kafka.raw import Raw
from tests.process import BrokerProcess, Launcher, free_ports, wait_until
from tests.security.authority import Authority

HOST = "127.0.0.1"
OURS = [("digest", b"krappy:zoo-secret")]


class Secured:
    """A server with TLS, and the certificates of its clients."""

    def __init__(self, folder: Path) -> None:
        jars()
        self.authority = Authority(folder)
        self.own = self.authority.issue(HOST)
        [port, secure] = free_ports(2)
        by = SecuredBy(secure, self.authority.issue(HOST, pkcs8=True), self.authority.ca)
        self.server = ZooKeeperServer(folder / "zookeeper", port, secured=by)

    @property
    def address(self) -> tuple[str, int]:
        assert self.server.secured is not None
        return HOST, self.server.secured.port

    def tls(self) -> Any:
        return client_context(self.authority.ca, self.own)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    try:
        made = Secured(tmp_path_factory.mktemp("zookeeper"))
    except Missing as reason:
        pytest.skip(str(reason))
    try:
        made.server.start()
        made.server.wait()
        yield made
    finally:
        made.server.kill()


@pytest.fixture
def stranger(secured: Secured) -> Iterator[KazooClient]:
    """A client that connects without TLS and without a login."""
    kazoo = KazooClient(hosts=f"{HOST}:{secured.server.port}")
    kazoo.start()
    yield kazoo
    kazoo.stop()
    kazoo.close()


def test_old_and_new_znodes_are_protected(secured: Secured, stranger: KazooClient, chroot: str) -> None:
    async def before() -> None:
        async with connected(secured.address, chroot, tls=secured.tls) as client:
            there = ["/config", "/config/users", "/security", "/security/users_secret", "/security/acls"]
            await client.multi([Create("/a", b"1"), *(Create(path, b"s") for path in there)])

    async def main() -> None:
        async with connected(secured.address, chroot, auth=OURS, protected=True, tls=secured.tls) as client:
            sessions = ["/config/sessions", "/config/sessions/all"]
            made = ["/config/users/ada", "/config/brokers", "/config/brokers/1", *sessions, "/config/topics", "/b"]
            await client.multi([Create(path, b"secret") for path in made])
            assert (await client.get("/config/users/ada")) is not None

    trio.run(before)
    assert stranger.get(f"{chroot}/config/users")[0] == b"s"
    trio.run(main)
    hidden = ["/config/users", "/config/users/ada", "/config/brokers", "/config/brokers/1", "/security/users_secret"]
    for path in (*hidden, "/config/sessions", "/config/sessions/all"):
        for use in (stranger.get, stranger.get_children, partial(stranger.set, value=b"x")):
            with pytest.raises(NoAuthError):
                use(f"{chroot}{path}")
    for path in ("", "/a", "/b", "/config", "/config/topics", "/security", "/security/acls"):
        stranger.get(f"{chroot}{path}")
        with pytest.raises(NoAuthError):
            stranger.set(f"{chroot}{path}", b"x")
        with pytest.raises(NoAuthError):
            stranger.create(f"{chroot}{path}/theirs")
    stranger.add_auth("digest", "krappy:zoo-secret")
    assert stranger.get(f"{chroot}/config/users/ada")[0] == b"secret"
    assert len(stranger.get_acls(f"{chroot}/a")[0]) == 2


def test_a_client_with_another_password_may_change_nothing_and_is_told(secured: Secured) -> None:
    """The chroot is right below the root. If its parent were protected, too, the other clients could not even start."""
    chroot = "/passwords"

    async def main() -> None:
        said: list[str] = []
        async with connected(secured.address, chroot, auth=OURS, protected=True, tls=secured.tls) as ours:
            await ours.multi([Create("/a", b"1")])
            theirs = partial(connected, secured.address, chroot, tls=secured.tls, troubled=said.append)
            for auth in ([], [("digest", b"krappy:other")]):
                said.clear()
                async with theirs(auth=auth) as other:
                    for _ in range(2):
                        with pytest.raises(StorageError):
                            await other.multi([Put("/a", b"2")])
                assert len(said) == 1
                assert "zookeeper_user or its password is not theirs (/a)" in said[0]

    trio.run(main)


def test_servers_that_can_not_be_trusted(secured: Secured, tmp_path: Path) -> None:
    """The client also refuses a port with TLS if it expects none, and a port without TLS if it expects TLS."""
    ours, others = secured.authority, Authority(tmp_path)
    checks = client_context(ours.ca, secured.own)
    trusts_others = client_context(others.ca, secured.own)
    shows_nothing = client_context(ours.ca)
    shows_others = client_context(ours.ca, others.issue(HOST))
    secure, plain = secured.address, secured.server.address

    def wrong(address: tuple[str, int], tls: Callable[[], Any] | None) -> str:
        async def main() -> str:
            said: list[str] = []
            client = ZooKeeper([address], timeout_ms=30_000, tls=tls, troubled=said.append)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.run)
                await until(lambda: bool(said))
                nursery.cancel_scope.cancel()
            return said[0]

        return trio.run(main)

    assert "its certificate is not good: unable to get local issuer" in wrong(secure, lambda: trusts_others)
    assert "its certificate is not good: Hostname mismatch" in wrong(("localhost", secure[1]), lambda: checks)
    for context in (shows_nothing, shows_others):
        assert wrong(secure, lambda context=context: context)  # type: ignore[misc]
    assert "before it let this broker in" in wrong(secure, None)
    assert "no TLS with it" in wrong(plain, lambda: checks) or "closed" in wrong(plain, lambda: checks)

    def missing() -> Any:
        return client_context(str(tmp_path / "none"))

    assert "No such file" in wrong(secure, missing)


def test_a_connection_ends_with_the_authority_of_its_server(
    secured: Secured, tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on. A file that can't be read ends no connection, and neither does one with more authorities."""
    monkeypatch.setattr(zk_client, "LOOK_S", 0.02)
    ours, others, trusted = secured.authority.ca, Authority(tmp_path).ca, tmp_path / "trusted.pem"
    trusted.write_text(Path(ours).read_text())
    settings = {"data": tmp_path, "zookeeper_ssl_truststore_location": str(trusted)}
    tls = ZooKeeperTls(load({**settings, "zookeeper_ssl_keystore_location": secured.own}, {}))
    looked, said = 0, list[str]()

    async def look() -> None:
        nonlocal looked
        await tls.look()
        looked += 1

    async def main() -> None:
        entered: list[bool] = []
        more = {"tls": tls, "look": look, "entered": entered.append, "troubled": said.append}
        async with connected(secured.address, chroot, timeout_ms=10_000, **more) as client:
            for text in ("none", Path(ours).read_text() + Path(others).read_text()):
                trusted.write_text(text)
                now = looked
                await until(lambda now=now: looked > now + 2)  # type: ignore[misc]
            assert entered == [True]
            trusted.write_text(Path(others).read_text())
            await until(lambda: bool(said))
            assert "its certificate is not good" in said[0]
            trusted.write_text(Path(ours).read_text())
            await until(lambda: entered == [True, False])
            assert client.session.status == "up"

    trio.run(main)


def test_without_a_truststore_the_authorities_of_the_system_count(
    secured: Secured, tmp_path: Path, chroot: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection ends when the server's authority is removed from the system's file. The message names the setting
    that would help."""
    monkeypatch.setattr(zk_client, "LOOK_S", 0.02)
    system = tmp_path / "system.pem"
    system.write_text(Path(secured.authority.ca).read_text())
    monkeypatch.setenv("SSL_CERT_FILE", str(system))
    settings = {"data": tmp_path, "zookeeper_ssl_client_enable": True}
    more = to_zookeeper(load({**settings, "zookeeper_ssl_keystore_location": secured.own}, {}))
    said = list[str]()

    async def main() -> None:
        async with connected(secured.address, chroot, timeout_ms=10_000, **more, troubled=said.append) as client:
            await client.multi([Create("/a", b"1")])
            system.write_text(Path(Authority(tmp_path).ca).read_text())
            await until(lambda: bool(said))

    trio.run(main)
    assert "its certificate is not good: unable to get local issuer" in said[0]
    assert "zookeeper_ssl_truststore_location" in said[0]


def test_a_broker(secured: Secured, stranger: KazooClient, tmp_path: Path, chroot: str) -> None:
    """The broker's users are made before it is started."""
    password = tmp_path / "password"
    password.write_text("zoo-secret\n")
    settings: dict[str, Any] = {
        "zookeeper_connect": f"{HOST}:{secured.address[1]}{chroot}",
        "zookeeper_user": "krappy",
        "zookeeper_password_file": str(password),
        "zookeeper_set_acl": "true",
        "zookeeper_ssl_client_enable": "true",
        "zookeeper_ssl_truststore_location": secured.authority.ca,
        "zookeeper_ssl_keystore_location": secured.own,
        "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0",
        "inter_broker_user": "broker",
        "inter_broker_password": "broker-secret",
        "super_users": "User:broker",
    }
    file = tmp_path / "krappy.toml"
    file.write_text("".join(f"{name} = {value!r}\n" for name, value in settings.items()).replace("'true'", "true"))
    _krappy("user", "add", "broker", "--config", str(file), "--new-password-file", "-", said=b"broker-secret")
    users = ClusterUsers(load({}, {}, file))
    users.change("gone", {"SCRAM-SHA-256": ScramCredential.of("SCRAM-SHA-256", "x", b"salt").text()})
    users.delete("gone")
    assert [(each.name, [*each.iterations]) for each in users.users()] == [("broker", [*HASHES])]
    with Launcher() as launch:
        broker = BrokerProcess(tmp_path / "data", launch=launch, broker_id=1, **settings)
        try:
            broker.start()
            wait_until(lambda: bool(broker.events("registered")), "it is registered")
            with Raw(broker.kafka) as raw:
                log_in(raw, "broker", "broker-secret")
                assert raw.ask(ApiKey.METADATA, {"topics": [{"name": "t"}]})["topics"][0]["error_code"] in (0, 5)
            broker.kill()
            with pytest.raises(NoAuthError):
                stranger.get(f"{chroot}/config/users/broker")
            with pytest.raises(NoAuthError):
                stranger.delete(f"{chroot}/brokers/topics/t", recursive=True)
            password.write_text("another-secret")
            broker.begin()
            wait_until(lambda: bool(broker.events("zookeeper_unusable")), "it says that it is not let in")
            [told, *_] = broker.events("zookeeper_unusable")
            assert "zookeeper_user or its password is not theirs" in str(told["error"])
        finally:
            broker.kill()
    said = broker.log.read_text()
    assert not [each for each in ("zoo-secret", "another-secret", "broker-secret") if each in said]
    wrong = _krappy("user", "list", "--config", str(file), fails=True)
    assert "zookeeper_user or its password is not theirs" in wrong


def _krappy(*arguments: str, said: bytes = b"", fails: bool = False) -> str:
    done = subprocess.run([sys.executable, "-m", "krappy", *arguments], input=said, capture_output=True, timeout=60)
    assert (done.returncode != 0) == fails, done.stderr.decode()
    return (done.stderr if fails else done.stdout).decode()
