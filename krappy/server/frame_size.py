"""The size field of a frame, the same in both protocols, and the errors for a wrong size."""

from __future__ import annotations

import struct

from krappy.errors import FrameTooLarge, ProtocolError

SIZE = struct.Struct(">I")  # unsigned: a negative one is too large
# The first bytes of other protocols, which clients speak to this port by mistake.
OTHERS = {b"\x16\x03": "TLS", b"GET ": "HTTP", b"POST": "HTTP", b"HEAD": "HTTP", b"SSH-": "SSH"}


def refusal(size: int, least: int, limit: int) -> ProtocolError | FrameTooLarge:
    """The error for a size that is not between `least` and `limit`."""
    if size < least:
        return ProtocolError(f"a frame of size {size}: at least {least} bytes are needed")
    spoken = next((name for begin, name in OTHERS.items() if SIZE.pack(size).startswith(begin)), None)
    looks = f": it looks like {spoken}, which is not spoken on this port" if spoken else ""
    return FrameTooLarge(f"a frame of {size} bytes; the limit is {limit}{looks}", limit=limit)
