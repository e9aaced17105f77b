"""What the broker reads of certificates (X.509, RFC 5280): when they are valid, and the names of their subjects."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime

# OpenSSL takes all three: `openssl x509 -trustout` writes the second, and old files have the third.
_PEM = re.compile(rb"-----BEGIN ((?:|TRUSTED |X509 )CERTIFICATE)-----(?P<data>[A-Za-z0-9+/=\s]+)-----END \1-----")
SEQUENCE, UTC_TIME, VERSION = 0x30, 0x17, 0xA0  # tags of DER
# The names of RFC 2253, section 2.3, by OpenSSL's names. Names that are not here are written as OpenSSL has them.
_SHORT = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
_ESCAPED = re.compile(r'[,+"\\<>;]|^[# ]| $')


def validity(pem: bytes) -> tuple[float, float]:
    """From when until when the first certificate of a PEM file is valid, in seconds since the epoch. Raises
    ValueError."""
    found = _PEM.search(pem)
    if found is None:
        raise ValueError("there is no certificate in it")
    try:
        return period(_first(b64decode(found["data"])))
    except (IndexError, ValueError):
        raise ValueError("its certificate can't be read") from None


def period(der: bytes) -> tuple[float, float]:
    """From when until when a certificate is valid, in seconds since the epoch. Raises ValueError."""
    try:
        certificate = _parts(der)
        signed = list(_elements(certificate[0][1]))
        if signed[0][0] == VERSION:
            del signed[0]
        (_, begin), (_, end) = kinds = list(_elements(signed[3][1]))  # after serial number, algorithm and issuer
        return _seconds(kinds[0][0], begin), _seconds(kinds[1][0], end)
    except (IndexError, ValueError, OverflowError):
        raise ValueError("a certificate can't be read") from None


def certificates(pem: bytes) -> list[bytes]:
    """The DER of each certificate of a PEM file that can be read."""
    found: list[bytes] = []
    for each in _PEM.finditer(pem):
        with suppress(ValueError, IndexError):
            found.append(_first(b64decode(each["data"])))
    return found


def _first(data: bytes) -> bytes:
    """The first element of DER. In a trusted certificate, what OpenSSL trusts it for comes behind that."""
    for _, content in _elements(data):
        return data[: 2 + (data[1] & 0x7F if data[1] & 0x80 else 0) + len(content)]
    raise ValueError


def _parts(data: bytes) -> Sequence[tuple[int, bytes]]:
    [(tag, content)] = _elements(data)
    if tag != SEQUENCE:
        raise ValueError
    return list(_elements(content))


def _elements(data: bytes) -> Iterable[tuple[int, bytes]]:
    """(tag, content) of each element of DER."""
    at = 0
    while at < len(data):
        tag, size = data[at], data[at + 1]
        at += 2
        if size & 0x80:
            count = size & 0x7F
            size, at = int.from_bytes(data[at : at + count], "big"), at + count
        if at + size > len(data):
            raise ValueError
        yield tag, data[at : at + size]
        at += size


def _seconds(tag: int, content: bytes) -> float:
    """The seconds since the epoch of a time in DER. Its year has two digits (1950 to 2049) or four (RFC 5280, section
    4.1.2.5)."""
    text = content.decode("ascii")
    if tag == UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp()


def distinguished_name(subject: Iterable[Iterable[tuple[str, str]]]) -> str:
    """The subject of a certificate, as ssl.SSLSocket.getpeercert gives it, by RFC 2253: "CN=ada,OU=pay,O=Acme"."""
    parts = ["+".join(f"{_SHORT.get(kind, kind)}={_escaped(value)}" for kind, value in each) for each in subject]
    return ",".join(reversed(parts))


def _escaped(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\\" + found[0], value)
