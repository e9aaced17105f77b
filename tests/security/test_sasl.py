"""Users: who may log in at listeners with SASL, by which mechanism, and what a client may do before it has logged
in."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import krappy
from krappy import blocking, errors
from krappy.clients import link
from krappy.core.security.sasl import LONGEST_PASSWORD
from krappy.core.security.scram import ScramClient
from krappy.server import authentication
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from krappy.wire.kafka.codes import Code
from tests.handlers.raw import Raw as NativeRaw
from tests.kafka.raw import Closed, Raw
from tests.process import Stopwatch, wait_until
from tests.security.authority import Authority

SECRET = "correct horse"
ADMIN = {"super_users": "User:ada"}
LISTENERS = {
    "listen_native": "SASL_PLAINTEXT://127.0.0.1:0",
    "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "sasl_enabled_mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
    "failed_authentication_delay_ms": 20,
}


def users_dir(folder: Path, **users: str) -> str:
    folder.mkdir(exist_ok=True)
    for name, password in users.items():
        (folder / name).write_text(password + "\n")
    return str(folder)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("sasl")
    users = users_dir(folder / "users", ada=SECRET, bob="battery staple")
    with run_broker(folder / "data", durability="os", users_dir=users, **ADMIN, **LISTENERS) as found:
        yield found


def address(broker: RunningBroker) -> str:
    return broker.kafka_addresses["SASL_PLAINTEXT"]


def log_in(raw: Raw, user: str = "ada", password: str = SECRET, mechanism: str = "SCRAM-SHA-512") -> dict[str, Any]:
    """Logs in; returns the last answer of the broker."""
    assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})["error_code"] == 0
    client = ScramClient(mechanism, user, password, "nonce")
    first = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": client.first()})
    if first["error_code"]:
        return first
    final = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": client.step(first["auth_bytes"])})
    if not final["error_code"]:
        client.step(final["auth_bytes"])
        assert client.done
    return final


# --- unmodified clients


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_librdkafka(broker: RunningBroker, mechanism: str) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    options = {
        "bootstrap.servers": address(broker),
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": "ada",
        "sasl.password": SECRET,
    }
    failed: list[Any] = []
    producer = confluent.Producer(options)
    producer.produce("rd", mechanism, on_delivery=lambda error, _: failed.append(error) if error else None)
    assert producer.flush(30) == 0
    assert not failed
    said: list[str] = []
    wrong = confluent.Producer(
        {**options, "sasl.password": "x", "error_cb": lambda error: said.append(error.name()), "log_level": 0}
    )
    wrong.produce("rd", "never")
    deadline = time.monotonic() + 30
    while "_AUTHENTICATION" not in said and time.monotonic() < deadline:
        wrong.poll(0.1)
    assert "_AUTHENTICATION" in said
    wrong.purge()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_kafka_python(broker: RunningBroker, mechanism: str) -> None:
    python = pytest.importorskip("kafka")
    options = {
        "bootstrap_servers": address(broker),
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "bob",
        "sasl_plain_password": "battery staple",
    }
    admin = python.KafkaAdminClient(**{**options, "sasl_plain_username": "ada", "sasl_plain_password": SECRET})
    assert isinstance(admin.list_topics(), list)
    admin.close()


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_aiokafka(broker: RunningBroker, mechanism: str) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    import asyncio

    async def main() -> None:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=address(broker),
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism=mechanism,
            sasl_plain_username="ada",
            sasl_plain_password=SECRET,
        )
        await producer.start()
        await producer.send_and_wait("aio", b"1")
        await producer.stop()

    asyncio.run(asyncio.wait_for(main(), 60))


def test_our_clients(broker: RunningBroker) -> None:
    with broker.connect(user="ada", password=SECRET) as client:
        pong = client.ping()
        assert pong.principal == "User:ada"
        assert pong.cluster
        with client.producer("native") as producer:
            producer.send("1", key="k").result()
        assert client.table("native").get("k").value == b"1"  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_our_async_client(broker: RunningBroker, backend: str) -> None:
    import anyio

    async def main() -> None:
        async with krappy.connect(broker.address, user="ada", password=lambda: SECRET) as client:
            assert (await client.ping()).principal == "User:ada"
        with pytest.raises(errors.AuthenticationFailed, match="invalid credentials"):
            async with krappy.connect(broker.address, user="ada", password="x"):
                pass

    anyio.run(main, backend=backend)


def test_our_clients_and_the_environment(
    broker: RunningBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n")
    with broker.connect(user="ada", password=file) as client:
        assert client.ping().principal == "User:ada"
    monkeypatch.setenv("KRAPPY_USER", "ada")
    monkeypatch.setenv("KRAPPY_PASSWORD_FILE", str(file))
    with broker.connect() as client:
        assert client.ping().principal == "User:ada"
        assert SECRET not in repr(client)


def test_our_clients_that_are_refused(broker: RunningBroker) -> None:
    for options in ({"user": "ada", "password": "wrong"}, {"user": "nobody", "password": SECRET}):
        with pytest.raises(errors.AuthenticationFailed, match="invalid credentials"), broker.connect(**options):
            pass
    with pytest.raises(errors.AuthenticationFailed, match="user="), broker.connect():
        pass


def test_a_password_is_sent_over_tls_alone(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {
        "listen_kafka": "none",
        "sasl_enabled_mechanisms": "PLAIN",
        "users_dir": users_dir(tmp_path / "users", ada=SECRET),
        "tls_certificate": authority.issue("127.0.0.1"),
        **ADMIN,
    }
    with (
        run_broker(tmp_path / "clear", listen_native="SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker,
        pytest.raises(errors.AuthenticationFailed, match="PLAIN over TLS"),
        broker.connect(user="ada", password=SECRET),
    ):
        pass
    with (
        run_broker(tmp_path / "tls", listen_native="SASL_SSL://127.0.0.1:0", **settings) as broker,
        broker.connect(user="ada", password=SECRET, ca=authority.ca) as client,
    ):
        assert client.ping().principal == "User:ada"


# --- the state machine


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "PLAIN"])
def test_old_clients_send_the_login_without_heads(broker: RunningBroker, mechanism: str) -> None:
    """After version 0 of the handshake (KIP-43), frames have only SASL messages. librdkafka before 2.4 logs in only if
    the broker serves this version."""

    def try_it(raw: Raw, password: str) -> None:
        assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism}, version=0)["error_code"] == 0
        if mechanism == "PLAIN":
            message = b"\0ada\0" + password.encode()
            raw.send_bytes(len(message).to_bytes(4, "big") + message)
            assert bytes(raw.receive_frame()) == b""
            return
        client = ScramClient(mechanism, "ada", password, "nonce")
        message = client.first()
        while not client.done:
            raw.send_bytes(len(message).to_bytes(4, "big") + message)
            message = client.step(bytes(raw.receive_frame()))

    with Raw(address(broker)) as raw:
        try_it(raw, SECRET)
        assert raw.ask(ApiKey.METADATA, {"topics": None})["brokers"]
        assert not log_in(raw, mechanism="SCRAM-SHA-256")["error_code"]  # again, with heads
        assert raw.ask(ApiKey.METADATA, {"topics": None})["brokers"]
    with Raw(address(broker)) as raw, pytest.raises(Closed):
        try_it(raw, "wrong")


def test_nothing_but_logging_in_is_answered_before(broker: RunningBroker) -> None:
    for key, body in ((ApiKey.METADATA, {"topics": None}), (ApiKey.LIST_GROUPS, {}), (ApiKey.DESCRIBE_CLUSTER, {})):
        with Raw(address(broker)) as raw:
            assert raw.ask(ApiKey.API_VERSIONS, version=0)["error_code"] == 0
            with pytest.raises(Closed):
                raw.ask(key, body)
    with Raw(address(broker)) as raw:
        assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})["error_code"] == 0
        with pytest.raises(Closed):
            raw.ask(ApiKey.METADATA, {"topics": None})
    with Raw(address(broker)) as raw:
        assert not log_in(raw)["error_code"]
        assert raw.ask(ApiKey.METADATA, {"topics": None})["brokers"]


def test_a_request_that_comes_with_the_login_waits_for_it(broker: RunningBroker) -> None:
    """A connection's requests begin in their order, so no request begins before the password was checked."""
    with Raw(address(broker)) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        raw.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0" + SECRET.encode()})
        raw.send(ApiKey.METADATA, {"topics": None})
        assert raw.receive()["error_code"] == 0
        assert raw.receive()["brokers"]
    with Raw(address(broker)) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        raw.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0wrong"})
        raw.send(ApiKey.METADATA, {"topics": None})
        assert raw.receive()["error_code"] == Code.SASL_AUTHENTICATION_FAILED
        with pytest.raises(Closed):
            raw.receive()


