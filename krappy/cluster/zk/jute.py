"""ZooKeeper's wire format, jute: requests to bytes, and answers from bytes.

A frame is a u32 length and that many bytes. Numbers are big-endian; a buffer or a text is an i32 length and its bytes,
and the length -1 stands for none. The records are those of zookeeper.jute in ZooKeeper's sources (3.9), the numbers
those of ZooDefs.java, KeeperException.java and Watcher.java.
"""

from __future__ import annotations

import hashlib
import struct
from base64 import b64encode
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NamedTuple

from krappy.core.cluster.tree import Check, Create, Delete, Operation, Put, Refusal, Znode
from krappy.errors import ProtocolError

MAX_FRAME = 64 << 20  # bytes; the children of a very large znode take some MiB
HEADER = struct.Struct(">ii")  # of a request: xid, opcode
REPLY = struct.Struct(">iqi")  # of an answer: xid, zxid, error
_INT, _LONG = struct.Struct(">i"), struct.Struct(">q")
_MULTI = struct.Struct(">i?i")  # before each part of a multi: opcode, whether it is the end, error
_STAT = struct.Struct(">qqqqiiiqiiq")


class Opcode(IntEnum):
    CREATE = 1
    DELETE = 2
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    SYNC = 9
    PING = 11
    GET_CHILDREN = 12  # getChildren2, whose answer has the znode's stat too
    CHECK = 13
    MULTI = 14
    AUTH = 100
    ADD_WATCH = 106
    CLOSE = -11
    ERROR = -1


class Xid(IntEnum):
    """Numbers of requests that have a meaning of their own. All other requests are numbered from 1."""

    EVENT = -1
    PING = -2
    AUTH = -4


class ErrorCode(IntEnum):
    """Errors that this client tells from others."""

    OK = 0
    RUNTIME_INCONSISTENCY = -2  # of a part of a multi: not done, as an earlier part was refused
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    AUTH_FAILED = -115
    SESSION_MOVED = -118


REFUSALS = {
    ErrorCode.NO_NODE: Refusal.NO_NODE,
    ErrorCode.BAD_VERSION: Refusal.BAD_VERSION,
    ErrorCode.NO_CHILDREN_FOR_EPHEMERALS: Refusal.NO_CHILDREN_FOR_EPHEMERALS,
    ErrorCode.NODE_EXISTS: Refusal.NODE_EXISTS,
    ErrorCode.NOT_EMPTY: Refusal.NOT_EMPTY,
}


class ConnectAnswer(NamedTuple):
    """The answer to Connect. `timeout_ms`: what the server granted; 0 or less: the session has ended."""

    timeout_ms: int
    session: int
    password: bytes


class WatchEvent(NamedTuple):
    """A watched znode changed. `kind`: 1 created, 2 deleted, 3 its data changed, 4 its children changed."""

    kind: int
    path: str


class Stat(NamedTuple):
    """What ZooKeeper keeps of a znode beside its data. `owner`: the session of an ephemeral znode, or 0."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    children_version: int
    acl_version: int
    owner: int
    data_length: int
    children: int
    pzxid: int


class JuteReader:
    """Reads one frame. Each method raises ProtocolError when the frame ends too early or has an impossible length."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._at = 0

    def take(self, size: int) -> memoryview:
        if not 0 <= size <= len(self._data) - self._at:
            raise ProtocolError(f"ZooKeeper sent a frame of {len(self._data)} bytes that ends in the middle of a field")
        self._at += size
        return self._data[self._at - size : self._at]

    def number(self) -> int:
        [found] = _INT.unpack(self.take(_INT.size))
        return int(found)

    def long(self) -> int:
        [found] = _LONG.unpack(self.take(_LONG.size))
        return int(found)

    def buffer(self) -> bytes:
        """Empty for none."""
        size = self.number()
        return b"" if size == -1 else bytes(self.take(size))

    def text(self) -> str:
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise ProtocolError(f"ZooKeeper sent a text that is not UTF-8: {error}") from error

    def texts(self) -> list[str]:
        return [self.text() for _ in range(max(0, self.number()))]

    def stat(self) -> Stat:
        return Stat(*_STAT.unpack(self.take(_STAT.size)))

    def reply(self) -> tuple[int, int, int]:
        """(xid, zxid, error)."""
        xid, zxid, error = REPLY.unpack(self.take(REPLY.size))
        return xid, zxid, error

    def connected(self) -> ConnectAnswer:
        """The answer to Connect. Its last field (whether the server is read-only) is not read: older ones lack it."""
        self.number()
        return ConnectAnswer(self.number(), self.long(), self.buffer())

    def event(self) -> WatchEvent:
        kind, _ = self.number(), self.number()  # the other is the session's state
        return WatchEvent(kind, self.text())

    def znode(self) -> Znode:
        """The answer to GetData."""
        data, stat = self.buffer(), self.stat()
        return Znode(data, stat.version, stat.owner)

    def permissions_of_all(self) -> int:
        """What everybody may do to a znode, in the answer to GetACL: bits, of which 1 is to read it."""
        found = 0
        for _ in range(max(0, self.number())):
            permissions, scheme, id = self.number(), self.text(), self.text()
            if (scheme, id) == ("world", "anyone"):
                found |= permissions
        return found

    def part(self) -> tuple[int, int] | None:
        """(opcode, error) before the next part of a multi's answer; None at its end."""
        opcode, done, error = _MULTI.unpack(self.take(_MULTI.size))
        return None if done else (opcode, error)

    def parts(self) -> list[int]:
        """The answer to a multi: the error of each part, ErrorCode.OK for what was done."""
        found = []
        while (part := self.part()) is not None:
            opcode, error = part
            if opcode == Opcode.ERROR:
                error = self.number()
            elif opcode == Opcode.CREATE:
                self.text()
            elif opcode == Opcode.SET_DATA:
                self.stat()
            elif opcode not in (Opcode.DELETE, Opcode.CHECK):
                raise ProtocolError(f"ZooKeeper answered a multi with the unknown opcode {opcode}")
            found.append(error)
        return found


