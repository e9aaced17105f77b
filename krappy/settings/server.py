"""The server's settings: defaults, then a TOML file, then `KRAPPY_…` environment variables, then flags.

A setting has one name everywhere: `memory_bytes` in the file, `KRAPPY_MEMORY_BYTES` in the environment,
`--memory-bytes` as a flag. Sizes are bytes and durations are milliseconds, as the names say; both are whole numbers, or
texts with a unit: "256M", "1.5GiB", "30s", "7d" (`units`). The file is one flat TOML table:

    data = "/var/lib/krappy"
    listen_native = "0.0.0.0:7092"    # "none": not served
    durability = "fsync"
    memory_bytes = "256M"

In the file a setting may also have Kafka's name (`advertised.listeners = "broker.example:9092"`), if Kafka has the same
setting: see `KAFKA_NAMES`. Defaults of topics have Kafka's names for them: `log.retention.ms` for a topic's
`retention.ms`, with _ for . outside of the file. All is read and checked once, at start; an unknown name is an error
that names the nearest known one.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from krappy.errors import ConfigError, InvalidConfig
from krappy.hosts import read_address
from krappy.settings import authorization, exposure, inter_broker, oauth, units, zookeeper
from krappy.settings.inter_broker import InterBrokerSettings
from krappy.settings.kafka_names import KAFKA_NAMES
from krappy.settings.listeners import (
    HTTP,
    NATIVE,
    ListenerSetting,
    checked_address,
    joined,
    on_loopback,
    parse_address,
    protocol_of,
    read_listener,
    read_listeners,
    read_protocols,
)
from krappy.settings.oauth import OauthSettings
from krappy.settings.security import SecuritySettings, check_audit_log
from krappy.settings.share import ShareSettings
from krappy.settings.spec import facts, is_secret, number, secret, setting
from krappy.settings.topic import TopicConfig
from krappy.settings.topic_table import OF_BROKER, inherited, nearest
from krappy.settings.zookeeper import ZooKeeperSettings

PREFIX = "KRAPPY_"
ENVIRONMENT = "the environment"
FLAGS = "the flags"
FILE_VARIABLE = "KRAPPY_CONFIG"  # names the TOML file
# Kubernetes gives every pod variables for each service of its namespace; for a service named "krappy" they begin
# like ours: KRAPPY_SERVICE_HOST, KRAPPY_PORT, KRAPPY_PORT_7092_TCP_ADDR.
_SERVICE_LINK = re.compile(
    r"KRAPPY_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
KINDS = {None: "number", units.BYTES: "size", units.MS: "duration", units.SECONDS: "duration"}
_WHOLE = re.compile(r"[+-]?[0-9](_?[0-9])*")
LEAST_TOKEN = 16  # characters
LISTEN = ("listen_native", "listen_kafka", "listen_http")
TOPICS = {name.replace(".", "_"): name for name in OF_BROKER}  # Kafka's names of topics' defaults, by ours
_FILE_NAMES = {**KAFKA_NAMES, **{kafka: name for name, kafka in TOPICS.items()}}


_ALIAS = re.compile(r"[._-][a-zA-Z0-9._-]{1,48}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig(OauthSettings, SecuritySettings, InterBrokerSettings, ZooKeeperSettings, ShareSettings):
    """Every setting of a broker, checked."""

    data: Path = field(default=Path("krappy-data"), metadata=facts("folder that holds everything the broker stores"))
    listen_native: str | None = setting("127.0.0.1:7092", "HOST:PORT of the native protocol, or none")
    listen_kafka: str | None = setting(
        "127.0.0.1:9092", "HOST:PORT of Kafka's protocol, or none; or several as NAME://HOST:PORT,NAME://HOST:PORT"
    )
    listen_http: str | None = setting("127.0.0.1:8092", "HOST:PORT of the console and its HTTP API, or none")
    listen_health: str = setting(
        "", "HOST:PORT that answers /healthz and /readyz alone, to everybody, without TLS; empty: none does"
    )
    console_token: str = secret(
        "secret of 16 or more characters that the console asks for; without it other machines only get the probes"
    )
    console_token_file: str = setting("", "file that holds the console_token, to keep it off the command line")
    advertised_listeners: str = setting(
        "",
        "HOST:PORT that Kafka clients are told to connect to; empty: the one they used; for each listener by name: "
        "NAME://HOST:PORT,NAME://HOST:PORT; NATIVE and HTTP are the names of the other two",
    )
    broker_id: int = number(0, "this broker's id, as Kafka clients see it", 0, 2**31 - 1)
    rack: str = setting("", "this broker's rack or zone, as Kafka clients see it")
    default_replication_factor: int = number(
        -1, "replicas of a topic whose creator gives no number; -1: 3, or as many as there are brokers", -1, 1000
    )
    replica_lag_time_max_ms: int = number(
        10_000, "ms after which a follower that does not keep up leaves the in-sync replicas", 2500, 2**31 - 1
    )
    auto_leader_rebalance_enable: bool = setting(
        True, "whether the controller gives partitions back to their first replicas, which are to lead them"
    )
    leader_imbalance_check_interval_seconds: int = number(
        300, "seconds between two looks of the controller at who leads what", 1, 2**31 - 1
    )
    leader_imbalance_per_broker_percentage: int = number(
        10, "a broker gets partitions back if others lead more than this % of those that it is to lead", 0, 100
    )
    durability: str = setting(
        "fsync",
        "when an event is acknowledged: fsync (it is on disk) or os (the operating system has it)",
        choices=("fsync", "os"),
    )
    memory_bytes: int = number(256 << 20, "bytes of requests in flight and replies waiting", low=1 << 20)
    max_frame_bytes: int = number(
        64 << 20, "bytes of the largest request; at most half of memory_bytes", low=1024, high=2**31 - 1
    )
    idle_timeout_ms: int = number(600_000, "ms after which a silent connection is closed; 0: never")
    max_connections: int = number(
        10_000,
        "most client connections at a time, and most at a listener of other brokers; HTTP has a limit of its own",
        low=1,
    )
    max_connections_per_ip: int = number(
        1000, "most connections from one address (IPv6: from one /64); this machine's own are not limited", low=1
    )
    max_connections_per_ip_overrides: str = setting(
        "", "ADDRESS:NUMBER,ADDRESS:NUMBER: addresses with a limit of their own in place of max_connections_per_ip"
    )
    auto_create_topics: bool = setting(True, "whether using a topic that does not exist creates it")
    default_partitions: int = number(1, "partitions of a topic whose creator gives no number", 1, 100_000)
    view_cache_bytes: int = number(64 << 20, "bytes of the view's block cache")
    view_memtable_bytes: int = number(64 << 20, "bytes of view entries in memory before they are flushed", 64 << 10)
    ballast_bytes: int = number(
        64 << 20,
        "bytes of disk reserved for a full disk, so that a start and deletions still work then; at most an eighth of "
        "the disk; 0: none",
    )
    table_file_bytes: int = number(4 << 30, "bytes of disk that cache the answers for TOPIC@latest")
    latest_alias: str = setting(
        "",
        "a second suffix for TOPIC@latest, such as .latest, for clients that allow no @; empty: none",
    )
    retention_check_ms: int = number(300_000, "ms between two checks for segments to delete or to compact", low=1)
    cleaner_backoff_ms: int = number(15_000, "ms between two checks for logs to compact", low=1)
    cleaner_io_max_bytes_per_second: int = number(
        0, "most bytes a second that compaction reads and writes together; 0: no limit"
    )
    scrub_interval_ms: int = number(
        604_800_000, "ms in which all logs are read once, to find damage that no reader has met; 0: never"
    )
    group_max_members: int = number(1000, "members of one group", 1, 1000)
    group_initial_rebalance_delay_ms: int = number(3000, "ms that a new Kafka group waits for more members", 0, 2**31)
    group_min_session_timeout_ms: int = number(6000, "shortest session timeout of a Kafka group member", 1, 2**31 - 1)
    group_max_session_timeout_ms: int = number(
        1_800_000, "longest session timeout of a Kafka group member", 1, 2**31 - 1
    )
    group_consumer_session_timeout_ms: int = number(
        45_000, "ms without a heartbeat after which a KIP-848 member is out", 1, 2**31 - 1
    )
    group_consumer_heartbeat_interval_ms: int = number(
        5_000, "ms between two heartbeats of a KIP-848 member", 1, 2**31 - 1
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        "in which direction a Kafka group with members may move between the classic protocol and KIP-848's",
        choices=("disabled", "upgrade", "downgrade", "bidirectional"),
    )
    offsets_retention_ms: int = number(
        604_800_000,
        "ms that the offsets of an empty Kafka group are kept, and after which an unused native group gives way to a "
        "new one if there is no room",
        low=1,
    )
    max_groups: int = number(
        50_000, "most native groups, and most Kafka groups; with ACLs, half for one user alone", low=1
    )
    max_transactional_ids: int = number(
        20_000, "most transactional ids that are remembered; with ACLs, half for one user alone", low=1
    )
    transactional_id_expiration_ms: int = number(
        604_800_000, "ms after which an unused transactional id is forgotten", low=1
    )
    transaction_max_timeout_ms: int = number(900_000, "longest timeout of a transaction", 1, 2**31 - 1)
    transaction_state_log_num_partitions: int = number(
        50, "partitions of __transaction_state; it counts when a cluster makes that topic", 1, 1000
    )
    transaction_state_log_replication_factor: int = number(
        -1, "replicas of __transaction_state in a cluster; -1: as default_replication_factor", -1, 1000
    )
    transaction_state_log_min_isr: int = number(
        2,
        "replicas in sync that a write to __transaction_state needs; it counts when a cluster makes that topic",
        1,
        1000,
    )
    staging_bytes: int = number(
        16 << 30,
        "bytes of disk that staged writes may take before they are committed; with ACLs, half for one user alone",
        1,
    )
    staging_outcome_ms: int = number(604_800_000, "ms for which a staged job's outcome is remembered", low=1)
    producer_id_expiration_ms: int = number(
        86_400_000, "ms after which an idle producer's sequence is forgotten; none is so soon after a start", 1
    )
    log_level: str = setting("info", "least level logged", choices=("debug", "info", "warning", "error"))
    log_format: str = setting(
        "auto", "console, json, or auto: console on a terminal", choices=("auto", "json", "console")
    )
    topic_defaults: Mapping[str, str] = field(default_factory=dict)  # given settings of `OF_BROKER`, Kafka's names

    @property
    def kafka_listeners(self) -> tuple[ListenerSetting, ...]:
        """The listeners of Kafka's protocol. Raises ConfigError when advertised_listeners names one that does not
        exist."""
        protocols = read_protocols(self.listener_security_protocol_map)
        told = dict(read_listeners(self.advertised_listeners))
        told.pop(NATIVE, None)
        told.pop(HTTP, None)
        found = tuple(
            ListenerSetting(name, address, told.pop(name, ""), protocol_of(name, protocols))
            for name, address in read_listeners(self.listen_kafka or "")
        )
        if told and found:
            names = ", ".join(each.name for each in found)
            raise ConfigError(
                f"advertised_listeners tells of {', '.join(told)}, and the listeners of listen_kafka are {names}",
                setting="advertised_listeners",
            )
        return found

    @property
    def inter_broker_listener(self) -> ListenerSetting:
        """The listener at which brokers of a cluster reach each other. Raises ConfigError."""
        return inter_broker.find(self.kafka_listeners, self)

    def listener(self, name: str) -> ListenerSetting | None:
        """The listener NATIVE or HTTP; None if it is not served."""
        given = self.listen_native if name == NATIVE else self.listen_http
        if given is None:
            return None
        protocol, address = read_listener(given)
        return ListenerSetting(name, address, dict(read_listeners(self.advertised_listeners)).get(name, ""), protocol)

    @property
    def listeners(self) -> tuple[ListenerSetting, ...]:
        """All listeners that are served."""
        others = (self.listener(NATIVE), self.listener(HTTP))
        return (*self.kafka_listeners, *(each for each in others if each is not None))

    @property
    def authenticates(self) -> bool:
        certificates = self.ssl_client_auth != "none"
        return any(each.has_users or (each.has_tls and certificates and each.name != HTTP) for each in self.listeners)

    @property
    def takes_tokens(self) -> bool:
        """Whether users may log in with tokens at a listener."""
        return self.has_mechanism("OAUTHBEARER") and any(each.has_users for each in self.listeners)

    @property
    def needs_tokens(self) -> bool:
        """Whether tokens of an identity provider are checked."""
        return self.takes_tokens or bool(self.console_oidc_client_id)

    def flat(self) -> dict[str, Any]:
        """Every setting by its name, as `load` takes them."""
        topics = {name: self.topic_defaults[kafka] for name, kafka in TOPICS.items() if kafka in self.topic_defaults}
        return {**{name: getattr(self, name) for name in SPECS}, **topics}

    @property
    def overrides_of_connections_per_ip(self) -> dict[str, int]:
        """The connection limits of single addresses, by address."""
        return _read_overrides(self.max_connections_per_ip_overrides)

    @property
    def console_is_local(self) -> bool:
        """Whether only this machine reaches the console."""
        http = self.listener(HTTP)
        return http is None or on_loopback(parse_address(http.address)[0])


_OF_PARTS = (ShareSettings, ZooKeeperSettings, InterBrokerSettings, SecuritySettings, OauthSettings)
_PARTS = {spec.name for part in _OF_PARTS for spec in fields(part)}
SPECS = {
    spec.name: spec for spec in sorted(fields(ServerConfig), key=lambda spec: spec.name in _PARTS) if spec.metadata
}


def load(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    file: Path | None = None,
    flag: Callable[[str], str] = lambda name: name,
) -> ServerConfig:
    """The settings in force.

    `flags`: what the command line or the program gave, by name; None counts as not given. `environ`: usually
    os.environ. `file`: the TOML file; None takes the one that KRAPPY_CONFIG names, if any. `flag`: how errors write the
    name of a setting that a flag gives. Raises ConfigError that names the setting and where it was given.
    """
    if file is None and environ.get(FILE_VARIABLE):
        file = Path(environ[FILE_VARIABLE])
    values: dict[str, Any] = {}
    topics: dict[str, str] = {}
    written = _variables(environ)
    for source, given in (
        (str(file), _from_file(file)),
        (ENVIRONMENT, {name: environ[variable] for name, variable in written.items()}),
        (FLAGS, {name: value for name, value in flags.items() if value is not None}),
    ):
        for name, value in given.items():
            try:
                if name in TOPICS:
                    topics[TOPICS[name]] = OF_BROKER[TOPICS[name]].read(value)
                elif name in SPECS:
                    values[name] = _read(SPECS[name], value)
                elif source == ENVIRONMENT:
                    near = nearest(name, {**SPECS, **TOPICS}, lambda near: PREFIX + near.upper())
                    raise ConfigError(f"{source}: there is no setting '{written[name]:.80}'{near}", setting=name)
                else:
                    near = nearest(name, {**SPECS, **TOPICS})
                    raise ConfigError(f"{source}: there is no setting '{name!s:.80}'{near}", setting=name)
            except ValueError as error:
                given_as = "…" if name in SPECS and is_secret(SPECS[name]) else f"{value!r:.80}"
                shown = written[name] if source == ENVIRONMENT else flag(name) if source == FLAGS else name
                raise ConfigError(f"{source}: {shown} = {given_as}: {error}", setting=name) from None
    try:
        TopicConfig.parse(inherited(topics))
    except InvalidConfig as error:
        raise ConfigError(f"the defaults of topics: {error.text}", **error.details) from None
    if values.get("console_token_file"):
        values["console_token"] = _token_of(values["console_token_file"], values.get("console_token", ""))
    config = ServerConfig(**values, topic_defaults=topics)
    _ = config.kafka_listeners, config.zookeeper
    if config.zookeeper_connect and not config.kafka_listeners:
        raise ConfigError("zookeeper_connect: brokers of a cluster reach each other by Kafka's protocol: listen_kafka")
    exposure.check(config.listeners, config)
    http = config.listener(HTTP)
    oauth.check(config, tokens=config.takes_tokens, console_has_users=http is not None and http.has_users)
    if config.zookeeper_connect:
        inter_broker.check(config.inter_broker_listener, config, config)
        zookeeper.check(config, insecure=config.insecure_listeners == "allow")
    if config.latest_alias and not _ALIAS.fullmatch(config.latest_alias):
        raise ConfigError(
            f"latest_alias = {config.latest_alias!r:.80}: a . _ or - is needed, then 1 to 48 letters, digits or . _ -",
            setting="latest_alias",
        )
    return config


def _token_of(file: str, given: str) -> str:
    """The token in the file. Raises ConfigError, also if another one is `given`."""
    name = "console_token_file"
    try:
        token = Path(file).read_text("utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name}: {file} can't be read: {error}", setting=name) from None
    if not token:
        raise ConfigError(f"{name}: {file} is empty", setting=name)
    if given not in ("", token):
        raise ConfigError(f"console_token and {name} are both given, and differ", setting=name)
    return str(_read(SPECS["console_token"], token))


def default_of(name: str) -> tuple[Any, str]:
    """(default, description) of a setting."""
    spec = SPECS[name]
    return spec.default, str(spec.metadata["doc"])


def read_value(name: str, value: Any) -> Any:
    """A setting's value in its own type. Raises ValueError that says what is needed."""
    return _read(SPECS[name], value)