def test_unknown_mechanisms_are_told_which_there_are(broker: RunningBroker) -> None:
    with Raw(address(broker)) as raw:
        found = raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "GSSAPI"})
        assert found["error_code"] == Code.UNSUPPORTED_SASL_MECHANISM
        assert found["mechanisms"] == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
        with pytest.raises(Closed):
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})


def test_authenticate_needs_a_handshake(broker: RunningBroker) -> None:
    with Raw(address(broker)) as raw:
        found = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0" + SECRET.encode()})
        assert found["error_code"] == Code.ILLEGAL_SASL_STATE
        with pytest.raises(Closed):
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})


def test_a_listener_without_users_says_so(broker: RunningBroker) -> None:
    with Raw(broker.kafka_addresses["PLAINTEXT"]) as raw:
        found = raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
        assert found["error_code"] == Code.ILLEGAL_SASL_STATE


def test_what_is_wrong_is_not_told(broker: RunningBroker) -> None:
    """A wrong password, an unknown user and a broken message get the same text, after about the same time."""
    texts = set()
    for user, password in (("ada", "wrong"), ("nobody", SECRET), ("ada ", SECRET)):
        with Raw(address(broker)) as raw:
            began = time.monotonic()
            found = log_in(raw, user, password)
            assert found["error_code"] == Code.SASL_AUTHENTICATION_FAILED
            assert time.monotonic() - began >= 0.02
            texts.add(found["error_message"])
            with pytest.raises(Closed):
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
    with Raw(address(broker)) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-512"})
        texts.add(raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"garbage"})["error_message"])
    assert len(texts) == 1


