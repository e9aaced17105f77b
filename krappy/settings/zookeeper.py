"""The settings of the ZooKeeper of a broker's cluster."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from krappy.errors import ConfigError
from krappy.settings.inter_broker import read_secret
from krappy.settings.listeners import on_loopback, parse_address
from krappy.settings.spec import number, secret, setting

# Kafka's names of these settings (3.x).
ZOOKEEPER_NAMES = {
    "zookeeper.connect": "zookeeper_connect",
    "zookeeper.session.timeout.ms": "zookeeper_session_timeout_ms",
    "zookeeper.set.acl": "zookeeper_set_acl",
    "zookeeper.ssl.client.enable": "zookeeper_ssl_client_enable",
    "zookeeper.ssl.endpoint.identification.algorithm": "zookeeper_ssl_endpoint_identification_algorithm",
    "zookeeper.ssl.keystore.location": "zookeeper_ssl_keystore_location",
    "zookeeper.ssl.truststore.location": "zookeeper_ssl_truststore_location",
}
CHROOT, PORT = "/krappy", 2181
_HOST = re.compile(r"[A-Za-z0-9._:-]+")


@dataclass(frozen=True, kw_only=True)  # no slots: only one base of ServerConfig may have them
class ZooKeeperSettings:
    """The part of a broker's settings that concerns ZooKeeper."""

    zookeeper_connect: str = setting(
        "",
        "HOST:PORT,HOST:PORT/PATH: the ZooKeeper of the cluster that this broker joins; empty: it is alone. The path "
        "is /krappy if none is given",
    )
    zookeeper_session_timeout_ms: int = number(
        6000, "ms without a word after which ZooKeeper ends this broker's session", 4000, 2**31 - 1
    )
    zookeeper_user: str = setting("", "the user as whom this broker shows itself to ZooKeeper (its scheme digest)")
    zookeeper_password: str = secret("password of zookeeper_user")
    zookeeper_password_file: str = setting("", "file that holds the zookeeper_password")
    zookeeper_set_acl: bool = setting(
        False,
        "whether only zookeeper_user may change the cluster's znodes, and read the credentials of users; znodes that "
        "are there already are protected, too",
    )
    zookeeper_ssl_client_enable: bool = setting(False, "whether connections to ZooKeeper have TLS")
    zookeeper_ssl_truststore_location: str = setting(
        "", "PEM file of the authorities that may vouch for ZooKeeper; empty: those of the system"
    )
    zookeeper_ssl_keystore_location: str = setting(
        "", "PEM file of the certificate that this broker shows to ZooKeeper, and its key; empty: none"
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        "https",
        "https: ZooKeeper's certificate has to be for the host of zookeeper_connect; empty: any certificate of a "
        "trusted authority will do",
        choices=("https", ""),
    )

    @property
    def zookeeper(self) -> tuple[list[tuple[str, int]], str]:
        """(host and port of each server, the path below which the cluster's znodes are); no servers: the broker is
        alone. Raises ConfigError."""
        if not self.zookeeper_connect:
            return [], ""
        servers, slash, path = self.zookeeper_connect.partition("/")
        path = "/" + path.strip("/") if slash else CHROOT
        if "//" in path:
            raise ConfigError(f"zookeeper_connect: '{path:.80}' is no path of a znode", setting="zookeeper_connect")
        try:
            found = [parse_address(each if ":" in each else f"{each}:{PORT}") for each in servers.split(",")]
        except ConfigError as error:
            raise ConfigError(f"zookeeper_connect: {error.text}", setting="zookeeper_connect") from None
        if wrong := [host for host, _ in found if not _HOST.fullmatch(host)]:
            raise ConfigError(f"zookeeper_connect: '{wrong[0]:.80}' is no host", setting="zookeeper_connect")
        return found, path


def read_login(settings: ZooKeeperSettings) -> Sequence[tuple[str, bytes]]:
    """What ZooKeeper's scheme digest takes, if there is a user. Raises ConfigError."""
    if not settings.zookeeper_user:
        return ()
    password = read_secret("zookeeper_password", settings.zookeeper_password, settings.zookeeper_password_file)
    return [("digest", f"{settings.zookeeper_user}:{password}".encode())]


def check(settings: ZooKeeperSettings, *, insecure: bool) -> None:
    """Raises ConfigError. `insecure`: passwords may be sent without TLS."""
    servers, _ = settings.zookeeper
    if ":" in settings.zookeeper_user:
        raise ConfigError("zookeeper_user: a name has no ':' in it", setting="zookeeper_user")
    if any(secret.endswith(b":") for _, secret in read_login(settings)):
        raise ConfigError(
            "zookeeper_password_file: zookeeper_user needs a password, in this file or as KRAPPY_ZOOKEEPER_PASSWORD",
            setting="zookeeper_password_file",
        )
    if settings.zookeeper_set_acl and not settings.zookeeper_user:
        raise ConfigError(
            "zookeeper_set_acl: without zookeeper_user there is nobody who may change the znodes then",
            setting="zookeeper_set_acl",
        )
    far = [host for host, _ in servers if not on_loopback(host)]
    if settings.zookeeper_user and far and not settings.zookeeper_ssl_client_enable and not insecure:
        raise ConfigError(
            f"zookeeper_user: its password would be sent to {far[0]} without TLS: set zookeeper_ssl_client_enable = "
            "true; or say insecure_listeners = allow, if the network itself keeps others out",
            setting="zookeeper_user",
        )
