"""Many connections are read from by one task: what it does for each of them, and when their tasks go on."""

from __future__ import annotations

import gc
import math
import os
import select
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

import krappy
from krappy.server import joint_reader
from krappy.server.channel import Channel
from krappy.server.joint_reader import CALM, MANY, JointReader
from krappy.server.turns import TURN, Turns
from krappy.wire import messages as m
from krappy.wire.frames import ERROR, FrameReader
from tests.server.test_leaving import leave, opened, topic, until

PEERS = 3 * MANY

pytestmark = pytest.mark.skipif(not hasattr(select, "epoll"), reason="the joint reader needs Linux' epoll")


class Connected:
    """A connection that notes in `told` what is done for it. `reads`, `sends`: what these do, and return."""

    def __init__(self, name: int, told: list[tuple[str, int]]) -> None:
        self.name, self.told = name, told
        self.peer, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.reads: Callable[[], bool] = lambda: True
        self.sends: Callable[[], bool] = lambda: True
        self.whose = "somebody"
        self.ended: str | None = None
        self.life = trio.CancelScope()

    def read_now(self, now: float) -> bool:
        assert 0 <= trio.current_time() - now < 60
        self.told.append(("read", self.name))
        self.sock.recv(100)
        return self.reads()

    def send_now(self) -> bool:
        self.told.append(("send", self.name))
        return self.sends()

    async def wait(self, reader: JointReader) -> None:
        with self.life:
            try:
                await reader.bytes_come(self, self.sock)
                self.ended = "woken"
            except ZeroDivisionError:
                self.ended = "error"
        if self.life.cancelled_caught:
            self.ended = "cancelled"


@asynccontextmanager
async def reading() -> AsyncIterator[tuple[list[Connected], list[Connected], list[tuple[str, int]]]]:
    """Connections that wait for bytes. The first ones began before it was known that there are many: their tasks read.
    Then those that are read from together; and what is done for these."""
    turns, told = Turns(), list[tuple[str, int]]()
    trio.lowlevel.add_instrument(turns)
    reader, connections = JointReader(turns), [Connected(name, told) for name in range(PEERS)]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reader.run)
            await trio.testing.wait_all_tasks_blocked()
            for each in connections:
                nursery.start_soon(each.wait, reader)
            await trio.testing.wait_all_tasks_blocked()
            together = [each for each in connections if each.sock.fileno() in reader._waiters]
            assert len(together) == PEERS - MANY + 1
            yield [each for each in connections if each not in together], together, told
            nursery.cancel_scope.cancel()
    finally:
        trio.lowlevel.remove_instrument(turns)
        for each in connections:
            each.sock.close()
            each.peer.close()


def test_all_are_read_from_before_any_answer_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_reader, "TURN", math.inf)  # the machine may run other programs meanwhile

    async def main() -> None:
        async with reading() as (alone, together, told):
            for each in (*alone, *together):
                each.peer.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert {each.ended for each in alone} == {"woken"}
            assert {each.ended for each in together} == {None}
            names = {each.name for each in together}
            assert {name for what, name in told[: len(names)] if what == "read"} == names
            assert {name for what, name in told[len(names) :] if what == "send"} == names
            assert len(told) == 2 * len(names)

    trio.run(main)