def challenged(at: str, user: str) -> tuple[str, str]:
    """The salt and the number of iterations that the broker sends for a user, who may be unknown."""
    with Raw(at) as raw:
        raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-512"})
        client = ScramClient("SCRAM-SHA-512", user, "x", "nonce")
        answer = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": client.first()})["auth_bytes"].decode()
        _, salt, iterations = answer.split(",")
        return salt, iterations


def test_an_unknown_user_looks_like_a_known_one(broker: RunningBroker) -> None:
    known, unknown = challenged(address(broker), "ada"), challenged(address(broker), "nobody")
    assert (len(known[0]), known[1]) == (len(unknown[0]), unknown[1])
    assert challenged(address(broker), "nobody") == unknown
    assert challenged(address(broker), "nobody2")[0] != unknown[0]


def test_what_an_unknown_user_is_told_does_not_change_with_others(tmp_path: Path) -> None:
    """A restart does not change it either. Otherwise a stranger could tell known users from unknown ones, because only
    the salts of unknown users would change. Once an unknown user's salt was made of the key of the first user by name;
    now this user can't compute it either."""
    users = tmp_path / "users"
    users.mkdir()
    (users / "of-a-file").write_text(SECRET)
    seen = []
    for password in ("one", "two"):
        with run_broker(
            tmp_path / "data",
            durability="os",
            listen_kafka="SASL_PLAINTEXT://127.0.0.1:0",
            users_dir=str(users),
            super_users="User:ANONYMOUS",
        ) as broker:
            at = broker.kafka_addresses["SASL_PLAINTEXT"]
            with broker.connect() as client:
                for others in range(2):
                    client.security.set_password("aaa", password + str(others))
                    seen.append([challenged(at, name) for name in ("nobody", "of-a-file", "aab")])
        assert len({str(each) for each in seen}) == 1


def test_a_large_frame_is_refused_before_the_login(broker: RunningBroker) -> None:
    with Raw(address(broker)) as raw:
        raw.socket.sendall((authentication.LOCKED_FRAME + 1).to_bytes(4, "big") + b"\0\x12\0\0")
        with contextlib.suppress(ConnectionError):
            assert raw.socket.recv(100) == b""
    with NativeRaw(broker.address) as native:
        native.socket.sendall((authentication.LOCKED_FRAME + 1).to_bytes(4, "big") + b"\0\0\0\x16")
        with pytest.raises(errors.FrameTooLarge):
            native.receive(0)


