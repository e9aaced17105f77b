"""The settings of how brokers of a cluster reach each other, and the checks that they can and may."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from krappy.errors import ConfigError
from krappy.settings.listeners import PROTOCOLS, ListenerSetting
from krappy.settings.security import SecuritySettings
from krappy.settings.spec import secret, setting

# Kafka's names of these settings.
INTER_BROKER_NAMES = {
    "inter.broker.listener.name": "inter_broker_listener_name",
    "sasl.mechanism.inter.broker.protocol": "sasl_mechanism_inter_broker_protocol",
    "security.inter.broker.protocol": "security_inter_broker_protocol",
    "ssl.endpoint.identification.algorithm": "ssl_endpoint_identification_algorithm",
}
ANONYMOUS = "User:ANONYMOUS"
OAUTHBEARER = "OAUTHBEARER"


@dataclass(frozen=True, kw_only=True)  # no slots: only one base of ServerConfig may have them
class InterBrokerSettings:
    """The part of a broker's settings that concerns the links to other brokers of its cluster."""

    inter_broker_listener_name: str = setting(
        "", "the Kafka listener at which brokers of a cluster reach each other; empty: the first one"
    )
    security_inter_broker_protocol: str = setting(
        "",
        "in place of inter_broker_listener_name: the first Kafka listener that has this security protocol",
        choices=("", *PROTOCOLS),
    )
    sasl_mechanism_inter_broker_protocol: str = setting(
        "SCRAM-SHA-512",
        "how this broker logs in at others, if their listener has users",
        choices=("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", OAUTHBEARER),
    )
    inter_broker_user: str = setting("", "the user as whom this broker logs in at others")
    inter_broker_password: str = secret("password of inter_broker_user")
    inter_broker_password_file: str = setting(
        "", "file that holds the inter_broker_password; it is read for each connection"
    )
    inter_broker_token_file: str = setting(
        "",
        "file that holds a token of the identity provider, with which this broker logs in at others by OAUTHBEARER; it "
        "is read for each login",
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "https: another broker's certificate has to be for the host that it advertises; empty: any "
        "certificate of a trusted authority will do",
        choices=("https", ""),
    )


def find(listeners: Sequence[ListenerSetting], settings: InterBrokerSettings) -> ListenerSetting:
    """The listener at which brokers reach each other. Raises ConfigError when there is none."""
    name, protocol = settings.inter_broker_listener_name.upper(), settings.security_inter_broker_protocol
    if name and protocol:
        raise ConfigError(
            "inter_broker_listener_name and security_inter_broker_protocol both choose the listener for other brokers: "
            "set one of them",
            setting="inter_broker_listener_name",
        )
    found = next((each for each in listeners if name in ("", each.name) and protocol in ("", each.protocol)), None)
    if found is None:
        chosen = "inter_broker_listener_name" if name else "security_inter_broker_protocol"
        there = ", ".join(f"{each.name} ({each.protocol})" for each in listeners)
        raise ConfigError(
            f"{chosen}: no listener of listen_kafka is {name or protocol}; there are {there}", setting=chosen
        )
    return found


def check(listener: ListenerSetting, own: InterBrokerSettings, settings: SecuritySettings) -> None:
    """Raises ConfigError when brokers could not reach each other at the listener, or would not be allowed to."""
    if listener.has_users:
        _check_login(listener, own, settings)
        return
    is_known = listener.has_tls and settings.ssl_client_auth != "none"
    is_open = ANONYMOUS in settings.super_user_names or settings.allow_everyone_if_no_acl_found
    if settings.authorizes and not is_known and not is_open:
        raise ConfigError(
            f"inter_broker_listener_name: other brokers come by {listener.name}, where nobody says who he is, and ACLs "
            "are in force: they would be refused. Name a listener of SASL_SSL, with inter_broker_user; or one of SSL, "
            f"with ssl_client_auth = required. In a network that keeps others out, super_users = {ANONYMOUS} lets them "
            "in",
            setting="inter_broker_listener_name",
        )


def _check_login(listener: ListenerSetting, own: InterBrokerSettings, settings: SecuritySettings) -> None:
    mechanism = own.sasl_mechanism_inter_broker_protocol
    if not settings.has_mechanism(mechanism):
        raise ConfigError(
            f"sasl_mechanism_inter_broker_protocol: {mechanism} is not among the sasl_enabled_mechanisms, so other "
            "brokers would refuse this one",
            setting="sasl_mechanism_inter_broker_protocol",
        )
    if (mechanism == OAUTHBEARER) != bool(own.inter_broker_token_file):
        raise ConfigError(
            f"inter_broker_token_file: {OAUTHBEARER} as sasl_mechanism_inter_broker_protocol needs it, and no other "
            "mechanism does",
            setting="inter_broker_token_file",
        )
    if mechanism == OAUTHBEARER:
        if not read_token(own):
            raise ConfigError(
                f"inter_broker_token_file: {own.inter_broker_token_file} is empty", setting="inter_broker_token_file"
            )
        return
    if not own.inter_broker_user:
        raise ConfigError(
            f"inter_broker_user: brokers log in at each other's listener {listener.name}: set inter_broker_user, and "
            "inter_broker_password_file",
            setting="inter_broker_user",
        )
    if not read_password(own):
        raise ConfigError(
            "inter_broker_password_file: inter_broker_user needs a password, in this file or as "
            "KRAPPY_INTER_BROKER_PASSWORD",
            setting="inter_broker_password_file",
        )


def read_password(own: InterBrokerSettings) -> str:
    """The password of this broker's user, as it is now. Raises ConfigError when its file can't be read."""
    return read_secret("inter_broker_password", own.inter_broker_password, own.inter_broker_password_file)


def read_token(own: InterBrokerSettings) -> str:
    """The token of this broker, as it is now. Raises ConfigError when its file can't be read."""
    return read_secret("inter_broker_token", "", own.inter_broker_token_file).strip()


def read_secret(name: str, given: str, file: str) -> str:
    """The secret of a setting `name`: as given, or from the file of the setting NAME_file. Raises ConfigError."""
    if not file:
        return given
    if given:
        raise ConfigError(f"{name}_file: {name} is given as well; set one of them", setting=f"{name}_file")
    try:
        return Path(file).read_text("utf-8").rstrip("\r\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "no UTF-8"
        raise ConfigError(f"{name}_file: {file} can't be read: {why}", setting=f"{name}_file") from None