def framed(*parts: bytes) -> bytes:
    return b"".join([_INT.pack(sum(map(len, parts))), *parts])


def buffer(data: bytes | None) -> bytes:
    return _INT.pack(-1) if data is None else _INT.pack(len(data)) + data


def text(found: str) -> bytes:
    return buffer(found.encode())


class ZnodeAcl(IntEnum):
    """Who may use a znode. Its number: what everybody may do, as bits, of which 1 is to read it."""

    OPEN = 31
    SHOWN = 1
    HIDDEN = 0

    def encoded(self, owner: str) -> bytes:
        """`owner`: the id of the scheme digest that may do everything, unless the znode is open."""
        rows = [] if self is ZnodeAcl.OPEN else [_INT.pack(31) + text("digest") + text(owner)]
        if self is not ZnodeAcl.HIDDEN:
            rows.append(_INT.pack(self) + text("world") + text("anyone"))
        return _INT.pack(len(rows)) + b"".join(rows)


def digest_id(secret: bytes) -> str:
    """The id of the scheme digest for "name:password" (DigestAuthenticationProvider.java)."""
    name, _, _ = secret.partition(b":")
    return f"{name.decode()}:{b64encode(hashlib.sha1(secret, usedforsecurity=False).digest()).decode()}"


def connect(timeout_ms: int, session: int, password: bytes, zxid: int) -> bytes:
    """The first frame of a connection. `session`: 0 for a new one. `zxid`: the highest that an answer had; a server
    that is behind it refuses the connection."""
    return framed(struct.pack(">iqiq", 0, zxid, timeout_ms, session), buffer(password), b"\0")


def request(xid: int, opcode: Opcode, *fields: bytes) -> bytes:
    return framed(HEADER.pack(xid, opcode), *fields)


def auth(scheme: str, secret: bytes) -> bytes:
    return request(Xid.AUTH, Opcode.AUTH, _INT.pack(0), text(scheme), buffer(secret))


def ping() -> bytes:
    return request(Xid.PING, Opcode.PING)


def read_fields(path: str) -> tuple[bytes, ...]:
    """The fields of GetData and GetChildren; no watch is set."""
    return text(path), b"\0"


def watch_fields(path: str) -> tuple[bytes, ...]:
    """The fields of AddWatch, for a persistent and recursive one."""
    return text(path), _INT.pack(1)


def acl_fields(path: str, acl: bytes) -> tuple[bytes, ...]:
    """The fields of SetACL, for any version of the ACL before."""
    return text(path), acl, _INT.pack(-1)


def multi_fields(
    operations: Iterable[Operation], acl: Callable[[str], bytes] = lambda path: ZnodeAcl.OPEN.encoded("")
) -> list[bytes]:
    """The fields of Multi. A `Create` with an owner makes an ephemeral znode of the session that sends it. `acl`: gives
    the encoded ACL for a znode that is made, by its path."""
    found = []
    for each in operations:
        opcode, fields = _part(each, acl)
        found += [_MULTI.pack(opcode, False, -1), fields]
    return [*found, _MULTI.pack(-1, True, -1)]


def _part(operation: Operation, acl: Callable[[str], bytes]) -> tuple[Opcode, bytes]:
    path = text(operation.path)
    if isinstance(operation, Create):
        ephemeral = operation.owner != 0
        fields = path + buffer(operation.data) + acl(operation.path)
        return Opcode.CREATE, fields + _INT.pack(int(ephemeral))
    if isinstance(operation, Put):
        return Opcode.SET_DATA, path + buffer(operation.data) + _INT.pack(operation.version)
    opcode = Opcode.DELETE if isinstance(operation, Delete) else Opcode.CHECK
    assert isinstance(operation, Delete | Check)
    return opcode, path + _INT.pack(operation.version)