def test_a_password_has_an_end(broker: RunningBroker) -> None:
    """Each that waits to be checked is kept, and none needs tens of KB."""
    with broker.connect(user="ada", password=SECRET) as client:
        for size, code in ((LONGEST_PASSWORD, 0), (LONGEST_PASSWORD + 1, Code.SASL_AUTHENTICATION_FAILED)):
            client.security.set_password("eve", "e" * size)
            with Raw(address(broker)) as raw:
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
                found = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"eve\0eve\0" + b"e" * size})
                assert found["error_code"] == code
        client.security.delete_user("eve")


def test_who_does_not_log_in_is_sent_away(tmp_path: Path) -> None:
    settings = {**LISTENERS, "users_dir": users_dir(tmp_path / "users", ada=SECRET), **ADMIN}
    with run_broker(tmp_path / "data", authentication_timeout_ms=300, **settings) as broker:
        with Raw(address(broker)) as raw:
            deadline = time.monotonic() + 20
            with contextlib.suppress(Closed, ConnectionError):
                while time.monotonic() < deadline:
                    raw.ask(ApiKey.API_VERSIONS, version=0)
            assert time.monotonic() < deadline
        with NativeRaw(broker.address) as native, pytest.raises(errors.RequestTimeout, match="logged in"):
            native.receive(0)


def test_the_native_protocol_before_the_login(broker: RunningBroker) -> None:
    with NativeRaw(broker.address) as raw:
        pong = raw.call(m.Ping())
        assert (pong.version, pong.cluster, pong.principal) == ("", "", None)
        assert pong.mechanisms == ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"]
        with pytest.raises(errors.AuthenticationFailed):
            raw.call(m.DescribeTopics())
        with pytest.raises((EOFError, ConnectionError, errors.KrappyError)):
            raw.call(m.Ping())


def test_two_messages_at_once_are_no_login(broker: RunningBroker) -> None:
    """Native requests run concurrently, but the messages of one login must not."""
    with NativeRaw(broker.address) as raw:
        ids = [raw.send(m.Authenticate("PLAIN" if not n else "", b"\0ada\0wrong")) for n in range(5)]
        for id in ids:
            with pytest.raises((errors.AuthenticationFailed, errors.IllegalLogin, EOFError, ConnectionError)):
                raw.receive(id)


# --- logging in again


def test_a_session_ends_unless_its_user_logs_in_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients that log in again go on for longer than a session lasts, until the session of the lazy client has
    ended."""
    monkeypatch.setattr(link, "RENEWED", 0.1)  # early, so that no session ends if the machine stalls for some seconds
    settings = {**LISTENERS, "users_dir": users_dir(tmp_path / "users", ada=SECRET, bob="b"), **ADMIN}
    with (
        run_broker(tmp_path / "data", connections_max_reauth_ms=3000, durability="os", **settings) as broker,
        Raw(address(broker)) as raw,
        Raw(address(broker)) as other,
        broker.connect(user="ada", password=SECRET) as client,
        client.producer("again") as producer,
        Raw(address(broker)) as lazy,
    ):
        assert log_in(raw)["session_lifetime_ms"] == 3000
        log_in(other)
        generation, sent = client._link.generation, 0
        log_in(lazy)
        ended = False
        while not ended:
            for each in (raw, other):
                assert not log_in(each)["error_code"]
                assert each.ask(ApiKey.METADATA, {"topics": None})["brokers"]
            assert producer.send(f"{sent}").result().offset == sent
            sent += 1
            try:
                lazy.ask(ApiKey.METADATA, {"topics": None})
            except (Closed, ConnectionError):
                ended = True
            time.sleep(0.05)
        assert not log_in(raw)["error_code"]
        assert client._link.generation == generation
        assert log_in(other, "bob", "b")["error_code"] == Code.SASL_AUTHENTICATION_FAILED


def poll_on(consumer: blocking.Consumer) -> None:
    """Polls until an error is raised."""
    while True:
        consumer.poll(0.1)


@pytest.mark.parametrize("group", [None, "g"])
def test_who_polls_is_told_that_the_password_is_not_good_any_more(tmp_path: Path, group: str | None) -> None:
    """Polls that are shorter than the client's timeout brought nothing, for ever, and no error."""
    settings = {**LISTENERS, "super_users": "User:ada;User:carl", "connections_max_reauth_ms": 1000}
    users = users_dir(tmp_path / "users", ada=SECRET)
    with (
        run_broker(tmp_path / "data", users_dir=users, **settings) as broker,
        broker.connect(user="ada", password=SECRET) as admin,
    ):
        admin.create_topic("polled")
        admin.security.set_password("carl", "c")
        with (
            broker.connect(user="carl", password="c", timeout=1) as client,
            client.consumer("polled", group=group) as consumer,
        ):
            assert consumer.poll(0.1) == []
            admin.security.set_password("carl", "other")
            with pytest.raises(errors.AuthenticationFailed):
                poll_on(consumer)


