"""Tokens of an identity provider with Kafka's own tools and the Java client, unmodified; groups in ACLs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from krappy.testing.running import RunningBroker, run_broker
from tests.compat import tools
from tests.compat.kafka_tools import KafkaTools
from tests.security.authority import Authority
from tests.security.identity import IdentityProvider


@pytest.fixture(scope="module")
def broker(
    authority: Authority, provider: IdentityProvider, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    with run_broker(
        tmp_path_factory.mktemp("oauth") / "data",
        durability="os",
        listen_kafka="SASL_SSL://127.0.0.1:0",
        listen_native="none",
        sasl_enabled_mechanisms="OAUTHBEARER",
        tls_certificate=authority.issue("127.0.0.1", "localhost"),
        super_users="User:admin",
        connections_max_reauth_ms=2000,
        **provider.settings,
    ) as found:
        yield found


@pytest.fixture
def kafka(broker: RunningBroker, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch) -> KafkaTools:
    """Java's clients fetch tokens only where a property of the JVM allows it."""
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={provider.issuer}/token"
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", allowed)
    try:
        return KafkaTools(broker.kafka_addresses["SASL_SSL"])
    except tools.Missing as missing:
        pytest.skip(str(missing))


def properties(path: Path, authority: Authority, provider: IdentityProvider, user: str) -> str:
    """A file of a client's settings, as Kafka's documents write it."""
    path.write_text(
        f"security.protocol=SASL_SSL\nssl.truststore.type=PEM\nssl.truststore.location={authority.ca}\n"
        "sasl.mechanism=OAUTHBEARER\n"
        f"sasl.oauthbearer.token.endpoint.url={provider.issuer}/token\n"
        "sasl.login.callback.handler.class="
        "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler\n"
        "sasl.jaas.config=org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required "
        f'clientId="{user}" clientSecret="a-secret";\n'
    )
    return str(path)


def test_java_logs_in_and_again(
    kafka: KafkaTools, authority: Authority, provider: IdentityProvider, tmp_path: Path
) -> None:
    admin = properties(tmp_path / "admin", authority, provider, "admin")
    kafka("topics", "--command-config", admin, "--create", "--topic", "java")
    perf = ("--num-records", "6000", "--throughput", "1000", "--record-size", "10", "--topic", "java")
    said = kafka("producer-perf-test", *perf, "--bootstrap-server", kafka.address, "--command-config", admin)  # 6 s
    assert "6000 records sent" in said
    assert kafka("get-offsets", "--command-config", admin, "--topic", "java").strip() == "java:0:6000"
    end = ("--from-beginning", "--max-messages", "6000", "--timeout-ms", "30000")
    read = kafka("console-consumer", "--consumer.config", admin, "--topic", "java", *end)
    assert len(read.split("\n")) >= 6000


def test_java_is_refused(kafka: KafkaTools, authority: Authority, provider: IdentityProvider, tmp_path: Path) -> None:
    admin = properties(tmp_path / "admin", authority, provider, "admin")
    provider.seconds = -60.0
    try:
        assert "Exception" in kafka("topics", "--command-config", admin, "--list", fails=True)
    finally:
        provider.seconds = 3600.0
    provider.audience = "somebody"
    try:
        said = kafka("topics", "--command-config", admin, "--list", fails=True)
        assert "SaslAuthenticationException" in said
        assert "invalid_token" in said
    finally:
        del provider.audience


def test_groups_in_acls(kafka: KafkaTools, authority: Authority, provider: IdentityProvider, tmp_path: Path) -> None:
    admin = properties(tmp_path / "admin", authority, provider, "admin")
    bob = properties(tmp_path / "bob", authority, provider, "bob")
    kafka("topics", "--command-config", admin, "--create", "--topic", "orders")

    def sees() -> bool:
        return "orders" in kafka("topics", "--command-config", bob, "--list")

    def acls(*arguments: str) -> str:
        return kafka("acls", "--command-config", admin, *arguments)

    assert not sees()
    acls("--add", "--allow-principal", "Group:ops", "--operation", "Read", "--topic", "orders")
    assert "principal=Group:ops" in acls("--list", "--topic", "orders")
    assert sees()
    acls("--add", "--deny-principal", "Group:night", "--operation", "Describe", "--topic", "orders")
    assert sees()
    acls("--add", "--deny-principal", "Group:ops", "--operation", "Describe", "--topic", "orders")
    acls("--add", "--allow-principal", "User:bob", "--operation", "Read", "--topic", "orders")
    assert not sees()
