"""The protocol of ZooKeeper, without a ZooKeeper: a table of messages and their bytes, and sessions in simulated
time."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.cluster.zk import jute
from krappy.cluster.zk.jute import ErrorCode, JuteReader, Opcode, WatchEvent
from krappy.cluster.zk.session import Entered, Received, Status, ZooKeeperReply, ZooKeeperSession
from krappy.core.cluster.tree import Check, Create, Delete, Put, Znode
from krappy.errors import ConnectionLost, KrappyError, ProtocolError

STAT = struct.Struct(">qqqqiiiqiiq")
LET_IN = bytes.fromhex("0000002500000000000017700123456789abcdef00000010" + "aa" * 16 + "00")
REQUESTS = [
    (
        jute.connect(6000, 0, b"\0" * 16, 0),
        "0000002d 00000000 0000000000000000 00001770 0000000000000000 00000010" + "00" * 16 + "00",
    ),
    (jute.ping(), "00000008 fffffffe 0000000b"),
    (jute.auth("digest", b"a:b"), "0000001d fffffffc 00000064 00000000 00000006 646967657374 00000003 613a62"),
    (jute.request(1, Opcode.GET_DATA, *jute.read_fields("/a")), "0000000f 00000001 00000004 00000002 2f61 00"),
    (jute.request(2, Opcode.ADD_WATCH, *jute.watch_fields("/a")), "00000012 00000002 0000006a 00000002 2f61 00000001"),
    (jute.request(3, Opcode.CLOSE), "00000008 00000003 fffffff5"),
    (
        jute.request(4, Opcode.MULTI, *jute.multi_fields([Put("/a", b"x", 7), Delete("/b", -1), Check("/c", 0)])),
        "0000004f 00000004 0000000e"
        "00000005 00 ffffffff 00000002 2f61 00000001 78 00000007"
        "00000002 00 ffffffff 00000002 2f62 ffffffff"
        "0000000d 00 ffffffff 00000002 2f63 00000000"
        "ffffffff 01 ffffffff",
    ),
    (
        jute.request(5, Opcode.MULTI, *jute.multi_fields([Create("/a", b"x", 9)])),
        "00000044 00000005 0000000e"
        "00000001 00 ffffffff 00000002 2f61 00000001 78"
        "00000001 0000001f 00000005 776f726c64 00000006 616e796f6e65 00000001"
        "ffffffff 01 ffffffff",
    ),
]


def answer(xid: int, body: bytes = b"", error: int = 0, zxid: int = 5) -> bytes:
    return jute.framed(jute.REPLY.pack(xid, zxid, error), body)


def event(path: str, kind: int = 3) -> bytes:
    return jute.framed(jute.REPLY.pack(-1, -1, 0), struct.pack(">ii", kind, 3), jute.text(path))


def entered() -> ZooKeeperSession:
    """A session that a server has let in at time 0. The server's answer comes byte by byte."""
    session = ZooKeeperSession(4000)
    session.connect(0)
    assert [each for at in range(len(LET_IN)) for each in session.receive(LET_IN[at : at + 1], 0)] == [Entered(True)]
    return session


@pytest.mark.parametrize(("made", "wanted"), REQUESTS)
def test_requests(made: bytes, wanted: str) -> None:
    assert made == bytes.fromhex(wanted.replace(" ", ""))


def test_a_conversation_whole_and_byte_by_byte() -> None:
    znode = jute.buffer(b"data") + STAT.pack(1, 2, 3, 4, 5, 6, 7, 8, 4, 0, 9)
    parts = struct.pack(">i?i", 5, False, 0) + STAT.pack(*[0] * 11) + struct.pack(">i?i", -1, True, -1)
    told = (
        event("/a")
        + answer(1, znode)
        + answer(-2)
        + answer(2, error=ErrorCode.NO_NODE)
        + event("/b", 1)
        + answer(3, parts, zxid=9)
    )
    for step in (len(told), 7, 1):
        session = entered()
        for _ in range(3):
            session.send(Opcode.GET_DATA, jute.read_fields("/a"), 0)
        found: list[Received] = []
        for at in range(0, len(told), step):
            found += session.receive(told[at : at + step], 0)
        assert [type(each) for each in found] == [
            WatchEvent,
            ZooKeeperReply,
            ZooKeeperReply,
            WatchEvent,
            ZooKeeperReply,
        ]
        [first, read, missing, second, multi] = found
        assert (first, second) == (WatchEvent(3, "/a"), WatchEvent(1, "/b"))
        assert isinstance(read, ZooKeeperReply)
        assert isinstance(missing, ZooKeeperReply)
        assert isinstance(multi, ZooKeeperReply)
        assert read.body.znode() == Znode(b"data", 5, 8)
        assert (missing.xid, missing.error) == (2, ErrorCode.NO_NODE)
        assert multi.body.parts() == [0]
        assert session.zxid == 9
        assert session.id == 0x0123456789ABCDEF
        assert session.timeout_ms == 6000, "what the server granted, not what was asked for"