def test_librdkafka_logs_in_again(tmp_path: Path) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    settings = {**LISTENERS, "users_dir": users_dir(tmp_path / "users", ada=SECRET), **ADMIN}
    # librdkafka logs in again after nine tenths of a session. A tenth of this long session is enough for a busy
    # machine.
    with run_broker(tmp_path / "data", durability="os", connections_max_reauth_ms=10_000, **settings) as broker:
        said: list[str] = []
        producer = confluent.Producer(
            {
                "bootstrap.servers": address(broker),
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-512",
                "sasl.username": "ada",
                "sasl.password": SECRET,
                "error_cb": lambda error: said.append(str(error)),
            }
        )
        offsets: list[int] = []
        end = time.monotonic() + 12
        count = 0
        while time.monotonic() < end:
            producer.produce(
                "again", b"%d" % count, on_delivery=lambda error, message: offsets.append(message.offset())
            )
            count += 1
            producer.poll(0.01)
        assert producer.flush(30) == 0
        assert offsets == list(range(count))
        assert not said


# --- users


def test_files_of_users_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from krappy.broker import users

    monkeypatch.setattr(users, "LOOK_SECONDS", 0.05)
    folder = Path(users_dir(tmp_path / "users", ada=SECRET))
    (folder / "..data").mkdir()
    settings = {**LISTENERS, "users_dir": str(folder), **ADMIN}
    with run_broker(tmp_path / "data", **settings) as broker:

        def comes_in(user: str, password: str) -> bool:
            with Raw(address(broker)) as raw:
                return not log_in(raw, user, password)["error_code"]

        def until(user: str, password: str, wanted: bool) -> None:
            deadline = time.monotonic() + 30
            while comes_in(user, password) is not wanted:
                assert time.monotonic() < deadline

        assert comes_in("ada", SECRET)
        (folder / "ada").write_text("another")
        until("ada", "another", True)
        assert not comes_in("ada", SECRET)
        (folder / "ada").unlink()
        until("ada", "another", False)


def test_a_user_of_a_file_is_changed_by_the_file_alone(tmp_path: Path) -> None:
    """A password that was set otherwise would not count; once the file is deleted to lock the user out, it would."""
    users = users_dir(tmp_path / "users", ada=SECRET, bob="b")
    with (
        run_broker(tmp_path / "data", **{**LISTENERS, "users_dir": users, **ADMIN}) as broker,
        broker.connect(user="ada", password=SECRET) as client,
    ):
        for change in (
            partial(client.security.set_password, "bob", "other"),
            partial(client.security.delete_user, "bob"),
        ):
            with pytest.raises(errors.InvalidRequest, match="users_dir"):
                change()
        with Raw(address(broker)) as raw:
            assert log_in(raw, "bob", "other")["error_code"] == Code.SASL_AUTHENTICATION_FAILED
        with Raw(address(broker)) as raw:
            assert not log_in(raw, "bob", "b")["error_code"]