def _from_file(file: Path | None) -> dict[str, Any]:
    if file is None:
        return {}
    try:
        return _flat(tomllib.loads(file.read_text("utf-8")))
    except OSError as error:
        raise ConfigError(f"the settings file {file} can't be read: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError
        raise ConfigError(f"the settings file {file} is not TOML: {error}") from None


def _flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The settings by our names. Joins dotted names, which TOML reads as nested tables. Raises ConfigError."""
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = prefix + key
        for inner, given in (_flat(value, name + ".") if isinstance(value, dict) else {name: value}).items():
            ours = _FILE_NAMES.get(inner, inner)
            if ours in found:
                raise ConfigError(f"the settings file gives {ours} twice, once by another name", setting=ours)
            found[ours] = given
    return found


def _variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings that the environment gives: by the setting's name, the variable's name as it is written there."""
    return {
        name.removeprefix(PREFIX).lower(): name
        for name in environ
        if name.startswith(PREFIX) and name != FILE_VARIABLE and not _SERVICE_LINK.fullmatch(name)
    }


def kind_of(spec: Field[Any]) -> str:
    """What a setting takes, in a word."""
    if spec.metadata["low"] is not None:
        return KINDS[units.of(spec.name)]
    return {"Path": "path", "bool": "true|false"}.get(str(spec.type), "text")


def _read(spec: Field[Any], value: Any) -> Any:
    """The value in its own type. Raises ValueError, or ConfigError with the complete message."""
    kind, choices = kind_of(spec), spec.metadata["choices"]
    if spec.metadata["low"] is not None:
        return _read_number(value, spec.metadata["low"], spec.metadata["high"], units.of(spec.name))
    if kind == "true|false":
        text = str(value).strip().lower()
        if text not in ("true", "false"):
            raise ValueError("true or false is needed")
        return text == "true"
    if kind == "path":
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError("the path of a folder is needed")
        return Path(value)
    if not isinstance(value, str):
        raise ValueError("text is needed")
    if spec.name == "authorizer":
        value = authorization.read_authorizer(value)
    if choices is not None and value not in choices:
        raise ValueError("one of " + ", ".join(choices) + " is needed")
    if spec.name in LISTEN and value in ("", "none"):
        return None
    if spec.name == "listen_health":
        return "" if value in ("", "none") else checked_address(value)
    if spec.name == "listen_kafka":
        listeners = read_listeners(value)
        if taken := {NATIVE, HTTP} & {name for name, _ in listeners}:
            raise ValueError(f"{', '.join(taken)}: a listener of this name is not Kafka's; choose another name")
        return joined(listeners)
    if spec.name in LISTEN:
        return joined([read_listener(value)])
    if spec.name == "listener_security_protocol_map":
        read_protocols(value)
    if spec.name == "console_token" and value and not (len(value) >= LEAST_TOKEN and value.isascii()):
        raise ConfigError(f"console_token needs at least {LEAST_TOKEN} characters, all ASCII", setting=spec.name)
    if spec.name == "audit_log":
        check_audit_log(value)
    if spec.name == "super_users":
        authorization.read_super_users(value)
    if spec.name == "max_connections_per_ip_overrides":
        _read_overrides(value)
    if spec.name == "advertised_listeners" and value:
        told = read_listeners(value)
        for _, address in told:
            host, port = parse_address(address)
            if host in ("", "0.0.0.0", "::") or not port:
                raise ValueError(f"clients can't connect to {address}: a host name or address and a port are needed")
        return joined(told)
    return value


def _read_overrides(text: str) -> dict[str, int]:
    """Limits by address, of ADDRESS:NUMBER,ADDRESS:NUMBER. Raises ValueError."""
    found: dict[str, int] = {}
    for each in text.split(",") if text else []:
        host, _, number = each.strip().rpartition(":")
        try:
            address = read_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise ValueError(f"'{each:.80}' is not ADDRESS:NUMBER") from None
        found[address] = _read_number(number, 0, 2**31 - 1)
    return found


def _read_number(value: Any, low: int, high: int, unit: str | None = None) -> int:
    value = units.read(value, unit)
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if type(value) is not int:
        raise ValueError(f"{units.needed(unit)} is needed")
    if not low <= value <= high:
        raise ValueError(f"at least {low} is needed" if value < low else f"at most {high} is allowed")
    return value
