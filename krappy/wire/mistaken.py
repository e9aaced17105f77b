"""Peers that have come to the wrong port: which protocol they speak, and what they are told.

Only a peer's first bytes are looked at, and only when they are no request of the port's own protocol.
"""

from __future__ import annotations

HTTP = "HTTP"
# The first bytes of protocols that have no frames.
BEGINNINGS = {
    b"\x16\x03": "TLS",  # a greeting
    b"\x15\x03": "TLS",  # an alert
    b"SSH-": "SSH",
    **dict.fromkeys((b"GET ", b"POST", b"HEAD", b"PUT ", b"DELE", b"OPTI", b"PATC", b"CONN", b"PRI ", b"HTTP"), HTTP),
}
NATIVE = "Krappy's native protocol"
KAFKA = "Kafka's protocol"
KAFKA_FIRST = (3, 18)  # Metadata and ApiVersions: what a Kafka client asks first
# A record of TLS 1.0, as every version reads it (RFC 8446, section 5.1): the fatal alert handshake_failure.
TLS_ALERT = bytes([21, 3, 1, 0, 2, 2, 40])
ENOUGH = 9  # bytes that tell a protocol
MAPS = range(0x80, 0x90)  # the first byte of a small map of msgpack


def spoken(begin: bytes) -> str | None:
    """The protocol whose first bytes these are, if it is known."""
    for beginning, name in BEGINNINGS.items():
        if begin.startswith(beginning):
            return name
    return framed(begin[4:])


def framed(frame: bytes | memoryview) -> str | None:
    """The protocol of a frame, without its size: Kafka's begin with the number of an API and its version, those of
    Krappy's native protocol with a type of four bytes and a map."""
    first, second = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
    if first in KAFKA_FIRST and len(frame) >= 4 and second < 100:
        return KAFKA
    if first == 0 and 0 < second < 1000 and len(frame) > 4 and frame[4] in MAPS:
        return NATIVE
    return None


def told(name: str | None) -> str:
    """What is added to an error: the name of the other protocol."""
    return f": it looks like {name}, which is not spoken on this port" if name else ""


def answer(name: object, port: str) -> bytes:
    """An answer that a peer can read. `name`: the protocol that it speaks; `port`: that of the port which it came to.
    Empty if there is none."""
    if name == HTTP:
        return over_http(port)
    return TLS_ALERT if name == "TLS" else b""


def over_http(port: str) -> bytes:
    """The answer to HTTP on a port of another protocol."""
    text = f"This is the port of {port}. The console, which speaks HTTP, has another (listen_http; by default 8092).\n"
    head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: {len(text)}\r\n"
    return f"{head}Connection: close\r\n\r\n{text}".encode()
