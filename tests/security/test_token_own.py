"""Krappy's own clients and the command line, with tokens of an identity provider. And groups in ACLs."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

import krappy
from krappy import blocking, errors
from krappy.blocking import TopicProducer
from krappy.cli import main
from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures
from krappy.clients import link
from krappy.clients.acls import AclInfo
from krappy.clients.security import ClientSecurity
from krappy.errors import ConfigError
from krappy.testing.running import RunningBroker, run_broker
from tests.process import PATIENCE, wait_until
from tests.security.authority import Authority
from tests.security.identity import IdentityProvider
from tests.security.test_tokens import LISTENERS


@pytest.fixture(scope="module")
def broker(
    provider: IdentityProvider, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    settings = {
        **LISTENERS,
        **provider.settings,
        "listen_native": "SASL_SSL://127.0.0.1:0",
        "listen_http": "SASL_SSL://127.0.0.1:0",
        "tls_certificate": authority.issue("127.0.0.1"),
        "super_users": "User:ada;Group:admins",
    }
    with run_broker(tmp_path_factory.mktemp("own") / "data", **settings) as found:
        yield found


def test_the_blocking_client(
    broker: RunningBroker, authority: Authority, provider: IdentityProvider, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(provider.token() + "\n")
    for token in (provider.token(), file, provider.token):
        with broker.connect(ca=authority.ca, token=token) as client:
            assert client.ping().principal == "User:ada"
            assert provider.token()[:20] not in repr(client)
    with broker.connect(ca=authority.ca, token=provider.token("eve", groups=["admins"])) as client:
        client.create_topic("of-a-group")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_async_client(
    broker: RunningBroker, authority: Authority, provider: IdentityProvider, backend: str
) -> None:
    async def run() -> None:
        async with krappy.connect(broker.address, ca=authority.ca, token=provider.token) as client:
            assert (await client.ping()).principal == "User:ada"
        with pytest.raises(errors.AuthenticationFailed, match=r"refuses the token.*invalid_token"):
            async with krappy.connect(broker.address, ca=authority.ca, token=provider.token(aud="x")):
                pass

    anyio.run(run, backend=backend)


def test_who_is_refused(broker: RunningBroker, authority: Authority, provider: IdentityProvider) -> None:
    def lost() -> str:
        raise OSError("the provider is away")

    with pytest.raises(ConfigError, match="there is no token: OSError: the provider is away"):
        broker.connect(ca=authority.ca, token=lost).__enter__()
    with pytest.raises(ConfigError, match="the token is not valid"):
        broker.connect(ca=authority.ca, token="two words").__enter__()
    with pytest.raises(errors.AuthenticationFailed, match="mechanisms are OAUTHBEARER"):
        broker.connect(ca=authority.ca, user="ada", password="x").__enter__()
    with pytest.raises(errors.AuthenticationFailed, match="its mechanisms are OAUTHBEARER"):
        broker.connect(ca=authority.ca).__enter__()
    for more in ({"user": "ada", "password": "x"}, {"mechanism": "PLAIN"}):
        with pytest.raises(ConfigError, match="takes the place"):
            ClientSecurity(token="x", **more)  # type: ignore[arg-type]
    assert "secret" not in repr(ClientSecurity(token="secret"))


def test_a_token_is_sent_over_tls_alone(provider: IdentityProvider, tmp_path: Path) -> None:
    with (
        run_broker(tmp_path / "data", **LISTENERS, **provider.settings) as broker,
        pytest.raises(errors.AuthenticationFailed, match="over TLS alone"),
        broker.connect(token=provider.token()),
    ):
        pass


def test_a_client_logs_in_again_under_load(
    authority: Authority, provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No event is lost or comes twice over several sessions on one connection."""
    monkeypatch.setattr(link, "RENEWED", 0.15)  # early, so that no session ends if the machine stalls for some seconds
    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada", "authentication_timeout_ms": 30_000}
    tls = {"listen_native": "SASL_SSL://127.0.0.1:0", "tls_certificate": authority.issue("127.0.0.1")}
    given: list[float] = []

    def token() -> str:
        given.append(time.monotonic())
        return provider.token(seconds=5)

    with (
        run_broker(tmp_path / "data", **{**settings, **tls}) as broker,
        broker.connect(ca=authority.ca, token=token) as client,
        client.producer("load") as producer,
        client.consumer("load", start="earliest") as consumer,
    ):
        generation, sent, taken = client._link.generation, 0, list[bytes]()
        end = time.monotonic() + 6
        while time.monotonic() < end:
            receipts = [producer.send(f"{sent + number}") for number in range(50)]
            sent += len(receipts)
            assert receipts[-1].result().offset == sent - 1
            taken += [event.value or b"" for event in consumer.poll(0.01)]
        while len(taken) < sent:
            taken += [event.value or b"" for event in consumer.poll(5)]
        assert taken == [b"%d" % number for number in range(sent)]
        assert client._link.generation == generation
    assert len(given) >= 4


