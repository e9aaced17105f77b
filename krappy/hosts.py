"""IP addresses as the broker knows and compares them: each in one form, however it was written or came in."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


def read_address(text: str) -> str:
    """An address in its one form, the shortest. An IPv4 address that a listener for IPv6 shows as ::ffff:10.0.0.7 (RFC
    4291, section 2.5.5.2) becomes plain IPv4. Raises ValueError when it is none."""
    found = ipaddress.ip_address(text)
    return str(getattr(found, "ipv4_mapped", None) or found)


def is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


@lru_cache(4096)
def plain(host: str) -> str:
    """As `read_address`; a text that is no address stays as it is."""
    try:
        return read_address(host)
    except ValueError:
        return host


@lru_cache(4096)
def network(host: str) -> str:
    """The network that stands for the owner of an address: whoever has one IPv6 address has all with the same first 64
    bits (RFC 4291, section 2.5.4). An IPv4 address, or a text that is no address, stands for itself."""
    try:
        address = ipaddress.ip_address(plain(host.partition("%")[0]))
    except ValueError:
        return host
    return str(ipaddress.ip_network((address, 64), strict=False)) if address.version == 6 else str(address)


def written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_of(client: str) -> str:
    """The host in a text that `written` has made."""
    return client.rpartition(":")[0].strip("[]")