def test_a_file_that_is_no_password_blocks_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a file does not stop the broker from starting either. The user keeps his old password, because editors empty
    a file before they write it."""
    from krappy.broker import users

    monkeypatch.setattr(users, "LOOK_SECONDS", 0.05)
    folder = Path(users_dir(tmp_path / "users", ada=SECRET, bob="b", carl="c"))
    bad = {
        "empty": b"",
        "lines": b"\r\n\n",
        "latin": "größe".encode("latin-1"),
        "long": b"x" * (LONGEST_PASSWORD + 1),
        "a\nb": b"x",
        "\x7f": b"x",
    }
    said: list[str] = []

    def put(name: str, content: bytes) -> None:
        """Writes a file in one step. Otherwise the broker might read it while it is empty."""
        (folder / ".new").write_bytes(content)
        (folder / ".new").rename(folder / name)

    for name, content in bad.items():
        put(name, content)
    (folder / "evil").symlink_to("x" * 300)  # its target has too long a name, so reading it fails

    def report(event: str, **facts: Any) -> None:
        if event == "users_not_read":
            said.append(facts["error"])

    def told(*words: str) -> int:
        return sum(all(word in each for word in words) for each in said)

    settings = {**LISTENERS, "users_dir": str(folder), **ADMIN}
    with run_broker(tmp_path / "data", report=report, **settings) as broker:

        def comes_in(user: str, password: str) -> bool:
            with Raw(address(broker)) as raw:
                return not log_in(raw, user, password)["error_code"]

        assert len(said) == len(bad) + 1
        assert told("evil can't be read: File name too long") == 1
        assert (
            told("empty is empty", "there is no such user") == told("lines is empty") == told("latin is no UTF-8") == 1
        )
        assert told("has more than 4096 bytes") == 1
        assert told("has a name that no user can have") == 2
        assert comes_in("ada", SECRET)
        assert not comes_in("empty", "")
        assert not comes_in("long", "x" * LONGEST_PASSWORD)
        put("bob", b"")
        (folder / "carl").unlink()
        put("dora", b"d" * LONGEST_PASSWORD)
        put("ada", b"another")
        wait_until(lambda: comes_in("ada", "another"), "who has a file that is good gets the new password")
        assert comes_in("dora", "d" * LONGEST_PASSWORD)
        assert not comes_in("carl", "c")
        assert comes_in("bob", "b")
        wait_until(lambda: told("bob is empty", "stays as he was") == 1, "it is told")
        put("empty", b"e")
        put("bob", b"other")
        wait_until(lambda: comes_in("bob", "other"), "what was mended counts")
        assert comes_in("empty", "e")
        put("bob", b"")
        wait_until(lambda: told("bob is empty") == 2, "it is told again")
        (folder / "bob").unlink()
        wait_until(lambda: not comes_in("bob", "other"), "who has no file any more is none")
        assert len(said) == len(bad) + 3  # each problem is reported once
        folder.rename(tmp_path / "moved")
        wait_until(lambda: told("can't be read") == 1, "it is told")
        assert comes_in("ada", "another")


def test_credentials_are_kept_and_shown(tmp_path: Path) -> None:
    """They are set by AlterUserScramCredentials, as kafka-configs.sh does it, and survive a restart."""
    users = users_dir(tmp_path / "users", ada=SECRET)
    settings = {**LISTENERS, "users_dir": users, **ADMIN}

    def upsert(name: str, mechanism: int = 2, iterations: int = 4096) -> dict[str, Any]:
        from krappy.core.security.scram import salted

        password = salted("SCRAM-SHA-512" if mechanism == 2 else "SCRAM-SHA-256", "pw", b"salty", iterations)
        return {
            "name": name,
            "mechanism": mechanism,
            "iterations": iterations,
            "salt": b"salty",
            "salted_password": password,
        }

    with run_broker(tmp_path / "data", **settings) as broker, Raw(address(broker)) as raw:
        log_in(raw)

        def alter(**changes: Any) -> dict[str, int]:
            found = raw.ask(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, {"deletions": [], "upsertions": [], **changes})
            return {each["user"]: each["error_code"] for each in found["results"]}

        assert alter(upsertions=[upsert("carl"), upsert("carl", 1), upsert("dora")]) == {"carl": 0, "dora": 0}
        assert alter(upsertions=[upsert("few", iterations=100)]) == {"few": Code.UNACCEPTABLE_CREDENTIAL}
        assert alter(upsertions=[upsert("many", iterations=20_000)]) == {"many": Code.UNACCEPTABLE_CREDENTIAL}
        assert alter(upsertions=[upsert("")]) == {"": Code.UNACCEPTABLE_CREDENTIAL}
        assert alter(upsertions=[upsert("odd", 7)]) == {"odd": Code.UNSUPPORTED_SASL_MECHANISM}
        assert alter(upsertions=[upsert("twice"), upsert("twice")]) == {"twice": Code.DUPLICATE_RESOURCE}
        assert alter(deletions=[{"name": "dora", "mechanism": 2}]) == {"dora": 0}
        assert alter(deletions=[{"name": "dora", "mechanism": 2}]) == {"dora": Code.RESOURCE_NOT_FOUND}
        found = raw.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        assert [each["user"] for each in found["results"]] == ["ada", "carl"]
        found = raw.ask(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": [{"name": "carl"}, {"name": "dora"}]})
        assert found["results"][0]["credential_infos"] == [
            {"mechanism": 1, "iterations": 4096},
            {"mechanism": 2, "iterations": 4096},
        ]
        assert found["results"][1]["error_code"] == Code.RESOURCE_NOT_FOUND
    with run_broker(tmp_path / "data", **settings) as broker, Raw(address(broker)) as raw:
        assert not log_in(raw, "carl", "pw")["error_code"]


def test_users_are_made_by_our_clients(broker: RunningBroker) -> None:
    with broker.connect(user="ada", password=SECRET) as client:
        client.security.set_password("emil", "pw")
        [emil] = [each for each in client.security.users() if each.name == "emil"]
        assert emil.iterations == {"SCRAM-SHA-256": 8192, "SCRAM-SHA-512": 8192}
        with broker.connect(user="emil", password="pw") as his:
            assert his.ping().principal == "User:emil"
        client.security.set_password("emil", "other")
        client.security.delete_user("emil")
        with pytest.raises(errors.AuthenticationFailed), broker.connect(user="emil", password="other"):
            pass
        with pytest.raises(errors.UnknownUser):
            client.security.delete_user("emil")


# --- strangers


def test_a_storm_of_wrong_passwords_harms_nobody(broker: RunningBroker) -> None:
    stop = threading.Event()

    def attack(mechanism: str) -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with contextlib.suppress(OSError, EOFError), Raw(address(broker)) as raw:
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
                raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0wrong%d" % number})

    attackers = [threading.Thread(target=attack, args=("PLAIN",)) for _ in range(8)]
    worst = 0.0
    with broker.connect(user="ada", password=SECRET) as client:
        for each in attackers:
            each.start()
        try:
            others = [each.native_id or 0 for each in attackers]
            end = time.monotonic() + 3
            while time.monotonic() < end:
                watch = Stopwatch(but=others)
                client.ping()
                worst = max(worst, watch.seconds)
            with blocking.connect(broker.address, user="ada", password=SECRET) as newcomer:
                assert newcomer.ping().principal == "User:ada"
        finally:
            stop.set()
            for each in attackers:
                each.join()
    assert worst < 1.0, worst


def test_passwords_are_in_no_log_and_no_setting(tmp_path: Path) -> None:
    reported: list[str] = []
    settings = {**LISTENERS, "users_dir": users_dir(tmp_path / "users", ada=SECRET), **ADMIN}

    def report(event: str, **facts: Any) -> None:
        reported.append(f"{event} {facts}")

    with run_broker(tmp_path / "data", report=report, **settings) as broker:
        for mechanism, data in (("PLAIN", b"\0ada\0hunter2"), ("SCRAM-SHA-512", b"n,,n=ada,r=x")):
            with Raw(address(broker)) as raw:
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": mechanism})
                raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": data})
        with Raw(address(broker)) as raw:
            log_in(raw)
            resource = {"resource_type": 4, "resource_name": "0", "configuration_keys": None}
            told = raw.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource], "include_synonyms": True})
    assert any("authentication_failed" in each and "ada" in each for each in reported)
    for text in (*reported, repr(told)):
        assert "hunter2" not in text
        assert SECRET not in text
    stored = b"".join(each.read_bytes() for each in (tmp_path / "data").rglob("*") if each.is_file())
    assert SECRET.encode() not in stored


def test_garbage(broker: RunningBroker) -> None:
    import random

    chance = random.Random(7)
    for _ in range(60):
        host, _, port = address(broker).rpartition(":")
        with socket.create_connection((host, int(port)), 20) as sock, contextlib.suppress(OSError):
            sock.sendall(chance.randbytes(chance.randrange(1, 300)))
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1000):
                pass
    with Raw(address(broker)) as raw:
        assert not log_in(raw)["error_code"]
