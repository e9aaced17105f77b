"""The server's settings: who wins, what is refused, and what the refusal says."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from krappy.cli.serving import load_settings
from krappy.errors import ConfigError
from krappy.settings.described import describe
from krappy.settings.listeners import parse_address
from krappy.settings.server import ServerConfig, load
from krappy.settings.topic_table import OF_BROKER, SETTINGS


def test_without_anything_the_defaults() -> None:
    config = load({}, {})
    assert config == ServerConfig()
    assert config.listen_native == "127.0.0.1:7092"
    assert config.durability == "fsync"


def test_flags_win_over_the_environment_over_the_file_over_defaults(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text('data = "/file"\nlog_level = "debug"\nmax_connections = 1_000\nauto_create_topics = false\n')
    environ = {"KRAPPY_DATA": "/environment", "KRAPPY_LOG_LEVEL": "error", "PATH": "/bin"}
    config = load({"data": "/flags", "log_level": None}, environ, file)
    assert config.data == Path("/flags")
    assert config.log_level == "error"
    assert config.max_connections == 1000
    assert config.auto_create_topics is False
    assert config.idle_timeout_ms == 600_000


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text("max_connections = 7")
    assert load({}, {"KRAPPY_CONFIG": str(file)}).max_connections == 7


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("memory_bytes", "10_000_000", 10_000_000),
        ("memory_bytes", 2000000, 2_000_000),
        ("idle_timeout_ms", "0", 0),
        ("auto_create_topics", "FALSE", False),
        ("auto_create_topics", True, True),
        ("durability", "os", "os"),
        ("listen_native", "none", None),
        ("listen_native", "[::1]:0", "[::1]:0"),
        ("listen_native", ":7092", ":7092"),
        ("data", "here", Path("here")),
    ],
)
def test_what_is_given_is_what_is_used(name: str, given: Any, value: object) -> None:
    assert getattr(load({name: given, "insecure_listeners": "allow"}, {}), name) == value


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("memory_bytes", "256X"),
        ("memory_bytes", "256s"),
        ("idle_timeout_ms", "5M"),
        ("max_groups", "5M"),
        ("memory_bytes", 5),
        ("memory_bytes", 1.5),
        ("memory_bytes", True),
        ("max_frame_bytes", 2**31),
        ("idle_timeout_ms", -1),
        ("idle_timeout_ms", "ten"),
        ("group_max_members", 1001),
        ("default_partitions", 0),
        ("auto_create_topics", "maybe"),
        ("durability", "always"),
        ("log_format", "xml"),
        ("listen_native", "localhost"),
        ("listen_native", "localhost:http"),
        ("listen_native", "localhost:65536"),
        ("listen_native", "::1:7092"),
        ("data", ""),
        ("data", 3),
        ("log_level", 3),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_place(name: str, given: Any) -> None:
    with pytest.raises(ConfigError, match=f"the flags: {name} = ") as caught:
        load({name: given}, {})
    assert caught.value.details == {"setting": name}


@pytest.mark.parametrize(
    "name", ["listen_native", "listen_kafka", "listen_http", "listen_health", "advertised_listeners"]
)
def test_a_port_without_a_host_is_told_what_is_needed(name: str) -> None:
    needed = "HOST:PORT is needed, such as 127.0.0.1:7092"
    with pytest.raises(ConfigError) as caught:
        load({name: "7192"}, {})
    assert caught.value.text == f"the flags: {name} = '7192': {needed}"
    with pytest.raises(ConfigError) as caught:
        load_settings({name: "7192"}, None)
    assert caught.value.text == f"the flags: --{name.replace('_', '-')} = '7192': {needed}"
    with pytest.raises(ConfigError) as caught:
        load({}, {f"KRAPPY_{name.upper()}": "7192"})
    assert caught.value.text == f"the environment: KRAPPY_{name.upper()} = '7192': {needed}"


def test_of_several_listeners_the_wrong_one_is_named() -> None:
    for name in ("listen_kafka", "advertised_listeners"):
        with pytest.raises(ConfigError, match="'B://9093': HOST:PORT is needed"):
            load({name: "A://10.0.0.1:9092,B://9093"}, {})


def test_a_wrong_address_of_zookeeper_is_told_by_its_setting() -> None:
    with pytest.raises(ConfigError, match="zookeeper_connect: HOST:PORT is needed") as caught:
        load({"zookeeper_connect": "zk:x"}, {})
    assert caught.value.details == {"setting": "zookeeper_connect"}


@pytest.mark.parametrize(
    ("name", "given", "number"),
    [
        ("memory_bytes", "256M", 256 << 20),
        ("memory_bytes", "256MiB", 256 << 20),
        ("memory_bytes", "256mb", 256_000_000),
        ("memory_bytes", "1.5GiB", 3 << 29),
        ("memory_bytes", " 2 G ", 2 << 30),
        ("cleaner_io_max_bytes_per_second", "10M", 10 << 20),
        ("idle_timeout_ms", "30s", 30_000),
        ("idle_timeout_ms", "1.5h", 5_400_000),
        ("idle_timeout_ms", "250ms", 250),
        ("offsets_retention_ms", "7d", 604_800_000),
        ("leader_imbalance_check_interval_seconds", "5m", 300),
    ],
)
def test_sizes_and_times_may_have_units(tmp_path: Path, name: str, given: str, number: int) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text(f'{name} = "{given}"\n')
    for config in (load({name: given}, {}), load({}, {"KRAPPY_" + name.upper(): given}), load({}, {}, file)):
        assert getattr(config, name) == number


def test_defaults_of_topics_may_have_units() -> None:
    config = load({"log_retention_ms": "7d", "log_segment_bytes": "64M"}, {})
    assert config.topic_defaults == {"log.retention.ms": "604800000", "log.segment.bytes": str(64 << 20)}


def test_an_unknown_name_gets_the_nearest_and_its_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the environment: .*'KRAPPY_Memory'; the nearest is 'KRAPPY_MEMORY_BYTES'"):
        load({}, {"KRAPPY_Memory": "1"})
    with pytest.raises(ConfigError, match=r"the environment: KRAPPY_MEMORY_BYTES = 'x': "):
        load({}, {"KRAPPY_MEMORY_BYTES": "x"})
    with pytest.raises(ConfigError, match=r"the flags: .*'listen_nativ'; the nearest is 'listen_native'"):
        load({"listen_nativ": "x"}, {})
    file = tmp_path / "krappy.toml"
    file.write_text("[server]\ndata = '/x'\n")
    with pytest.raises(ConfigError, match=r"krappy\.toml: there is no setting 'server\.data'"):
        load({}, {}, file)


def test_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load({}, {}, tmp_path / "absent.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("data = ")
    with pytest.raises(ConfigError, match="not TOML"):
        load({}, {}, bad)
    bad.write_bytes(b"data = '\xff'")
    with pytest.raises(ConfigError, match="not TOML"):
        load({}, {}, bad)


@pytest.mark.parametrize(
    "variable",
    [
        "KRAPPY_SERVICE_HOST",
        "KRAPPY_SERVICE_PORT",
        "KRAPPY_SERVICE_PORT_NATIVE",
        "KRAPPY_PORT",
        "KRAPPY_PORT_7092_TCP",
        "KRAPPY_PORT_7092_TCP_ADDR",
        "KRAPPY_HEADLESS_SERVICE_HOST",
        "KRAPPY_HEADLESS_PORT_7092_TCP_PROTO",
    ],
)
def test_the_variables_of_a_kubernetes_service_are_not_settings(variable: str) -> None:
    assert load({}, {variable: "tcp://10.0.0.1:7092"}) == ServerConfig()


# Settings that may be any text: the broker reads their meaning only when it starts.
TEXTS = (
    *("data", "rack", "tls_certificate", "tls_key", "tls_client_ca", "ssl_principal_mapping_rules"),
    *("sasl_enabled_mechanisms", "users_dir", "inter_broker_listener_name"),
    *("inter_broker_user", "inter_broker_password", "inter_broker_password_file", "inter_broker_token_file"),
    *("oauth_issuer", "oauth_audience", "oauth_jwks_url", "oauth_subject_claim", "oauth_groups_claim", "oauth_ca"),
    *("console_oidc_secret_file", "console_oidc_redirect", "console_oidc_scopes"),
    *("zookeeper_user", "zookeeper_password", "zookeeper_password_file"),
    *("zookeeper_ssl_truststore_location", "zookeeper_ssl_keystore_location"),
)


def test_no_setting_looks_like_such_a_variable() -> None:
    for row in describe():
        if row.name in TEXTS:
            assert str(getattr(load({}, {row.variable: "?"}), row.name)) == "?"
        else:
            with pytest.raises(ConfigError, match=f"{row.name}|{row.variable}"):
                load({}, {row.variable: "?"})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7092", ("127.0.0.1", 7092)),
        ("[::]:80", ("::", 80)),
        (":0", ("", 0)),
        ("host.example:1", ("host.example", 1)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_every_setting_is_described() -> None:
    rows = {row.name: row for row in describe()}
    topics = {name.replace(".", "_") for name in OF_BROKER}
    assert rows.keys() == {spec.name for spec in fields(ServerConfig) if spec.name != "topic_defaults"} | topics
    assert rows["log_retention_ms"].flag == "--log-retention-ms"
    assert (rows["log_retention_ms"].kind, rows["log_retention_ms"].default) == ("duration", "-1")
    assert rows["memory_bytes"].flag == "--memory-bytes"
    assert rows["memory_bytes"].variable == "KRAPPY_MEMORY_BYTES"
    assert rows["memory_bytes"].default == str(256 << 20)
    assert rows["durability"].kind == "fsync|os"
    assert all(row.doc for row in rows.values())


def test_defaults_of_topics_have_kafkas_names(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text('log.retention.ms = 5\nlog_segment_bytes = 1_000_000\nlog.cleanup.policy = "compact"\n')
    assert load({}, {}).topic_defaults == {}
    config = load(
        {"log_retention_bytes": "7"}, {"KRAPPY_LOG_RETENTION_MS": "6", "KRAPPY_COMPRESSION_TYPE": "zstd"}, file
    )
    assert config.topic_defaults == {
        "log.cleanup.policy": "compact",
        "log.retention.ms": "6",
        "log.segment.bytes": "1000000",
        "log.retention.bytes": "7",
        "compression.type": "zstd",
    }
    assert load(config.flat(), {}) == config


@pytest.mark.parametrize("name", sorted(OF_BROKER))
def test_every_default_of_topics_can_be_given(name: str, tmp_path: Path) -> None:
    default, ours = OF_BROKER[name].default, name.replace(".", "_")
    file = tmp_path / "krappy.toml"
    file.write_text(f'{name} = "{default}"\n')
    for config in (
        load({ours: default}, {}),
        load({}, {"KRAPPY_" + ours.upper(): default}),
        load({}, {}, file),
    ):
        assert config.topic_defaults == {name: default}
    with pytest.raises(ConfigError, match=f"the environment: KRAPPY_{ours.upper()} = "):
        load({}, {"KRAPPY_" + ours.upper(): "?"})


def test_every_default_of_topics_is_one_of_the_broker() -> None:
    """Except settings of single replicas, and those that may have one value only."""
    assert SETTINGS.keys() - {setting.name for setting in OF_BROKER.values()} == {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "remote.storage.enable",
    }


def test_defaults_of_topics_must_go_together(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the defaults of topics: max\.compaction\.lag\.ms is below"):
        load({"log_cleaner_max_compaction_lag_ms": 5, "log_cleaner_min_compaction_lag_ms": 6}, {})
    with pytest.raises(ConfigError, match="the nearest is 'KRAPPY_LOG_RETENTION_MS'"):
        load({}, {"KRAPPY_LOG_RETENTION_M": "1"})
    file = tmp_path / "krappy.toml"
    file.write_text("log.retention.ms = 5\nlog_retention_ms = 5\n")
    with pytest.raises(ConfigError, match="gives log_retention_ms twice"):
        load({}, {}, file)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"listen_native": "0.0.0.0:7092"}, "listen_native: other machines reach 0.0.0.0:7092"),
        ({"listen_kafka": "127.0.0.1:1,OUT://10.0.0.1:9092"}, "listen_kafka: other machines reach 10.0.0.1:9092"),
        ({"listen_native": "SSL://[::]:7092"}, "ssl_client_auth = required"),
        ({"listen_native": "SSL://broker.example:7092", "ssl_client_auth": "requested"}, "other machines"),
        ({"listen_native": "SASL_PLAINTEXT://0.0.0.0:1", "sasl_enabled_mechanisms": "PLAIN"}, "without TLS"),
        ({"listen_http": "SASL_PLAINTEXT://0.0.0.0:8092"}, "without TLS"),
    ],
)
def test_listeners_that_let_everybody_in_are_refused(settings: dict[str, str], why: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(settings, {})
    assert why in caught.value.text
    assert "insecure_listeners = allow" in caught.value.text
    load({**settings, "insecure_listeners": "allow"}, {})


@pytest.mark.parametrize(
    "settings",
    [
        {"listen_native": "SASL_SSL://0.0.0.0:7092", "listen_kafka": "SASL_SSL://0.0.0.0:9092"},
        {"listen_native": "SSL://0.0.0.0:7092", "ssl_client_auth": "required"},
        {"listen_native": "SASL_PLAINTEXT://0.0.0.0:7092"},  # SCRAM sends no password
        {"listen_http": "0.0.0.0:8092"},  # it answers probes alone
        {"listen_kafka": "A://127.0.0.1:1,B://0.0.0.0:2", "listener_security_protocol_map": "B:SASL_SSL"},
    ],
)
def test_listeners_where_clients_show_who_they_are(settings: dict[str, str]) -> None:
    load(settings, {})


def test_security_by_kafka_s_names(tmp_path: Path) -> None:
    file = tmp_path / "krappy.toml"
    file.write_text(
        """
        listeners = "IN://127.0.0.1:9092,OUT://0.0.0.0:9094"
        listener.security.protocol.map = "IN:PLAINTEXT,OUT:SASL_SSL"
        sasl.enabled.mechanisms = "SCRAM-SHA-256"
        ssl.keystore.location = "/etc/krappy/tls.pem"
        ssl.keystore.type = "PEM"
        ssl.client.auth = "requested"
        connections.max.reauth.ms = 60000
        """
    )
    config = load({}, {}, file)
    assert [(each.name, each.protocol) for each in config.kafka_listeners] == [("IN", "PLAINTEXT"), ("OUT", "SASL_SSL")]
    assert (config.tls_certificate, config.ssl_client_auth) == ("/etc/krappy/tls.pem", "requested")
    assert config.connections_max_reauth_ms == 60_000
    with pytest.raises(ConfigError, match="PEM"):
        load({"ssl_keystore_type": "JKS"}, {})
    for wrong in ("OUT", "OUT:TLS", ":SSL", "OUT:SSL,"):
        with pytest.raises(ConfigError, match="is not NAME:PROTOCOL"):
            load({"listener_security_protocol_map": wrong}, {})
    for wrong in ("OUT://127.0.0.1:1", "SSL://127.0.0.1:1,SSL://127.0.0.1:2", "SSL://A:1,B:2"):
        with pytest.raises(ConfigError):
            load({"listen_native": wrong}, {})
