"""How both protocols frame: four bytes of size, then as much; and what is said of a size that may not be."""

from __future__ import annotations

import struct

from krappy.errors import FrameTooLarge, ProtocolError

SIZE = struct.Struct(">I")  # unsigned: a negative one is too large
# How other protocols begin, that people bring to this port by mistake.
OTHERS = {b"\x16\x03": "TLS", b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"SSH-": "SSH"}


def refusal(size: int, least: int, limit: int) -> ProtocolError | FrameTooLarge:
    """What to raise for a size outside `least` to `limit`."""
    if size < least:
        return ProtocolError(f"a frame of size {size}: at least {least} bytes are needed")
    spoken = next((name for begin, name in OTHERS.items() if SIZE.pack(size).startswith(begin)), None)
    looks = f": it looks like {spoken}, which is not spoken on this port" if spoken else ""
    return FrameTooLarge(f"a frame of {size} bytes; the limit is {limit}{looks}", limit=limit)