@pytest.mark.parametrize(
    "told",
    [
        answer(1),  # an answer without a request
        b"\xff\xff\xff\xff",  # a frame of -1 bytes
        b"HTTP/1.1 400 Bad Request\r\n",
        jute.framed(b"\0\0\0\1"),  # half a reply's header
        jute.framed(jute.REPLY.pack(-1, -1, 0), struct.pack(">iii", 3, 3, 100)),  # a path longer than its frame
        jute.framed(jute.REPLY.pack(-1, -1, 0), struct.pack(">iii", 3, 3, 1), b"\xff"),  # not UTF-8
        answer(-4, error=ErrorCode.AUTH_FAILED),
    ],
)
def test_what_is_not_the_protocol_is_refused(told: bytes) -> None:
    with pytest.raises(ProtocolError):
        entered().receive(told, 0)


@given(st.binary(max_size=200), st.integers(0, 80))
def test_only_a_protocol_error_escapes(data: bytes, cut: int) -> None:
    session = ZooKeeperSession(6000)
    session.connect(0)
    try:
        session.receive(LET_IN[:cut] + data, 0)
        if session.status == Status.UP:
            session.send(Opcode.GET_DATA, jute.read_fields("/"), 0)
            for each in session.receive(data, 0):
                if isinstance(each, ZooKeeperReply):
                    each.body.znode()
    except (ProtocolError, ConnectionLost):
        pass


@given(st.binary(max_size=60))
def test_only_a_protocol_error_escapes_from_a_body(data: bytes) -> None:
    for read in (JuteReader.znode, JuteReader.parts, JuteReader.texts, JuteReader.event, JuteReader.connected):
        with contextlib.suppress(ProtocolError):
            read(JuteReader(data))


def test_a_session_goes_on_over_another_connection() -> None:
    session = entered()
    session.send(Opcode.SYNC, [jute.text("/")], 0)
    session.lost()
    assert session.status == Status.DOWN
    with pytest.raises(ConnectionLost):
        session.send(Opcode.SYNC, [jute.text("/")], 0)
    again = session.connect(100)
    assert again[20:28] == bytes.fromhex("0123456789abcdef"), "the same session"
    assert session.receive(LET_IN, 0) == [Entered(False)]


def test_pings_keep_a_session() -> None:
    session = entered()
    assert session.ping(999) == b""
    assert session.ping(1000) == jute.ping()
    assert session.ping(3000) == b"", "the last one has no answer yet"
    session.receive(answer(-2), 0)
    assert not session.is_over(6999)
    assert session.ping(2500) == jute.ping()


def test_a_connection_without_answers_is_stuck() -> None:
    session = entered()
    assert not session.is_stuck(5000), "nothing was asked"
    [first, _] = session.send(Opcode.SYNC, [jute.text("/")], 5000)
    session.send(Opcode.SYNC, [jute.text("/")], 5000)
    assert not session.is_stuck(7999)
    assert session.is_stuck(8000)
    session.receive(answer(first), 7900)
    assert not session.is_stuck(10_899), "a server that answers late is not left"
    assert session.is_stuck(10_900)
    fresh = ZooKeeperSession(6000)
    fresh.connect(0)
    assert fresh.is_stuck(2000), "the server does not let it in"


def test_a_session_is_over_a_timeout_after_the_last_request_that_was_answered_was_sent() -> None:
    session = entered()
    [xid, _] = session.send(Opcode.SYNC, [jute.text("/")], 1000)
    session.receive(answer(xid), 0)  # late; the server heard of it at 1000 at the latest
    assert not session.is_over(6999)
    assert session.is_over(7000)
    with pytest.raises(ConnectionLost, match="has ended"):
        session.connect(7000)


def test_a_session_that_the_server_has_ended() -> None:
    for told in (LET_IN[:8] + b"\0" * 4 + LET_IN[12:], None):
        session = entered()
        if told is None:
            [xid, _] = session.send(Opcode.SYNC, [jute.text("/")], 0)
            session.receive(answer(xid, error=ErrorCode.SESSION_EXPIRED), 0)
        else:
            session.lost()
            session.connect(10)
            session.receive(told, 0)
        assert session.status == Status.OVER
        session.lost()
        assert session.is_over(11)


def test_a_session_that_went_elsewhere_ends_this_connection() -> None:
    session = entered()
    [xid, _] = session.send(Opcode.SYNC, [jute.text("/")], 0)
    with pytest.raises(KrappyError, match="another connection"):
        session.receive(answer(xid, error=ErrorCode.SESSION_MOVED), 0)
