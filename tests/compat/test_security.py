"""TLS and users with unmodified clients: Kafka's own tools, which are the Java client, kcat, kafkajs and Go's three.
tests/security has librdkafka, kafka-python and aiokafka."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.clients.agent import Agent, AgentClient
from tests.compat.clients.base import Client, Message, Refused, Sending
from tests.compat.clients.kcat import Kcat
from tests.compat.kafka_tools import KafkaTools
from tests.security.authority import Authority

SECRET = "correct-horse"


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("secure")
    users = folder / "users"
    users.mkdir()
    for name in ("admin", "nobody"):
        (users / name).write_text(SECRET)
    with run_broker(
        folder / "data",
        durability="os",
        listen_kafka="SASL_SSL://127.0.0.1:0,SSL://127.0.0.1:0",
        listen_native="SASL_SSL://127.0.0.1:0",
        sasl_enabled_mechanisms="SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
        tls_certificate=authority.issue("127.0.0.1", "localhost"),
        tls_client_ca=authority.ca,
        ssl_client_auth="requested",
        ssl_principal_mapping_rules="RULE:^CN=([^,]+),.*$/$1/L,DEFAULT",
        users_dir=str(users),
        super_users="User:admin;User:ada",
    ) as found:
        yield found


@pytest.fixture
def kafka(broker: RunningBroker) -> KafkaTools:
    try:
        return KafkaTools(broker.kafka_addresses["SASL_SSL"])
    except tools.Missing as missing:
        pytest.skip(str(missing))


def properties(path: Path, authority: Authority, user: str, password: str, mechanism: str = "SCRAM-SHA-512") -> str:
    """A file of a client's settings, as Kafka's documents write it."""
    kind = "plain.PlainLoginModule" if mechanism == "PLAIN" else "scram.ScramLoginModule"
    path.write_text(
        f"security.protocol=SASL_SSL\nsasl.mechanism={mechanism}\nssl.truststore.type=PEM\n"
        f"ssl.truststore.location={authority.ca}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{kind} required "
        f'username="{user}" password="{password}";\n'
    )
    return str(path)


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN"])
def test_java_logs_in(kafka: KafkaTools, authority: Authority, tmp_path: Path, mechanism: str) -> None:
    admin = properties(tmp_path / "admin", authority, "admin", SECRET, mechanism)
    topic = f"java-{mechanism.lower()}"
    kafka("topics", "--command-config", admin, "--create", "--topic", topic)
    kafka("console-producer", "--producer.config", admin, "--topic", topic, stdin="one\ntwo\n")
    end = ("--from-beginning", "--max-messages", "2", "--timeout-ms", "30000")
    said = kafka("console-consumer", "--consumer.config", admin, "--topic", topic, "--group", topic, *end)
    assert said.split()[-2:] == ["one", "two"]  # the lines before them are about its options
    wrong = properties(tmp_path / "wrong", authority, "admin", "wrong", mechanism)
    assert "SaslAuthenticationException" in kafka("topics", "--command-config", wrong, "--list", fails=True)


def test_kafka_configs_makes_shows_and_deletes_users(kafka: KafkaTools, authority: Authority, tmp_path: Path) -> None:
    admin = properties(tmp_path / "admin", authority, "admin", SECRET)
    alter = ("configs", "--command-config", admin, "--alter", "--entity-type", "users", "--entity-name", "carl")
    kafka(*alter, "--add-config", "SCRAM-SHA-512=[iterations=8192,password=pw],SCRAM-SHA-256=[password=pw]")
    described = kafka("configs", "--command-config", admin, "--describe", "--entity-type", "users")
    assert "SCRAM credential configs for user-principal 'carl' are" in described
    assert "SCRAM-SHA-512=iterations=8192" in described
    assert "SCRAM-SHA-256=iterations=4096" in described
    his = properties(tmp_path / "carl", authority, "carl", "pw")
    kafka("topics", "--command-config", his, "--list")
    kafka(*alter, "--delete-config", "SCRAM-SHA-512")
    assert "SaslAuthenticationException" in kafka("topics", "--command-config", his, "--list", fails=True)


def test_java_shows_a_certificate(
    broker: RunningBroker, kafka: KafkaTools, authority: Authority, tmp_path: Path
) -> None:
    """`ada` is a super user, by the name that the rules make of her certificate. A stranger may do nothing."""
    kafka.address = broker.kafka_addresses["SSL"]
    for name, fails in (("Ada", False), ("Eve", True)):
        file = tmp_path / name
        cert = Path(authority.issue("client.example", subject=name)).read_text()
        store = tmp_path / f"{name}.pem"
        store.write_text(_pkcs8(cert))
        file.write_text(
            f"security.protocol=SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.ca}\n"
            f"ssl.keystore.type=PEM\nssl.keystore.location={store}\n"
        )
        created = kafka("topics", "--command-config", str(file), "--create", "--topic", f"of-{name}", fails=fails)
        assert ("AuthorizationException" in created) == fails


# --- clients of other languages


NAMES = ("kcat", "kafkajs", "franz-go", "sarama", "kafka-go")


class Way(NamedTuple):
    """How a client connects: over TLS, with a password or with a certificate of this name."""

    mechanism: str = ""
    user: str = "admin"
    password: str = SECRET
    certificate: str = ""

    @property
    def listener(self) -> str:
        return "SASL_SSL" if self.mechanism else "SSL"


IN = {
    **{each: Way(each) for each in ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")},
    "certificate": Way(certificate="Ada"),
}
OUT = {
    **{each: (Way(each, password="wrong"), "authentication") for each in ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")},
    "a user without rights": (Way("PLAIN", user="nobody"), "authoriz"),
    "a stranger's certificate": (Way(certificate="Eve"), "authoriz"),
    "no certificate": (Way(), "authoriz"),
}


def connecting(name: str, way: Way, authority: Authority, folder: Path) -> Client:
    """A client that connects in this way. Raises Missing."""
    cert = authority.issue("client.example", subject=way.certificate) if way.certificate else ""
    tools.wanted(name)
    if name == "kcat":
        tools.kcat()
        properties = [f"security.protocol={way.listener}", f"ssl.ca.location={authority.ca}"]
        if way.mechanism:
            properties += [f"sasl.mechanism={way.mechanism}", f"sasl.username={way.user}"]
            properties += [f"sasl.password={way.password}"]
        if cert:
            properties += [f"ssl.certificate.location={cert}", f"ssl.key.location={cert}"]
        return Kcat(*properties)
    if name in ("franz-go", "sarama", "kafka-go"):
        command = tools.go_agent(name)
    else:
        program, modules = tools.node()
        os.environ["NODE_PATH"] = str(modules / "node_modules")
        command = [program, str(tools.HERE / "node" / "agent.js")]
    agent = Agent(command, folder, folder / "log")
    client = AgentClient(name, agent, codecs=("none",), static_members=False, protocol848=False)
    who = {"mechanism": way.mechanism, "user": way.user, "password": way.password} if way.mechanism else {}
    client.security = {"ca": authority.ca, "cert": cert, **who}
    return client


@pytest.fixture
def topic(broker: RunningBroker, authority: Authority, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    with broker.connect(user="admin", password=SECRET, ca=authority.ca) as client:
        client.create_topic(name)
    return name


@pytest.mark.parametrize("way", IN)
@pytest.mark.parametrize("name", NAMES)
def test_a_client_comes_in(
    broker: RunningBroker, authority: Authority, tmp_path: Path, topic: str, name: str, way: str
) -> None:
    address = broker.kafka_addresses[IN[way].listener]
    try:
        client = connecting(name, IN[way], authority, tmp_path)
    except tools.Missing as missing:
        pytest.skip(str(missing))
    sent = [Message(b"k", b"%d" % number) for number in range(3)]
    assert client.produce(address, topic, sent, Sending()) == [0, 1, 2]
    assert [each.value for each in client.consume(address, topic, 3)] == [b"0", b"1", b"2"]
    client.close()


@pytest.mark.parametrize("way", OUT)
@pytest.mark.parametrize("name", NAMES)
def test_a_client_is_kept_out_and_says_why(
    broker: RunningBroker, authority: Authority, tmp_path: Path, topic: str, name: str, way: str
) -> None:
    tried, why = OUT[way]
    try:
        client = connecting(name, tried, authority, tmp_path)
    except tools.Missing as missing:
        pytest.skip(str(missing))
    with pytest.raises(Refused) as refused:
        client.produce(broker.kafka_addresses[tried.listener], topic, [Message(b"k", b"v")], Sending())
    assert why in refused.value.reason, refused.value
    client.close()


def _pkcs8(pem: str) -> str:
    """The key as PKCS#8, the only form that Java reads."""
    from cryptography.hazmat.primitives import serialization as form

    key = form.load_pem_private_key(pem.encode(), None)
    plain = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption()).decode()
    return plain + pem[pem.index("-----BEGIN CERTIFICATE") :]