@pytest.mark.parametrize("how", ["can't read", "can't go on", "read fails", "send fails"])
def test_a_task_goes_on_where_there_is_more_to_do(how: str) -> None:
    async def main() -> None:
        async with reading() as (_, (one, *others), told):
            match how:
                case "can't read":
                    one.reads = lambda: False
                case "can't go on":
                    one.sends = lambda: False
                case "read fails":
                    one.reads = lambda: bool(1 // 0)
                case "send fails":
                    one.sends = lambda: bool(1 // 0)
            for each in (one, *others):
                each.peer.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert one.ended == ("error" if "fails" in how else "woken")
            assert {each.ended for each in others} == {None}
            assert (("send", one.name) in told) == (how in ("can't go on", "send fails"))
            assert {name for what, name in told if what == "send"} >= {each.name for each in others}

    trio.run(main)


def test_connections_whose_bytes_keep_coming_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round has time for a few of them only. These were the same ones in every round."""
    clock, rounds = 0.0, 10

    async def main() -> None:
        nonlocal clock
        async with reading() as (_, together, told):

            def read() -> bool:
                nonlocal clock
                clock += 0.4 * TURN
                return True

            for each in together:
                each.reads = read
                each.peer.send(bytes(100 * 10 * len(together)))
            while len(told) < 2 * rounds * len(together):
                await trio.lowlevel.checkpoint()
            reads = [told.count(("read", each.name)) for each in together]
            assert max(reads) - min(reads) <= 1

    monkeypatch.setattr(joint_reader, "perf_counter", lambda: clock)
    trio.run(main)


def test_nobody_waits_behind_all_connections_of_another_user(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that take long come by many connections of one user, and a quick one by a connection of another."""
    clock, rounds = 0.0, 20

    async def main() -> None:
        nonlocal clock
        async with reading() as (_, (one, *many), told):

            def read() -> bool:
                nonlocal clock
                clock += 2 * TURN
                return True

            for each in many:
                each.reads = read
                each.peer.send(bytes(100 * 1000))
            one.whose = "another"
            waited: list[int] = []
            for _ in range(rounds):
                before = len(told)
                one.peer.send(b"x")
                while ("send", one.name) not in told[before:]:
                    await trio.lowlevel.checkpoint()
                waited.append(sum(what == "read" for what, _ in told[before:]) - 1)
            assert max(waited[1:]) <= 3  # in the first round, nobody knows yet that there is no time for all

    monkeypatch.setattr(joint_reader, "perf_counter", lambda: clock)
    trio.run(main)


def test_a_connection_may_end_while_another_is_read_from() -> None:
    async def main() -> None:
        async with reading() as (_, (one, other, third, *_), told):

            def end_both() -> bool:
                one.life.cancel()
                other.life.cancel()
                return True

            one.reads = end_both
            other.reads = end_both
            for each in (one, other, third):
                each.peer.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert (one.ended, other.ended, third.ended) == ("cancelled", "cancelled", None)
            assert [name for what, name in told if what == "send"] == [third.name]

    trio.run(main)


def test_the_tasks_read_again_when_few_peers_send() -> None:
    async def main() -> None:
        async with reading() as (_, (one, *_), told):
            for _ in range(CALM):
                one.peer.send(b"x")
                await trio.testing.wait_all_tasks_blocked()
            assert (one.ended, told.count(("send", one.name))) == (None, CALM)
            one.peer.send(b"x")
            await trio.testing.wait_all_tasks_blocked()
            assert one.ended == "woken"

    trio.run(main)


# --- in a broker


@pytest.fixture
def jointly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection is read from by the joint reader, as where very many send all the time."""
    monkeypatch.setattr(joint_reader, "MANY", 0)
    monkeypatch.setattr(joint_reader, "CALM", math.inf)


async def answer(stream: trio.SocketStream, reader: FrameReader) -> int:
    """The kind of the next answer."""
    while True:
        for kind, _ in reader.frames():
            return kind
        data = await stream.receive_some()
        if not data:
            raise EOFError
        reader.feed(data)


def test_requests_of_all_sizes_come_whole(tmp_path: Path, jointly: None) -> None:
    """Also where they come in pieces, with others behind them."""

    async def main() -> None:
        async with topic(tmp_path) as broker, krappy.connect(broker.address) as client:
            async with client.producer("t") as producer:
                for size in (1, 100_000, 200_000, 1_000_000):
                    receipts = [await producer.send(bytes(size), key=b"%d" % size) for _ in range(2)]
                    assert receipts[1].offset == receipts[0].offset + 1
            table = client.table("t")
            for size in (1, 100_000, 200_000, 1_000_000):
                found = await table.get(b"%d" % size)
                assert found is not None
                assert found.value == bytes(size)
            stream, _ = await opened(broker, broker.address)
            async with stream:
                frame = m.Ping().frame(1)
                for byte in frame * 3:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(0)
                reader = FrameReader()
                assert ERROR not in {await answer(stream, reader) for _ in range(3)}

    trio.run(main)


@pytest.mark.parametrize("how", ["FIN", "RST"])
def test_a_peer_leaves(tmp_path: Path, jointly: None, how: str) -> None:
    async def main() -> None:
        async with topic(tmp_path) as broker:
            streams = [(await opened(broker, broker.address))[0] for _ in range(PEERS)]
            for stream in streams:
                await stream.send_all(m.Ping().frame(1))
                await stream.receive_some()
            assert len(broker.server.joint_reader._waiters) == PEERS
            for stream in streams:
                leave(stream, how)
            await until(lambda: not broker.server.connections, "all have left")
            assert not broker.server.joint_reader._waiters

    trio.run(main)


def test_broken_bytes_end_their_own_connection(tmp_path: Path, jointly: None) -> None:
    async def main() -> None:
        async with topic(tmp_path) as broker:
            good, _ = await opened(broker, broker.address)
            bad, _ = await opened(broker, broker.address)
            async with good, bad:
                await bad.send_all(m.Ping().frame(1) + b"\xff" * 8)
                reader = FrameReader()
                assert await answer(bad, reader) != ERROR
                assert await answer(bad, reader) == ERROR
                with pytest.raises(EOFError):
                    await answer(bad, reader)
                await good.send_all(m.Ping().frame(1))
                assert await answer(good, FrameReader()) != ERROR

    trio.run(main)


def test_a_silent_peer_is_ended_and_so_are_all_at_a_stop(tmp_path: Path, jointly: None) -> None:
    async def main() -> None:
        async with topic(tmp_path, idle_timeout_ms=300) as broker:
            stream, connection = await opened(broker, broker.address)
            async with stream:
                assert isinstance(connection, Channel)
                for _ in range(6):  # it is not silent
                    await trio.sleep(0.1)
                    await stream.send_all(m.Ping().frame(1))
                    assert await stream.receive_some()
                await until(lambda: connection not in broker.server.connections, "it was silent for too long")
            stream, _ = await opened(broker, broker.address)
            await stream.send_all(m.Ping().frame(1))
            await stream.receive_some()
        async with stream:  # the broker has stopped
            assert not await stream.receive_some()

    trio.run(main)


def test_nothing_is_open_after_a_stop(tmp_path: Path, jointly: None) -> None:
    """Also before the garbage is collected."""

    def polls() -> int:
        return sum("eventpoll" in os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())

    async def main() -> None:
        before = polls()
        for name in "ab":
            async with topic(tmp_path / name) as broker:
                stream, _ = await opened(broker, broker.address)
                async with stream:
                    await stream.send_all(m.Ping().frame(1))
                    await stream.receive_some()
                    assert polls() == before + 1
        assert polls() == before

    gc.disable()
    try:
        trio.run(main)
    finally:
        gc.enable()