def test_a_client_that_was_asleep_when_its_session_ended_logs_in_on_another_connection(
    authority: Authority, provider: IdentityProvider, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a laptop that wakes up: its first request comes before it has logged in again. Its caller sees no error."""
    monkeypatch.setattr(link, "RENEWED", 100)
    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada", "oauth_clock_skew_seconds": 0}
    tls = {"listen_native": "SASL_SSL://127.0.0.1:0", "tls_certificate": authority.issue("127.0.0.1")}
    with (
        run_broker(tmp_path / "data", **{**settings, **tls}) as broker,
        broker.connect(ca=authority.ca, token=lambda: provider.token(seconds=3)) as client,
        client.producer("asleep") as producer,
    ):
        generation, sent = client._link.generation, 0
        end = time.monotonic() + PATIENCE
        while client._link.generation == generation and time.monotonic() < end:
            assert producer.send(b"v").result(PATIENCE).offset == sent
            client.topics()
            sent += 1
        assert client._link.generation > generation
        assert client.offsets("asleep") == {0: sent}


def test_a_client_that_gets_no_other_token_is_ended_in_time(
    authority: Authority, provider: IdentityProvider, tmp_path: Path
) -> None:
    """The client writes all the time. All acknowledged events are stored. If the session did not end with its token, it
    would last for an hour."""
    settings = {**LISTENERS, **provider.settings, "super_users": "User:ada", "oauth_clock_skew_seconds": 0}
    tls = {"listen_native": "SASL_SSL://127.0.0.1:0", "tls_certificate": authority.issue("127.0.0.1")}
    with run_broker(tmp_path / "data", **{**settings, **tls, "authentication_timeout_ms": 3000}) as broker:
        with broker.connect(ca=authority.ca, token=provider.token) as admin:
            admin.create_topic("lazy")
        ends = time.time() + 3
        stored: list[bytes] = []
        with broker.connect(ca=authority.ca, token=provider.token(exp=ends), timeout=3) as client:
            refused = "does not let this client in"
            with pytest.raises(errors.RequestTimeout, match=refused), client.producer("lazy", timeout=3) as producer:
                write_on(producer, stored)
            with pytest.raises(errors.ConnectionLost, match=refused):
                client.topics()
        assert ends - 0.5 < time.time() < ends + 60
        with (
            broker.connect(ca=authority.ca, token=provider.token) as admin,
            admin.consumer("lazy", end="now") as reader,
        ):
            found = [event.value for event in reader]
    assert stored
    assert found == stored + found[len(stored) :][:1]  # the event that was under way may be stored, too


def write_on(producer: TopicProducer, stored: list[bytes]) -> None:
    """Writes until an error is raised."""
    while True:
        value = b"%d" % len(stored)
        producer.send(value).result()
        stored.append(value)
        time.sleep(0.01)


def test_a_token_that_is_not_to_be_had_for_a_while(
    broker: RunningBroker, authority: Authority, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session goes on, and so does the connection."""
    monkeypatch.setattr(link, "RENEWED", 0.1)
    monkeypatch.setattr(link, "RETRIED", 0.1)
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        if 2 <= asked <= 4:
            raise OSError("the provider is away")
        return provider.token(seconds=10)

    with broker.connect(ca=authority.ca, token=token) as client:
        generation = client._link.generation
        wait_until(lambda: asked > 5, "it has logged in again, twice")
        assert client.ping().principal == "User:ada"
        assert client._link.generation == generation


def test_groups_in_acls(broker: RunningBroker, authority: Authority, provider: IdentityProvider) -> None:
    """An operation is denied if an ACL denies it to the user, to one of his groups or to everybody."""
    ops, dev = (AclInfo("topic", "grouped", f"Group:{name}", "read") for name in ("ops", "dev"))
    with broker.connect(ca=authority.ca, token=provider.token) as admin:
        admin.create_topic("grouped")

        def reads(user: str, *groups: str) -> bool:
            token = provider.token(user, groups=list(groups))
            with broker.connect(ca=authority.ca, token=token) as client:
                try:
                    with client.consumer("grouped") as consumer:
                        consumer.poll(0.01)
                except errors.TopicAuthorizationFailed:
                    return False
                return True

        admin.add_acls([ops])
        assert reads("bob", "ops", "dev")
        assert not reads("bob", "dev")
        assert not reads("ops")  # this is a user named ops, and not the group
        admin.add_acls([dev._replace(permission="deny")])
        assert reads("bob", "ops")
        assert not reads("bob", "ops", "dev")
        admin.add_acls([AclInfo("topic", "grouped", "User:bob", "all", permission="deny")])
        assert not reads("bob", "ops")
        assert reads("carl", "ops")


def test_what_is_open_ends_with_a_group(
    broker: RunningBroker, authority: Authority, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user who has left the group when he logs in again loses what he had opened as its member."""
    groups = ["ops"]
    with broker.connect(ca=authority.ca, token=provider.token) as admin:
        admin.create_topic("left")
        admin.add_acls([AclInfo("topic", "left", "Group:ops", "read")])
    token = lambda: provider.token("dora", seconds=2, groups=groups)  # noqa: E731
    with broker.connect(ca=authority.ca, token=token) as client, client.consumer("left") as consumer:
        assert consumer.poll(0.1) == []
        groups.clear()

        def ended() -> bool:
            try:
                consumer.poll(0.1)
            except errors.TopicAuthorizationFailed:
                return True
            return False

        wait_until(ended, "the consumer is ended")


def test_the_command_line(
    broker: RunningBroker,
    authority: Authority,
    provider: IdentityProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name in ("KRAPPY_ADDRESS", "KRAPPY_CA", "KRAPPY_USER", "KRAPPY_TOKEN_FILE", "KRAPPY_TOKEN_COMMAND"):
        monkeypatch.setenv(name, "")  # so that what commands put there is taken away again
        monkeypatch.delenv(name)
    good, bad, contexts = tmp_path / "good", tmp_path / "bad", tmp_path / "config.toml"
    good.write_text(provider.token() + "\n")
    bad.write_text(provider.token(seconds=-60))
    base = f'address = "{broker.address}"\nca = "{authority.ca}"\n'
    prints = f"{sys.executable} -c 'print(open(\\\"{good}\\\").read())'"
    contexts.write_text(
        f'[context.file]\n{base}token_file = "{good}"\n'
        f'[context.command]\n{base}token_command = "{prints}"\n'
        f'[context.fails]\n{base}token_command = "false"\n'
        f'[context.both]\n{base}token_file = "{good}"\nuser = "ada"\n'
    )
    monkeypatch.setenv("KRAPPY_CONTEXTS", str(contexts))

    def run(*arguments: str, fails: str | None = None) -> str:
        status = main.run([*arguments, "topic", "list"])
        said = capfd.readouterr()
        assert (status != 0) == (fails is not None), said.err
        assert fails is None or fails in said.err
        return said.out

    with broker.connect(ca=authority.ca, token=provider.token) as client:
        client.create_topic("listed", if_absent=True)
    assert "listed" in run("--context", "file")
    assert "listed" in run("--context", "command")
    assert "listed" in run("--context", "fails", "--token-file", str(good))
    run("--context", "file", "--token-file", str(bad), fails="refuses the token")
    run("--context", "fails", fails="token_command: it ended with 1")
    run("--context", "both", fails="more than one of")
    password = tmp_path / "password"
    password.write_text("x")
    run("--context", "file", "--user", "ada", "--password-file", str(password), fails="mechanisms are OAUTHBEARER")
    monkeypatch.setenv("KRAPPY_TOKEN_FILE", str(good))
    monkeypatch.delenv("KRAPPY_USER", raising=False)
    monkeypatch.delenv("KRAPPY_PASSWORD_FILE", raising=False)
    with blocking.connect(broker.address, ca=authority.ca) as environment:
        assert environment.ping().principal == "User:ada"


def test_top_asks_for_its_token_each_time(
    broker: RunningBroker,
    authority: Authority,
    provider: IdentityProvider,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The console's API accepts the token as a bearer token. The token is also used to ask the broker for the console's
    address."""
    for name in ("KRAPPY_ADDRESS", "KRAPPY_CA", "KRAPPY_USER", "KRAPPY_TOKEN_FILE", "KRAPPY_CONSOLE_TOKEN"):
        monkeypatch.setenv(name, "")  # so that what commands put there is taken away again
        monkeypatch.delenv(name)
    file = tmp_path / "token"
    known = ["--ca", authority.ca, "--token-file", str(file), "top", "--json", "--interval", "0.2"]
    for where in (["--address", broker.address], ["--url", f"https://{broker.http_address}"]):
        file.write_text(provider.token() + "\n")
        assert main.run([*known, *where]) == 0
        assert json.loads(capfd.readouterr().out)["overview"]["connections"]["http"] >= 1
        file.write_text(provider.token(seconds=-60))
        assert main.run([*known, *where]) != 0
        capfd.readouterr()
    monkeypatch.setenv("KRAPPY_CA", authority.ca)
    monkeypatch.setenv("KRAPPY_TOKEN_FILE", str(file))
    console = ConsoleFigures(broker.http_address, None)
    for _ in range(2):
        file.write_text(provider.token())
        assert console.look()["overview"]
        file.write_text(provider.token(seconds=-60))
        with pytest.raises(Failure, match="needs its token"):
            console.look()
