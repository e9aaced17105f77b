"""The listeners of a broker: their names and addresses, as the settings `listen_kafka` and `advertised_listeners` give
them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import NamedTuple

from krappy.errors import ConfigError

PLAINTEXT = "PLAINTEXT"  # the name of a Kafka listener that is given none
PROTOCOLS = (PLAINTEXT, "SSL", "SASL_PLAINTEXT", "SASL_SSL")  # Kafka's security protocols: with TLS, and with users
NATIVE, HTTP = "NATIVE", "HTTP"  # the names under which a broker tells the cluster of its other listeners
_LISTENER = re.compile(r"(?:([A-Za-z][A-Za-z0-9_]*)://)?(.*)", re.DOTALL)


class ListenerSetting(NamedTuple):
    """`address`: HOST:PORT to bind to. `advertised`: HOST:PORT that clients are told; empty: the one they used.
    `protocol`: one of PROTOCOLS."""

    name: str
    address: str
    advertised: str
    protocol: str = PLAINTEXT

    @property
    def has_tls(self) -> bool:
        return self.protocol.endswith("SSL")

    @property
    def has_users(self) -> bool:
        """Whether its clients log in, by SASL or what their protocol has instead."""
        return self.protocol.startswith("SASL_")


def parse_address(text: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port"; an empty host is every interface. Raises ConfigError."""
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ConfigError("an IPv6 address needs brackets, as in [::1]:7092")
    if not colon or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigError("HOST:PORT is needed, such as 127.0.0.1:7092")
    return host, int(port)


def read_listeners(text: str) -> list[tuple[str, str]]:
    """(name, HOST:PORT) of each of "HOST:PORT" or "NAME://HOST:PORT,…", as Kafka writes them. Raises ValueError."""
    found: dict[str, str] = {}
    parts = text.split(",") if text else []
    for each in parts:
        match = _LISTENER.fullmatch(each.strip())
        assert match is not None
        name = (match[1] or PLAINTEXT).upper()
        if name in found:
            raise ValueError(
                f"two listeners are called {name}: write NAME://HOST:PORT, with a name of its own for each"
            )
        try:
            found[name] = checked_address(match[2])
        except ValueError as error:
            raise ValueError(f"'{each.strip():.80}': {error}" if len(parts) > 1 else str(error)) from None
    return list(found.items())


def read_listener(text: str) -> tuple[str, str]:
    """(security protocol, HOST:PORT) of "HOST:PORT" or "PROTOCOL://HOST:PORT". Raises ValueError."""
    [(protocol, address), *more] = read_listeners(text) or [("", "")]
    if protocol not in PROTOCOLS or more:
        raise ValueError(f"HOST:PORT is needed, or {', '.join(PROTOCOLS)} and :// before that")
    return protocol, address


def read_protocols(text: str) -> dict[str, str]:
    """The security protocol of each listener that NAME:PROTOCOL,NAME:PROTOCOL names. Raises ValueError."""
    found: dict[str, str] = {}
    for each in text.split(",") if text else []:
        name, _, protocol = (part.strip().upper() for part in each.partition(":"))
        if not name or protocol not in PROTOCOLS:
            raise ValueError(f"'{each.strip():.80}' is not NAME:PROTOCOL, with one of {', '.join(PROTOCOLS)}")
        found[name] = protocol
    return found


def protocol_of(name: str, protocols: Mapping[str, str]) -> str:
    """The security protocol of a listener: as the map has it; else its name, if that is a protocol; else PLAINTEXT."""
    return protocols.get(name, name if name in PROTOCOLS else PLAINTEXT)


def joined(listeners: list[tuple[str, str]]) -> str:
    return ",".join(address if name == PLAINTEXT else f"{name}://{address}" for name, address in listeners)


def checked_address(text: str) -> str:
    """Returns the text if it is HOST:PORT. Raises ValueError."""
    try:
        parse_address(text)
    except ConfigError as error:
        raise ValueError(error.text) from None
    return text


def on_loopback(host: str) -> bool:
    """Whether the host is this machine itself."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
