"""However many take long, others wait for only one of them: one goes on in each round of the event loop."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import krappy
from krappy.server import inbound
from krappy.server.connection import FEW, Connection
from krappy.server.pace import OUTBOX
from krappy.server.turns import PROOF, SMALL, TURN, Turns
from krappy.waiting import MANY, Signal
from krappy.wire import messages as m
from tests.server.test_leaving import opened, topic, until

PEERS = 20


class Rounds(trio.abc.Instrument):
    """Counts the rounds of the event loop."""

    def __init__(self) -> None:
        self.now = 0

    def before_io_wait(self, timeout: float) -> None:
        self.now += 1


def test_one_has_its_turn_in_each_round() -> None:
    rounds = Rounds()
    went: list[int] = []

    async def go(turns: Turns) -> None:
        await turns.next()
        went.append(rounds.now)

    async def main() -> None:
        turns = Turns()
        async with trio.open_nursery() as nursery:
            for _ in range(PEERS):
                nursery.start_soon(go, turns)
        assert not turns.contended

    trio.run(main, instruments=[rounds])
    assert len(set(went)) == PEERS


def test_each_peer_has_its_turn_before_one_has_another() -> None:
    went: list[str] = []

    async def go(turns: Turns, peer: str) -> None:
        await turns.next(peer)
        went.append(peer)

    async def main() -> None:
        turns = Turns()
        turns._taken = True
        async with trio.open_nursery() as nursery:
            for peer in [*["User:zoe"] * PEERS, "User:ada", "10.0.0.1"]:
                nursery.start_soon(go, turns, peer)
                await trio.testing.wait_all_tasks_blocked()
            turns._pass_on()
        assert not turns.contended

    trio.run(main)
    assert went[:3] == ["User:zoe", "User:ada", "10.0.0.1"]
    assert went[3:] == ["User:zoe"] * (PEERS - 1)


@pytest.mark.parametrize("had", [False, True])
def test_who_leaves_while_it_waits_for_its_turn_keeps_nobody_waiting(had: bool) -> None:
    """`had`: the turn has come to it, and it has not gone on yet."""

    async def main() -> None:
        turns, leaves = Turns(), trio.CancelScope()

        async def leave() -> None:
            with leaves:
                await turns.next("User:zoe")

        turns._taken = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(leave)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(turns.next, "User:ada")
            await trio.testing.wait_all_tasks_blocked()
            if had:
                turns._pass_on()
            leaves.cancel()
            if not had:
                await trio.testing.wait_all_tasks_blocked()
                turns._pass_on()
        assert not turns.contended

    trio.run(main)


def set_clock(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    for module in ("inbound", "joint_reader", "turns"):
        monkeypatch.setattr(f"krappy.server.{module}.perf_counter", clock)


@pytest.mark.parametrize("size", [10, 2 * SMALL, 2 * inbound.LARGE], ids=["small", "medium", "large"])
def test_peers_with_much_to_do_have_their_turns_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """Each peer sends three requests at once, and each request takes as long as a turn."""
    rounds = Rounds()
    long: Counter[int] = Counter()  # requests that were begun in each round
    dispatch = Connection._dispatch
    clock = 0.0

    def take(connection: Connection, frame: memoryview, its: int, lent: bool) -> None:
        nonlocal clock
        clock += 1.0
        long[rounds.now] += 1
        dispatch(connection, frame, its, lent)

    def now() -> float:
        return clock

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            peers = [await opened(broker, broker.address) for _ in range(PEERS)]
            set_clock(monkeypatch, now)
            monkeypatch.setattr(Connection, "_dispatch", take)
            data = b"".join(m.Get("no topic", bytes(size)).frame(number) for number in range(3))
            for stream, _ in peers:
                nursery.start_soon(stream.send_all, data)
            await until(lambda: sum(each.requests for _, each in peers) == 3 * PEERS, "all have been begun")
            for stream, _ in peers:
                stream.socket.close()

    trio.run(main, instruments=[rounds])
    assert max(long.values()) == 1


def test_small_requests_with_large_answers_have_their_turns_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But a peer that has asked for little up to now does not wait for a turn."""
    rounds = Rounds()
    begun: Counter[int] = Counter()
    clock = 0.0

    def take(connection: Connection, frame: memoryview, its: int, lent: bool) -> None:
        nonlocal clock
        clock += 1.0
        connection.requests += 1
        begun[rounds.now] += 1
        connection._send(bytes(inbound.LARGE + 1))

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            peers = [await opened(broker, broker.address) for _ in range(PEERS)]
            set_clock(monkeypatch, lambda: clock)
            monkeypatch.setattr(Connection, "_dispatch", take)
            for stream, _ in peers:
                nursery.start_soon(stream.send_all, m.Ping().frame(1))
            await until(lambda: sum(each.requests for _, each in peers) == PEERS, "all have been begun")
            assert {each._quick for _, each in peers} == {-PROOF}
            assert max(begun.values()) == 1
            stream, quiet = await opened(broker, broker.address)
            quiet._quick = 0
            await nursery.start(have_it, broker.server.turns)
            await stream.send_all(m.Ping().frame(1))
            await until(lambda: quiet.requests == 1, "it has been begun, though it is another's turn")
            nursery.cancel_scope.cancel()
            for each, _ in (*peers, (stream, quiet)):
                each.socket.close()

    trio.run(main, instruments=[rounds])


@pytest.mark.parametrize("slow", [False, True])
def test_small_requests_of_many_peers_share_the_time_of_a_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    """While others have turns, peers that ask for little wait for no turn, as long as all of them together take no
    longer than a turn. Without this, a moment in which the system ran other programs put them into turns for as long as
    they asked."""
    rounds = Rounds()
    begun: Counter[int] = Counter()
    clock = 0.0
    dispatch = Connection._dispatch

    def take(connection: Connection, frame: memoryview, its: int, lent: bool) -> None:
        nonlocal clock
        clock += TURN / 4 if slow else 0
        begun[rounds.now] += 1
        dispatch(connection, frame, its, lent)

    async def have_turns(turns: Turns) -> None:
        while True:
            await turns.next()

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            peers = [await opened(broker, broker.address) for _ in range(PEERS)]
            set_clock(monkeypatch, lambda: clock)
            monkeypatch.setattr(Connection, "_dispatch", take)
            for _ in range(2):  # one waits while the other has its turn
                nursery.start_soon(have_turns, broker.server.turns)
            await until(lambda: broker.server.turns.contended, "somebody waits for his turn")
            data = b"".join(m.Ping().frame(number) for number in range(8))
            for stream, peer in peers:
                peer._quick = 0
                await stream.send_all(data)
            await until(lambda: sum(each.requests for _, each in peers) >= 8 * PEERS, "all have been begun")
            nursery.cancel_scope.cancel()
            for stream, _ in peers:
                stream.socket.close()

    trio.run(main, instruments=[rounds])
    if slow:
        assert max(begun.values()) <= PEERS + 4  # one request of each peer, and as many others as there is time for
    else:
        assert max(begun.values()) >= 8  # all requests of a peer at once


async def have_it(turns: Turns, task_status: trio.TaskStatus[None]) -> None:
    """Takes a turn, and has it until it is cancelled."""
    while turns._taken:
        await trio.lowlevel.checkpoint()
    turns._taken = True
    task_status.started()
    try:
        await trio.sleep_forever()
    finally:
        turns._pass_on()


def test_after_a_long_round_a_peer_that_asks_for_little_does_not_wait_behind_its_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands may come from its address at once, and wait for a turn each."""
    begun: list[Connection] = []
    dispatch = Connection._dispatch

    def take(connection: Connection, frame: memoryview, its: int, lent: bool) -> None:
        begun.append(connection)
        dispatch(connection, frame, its, lent)

    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            turns, having = broker.server.turns, trio.CancelScope()
            peers = [await opened(broker, broker.address) for _ in range(PEERS)]
            *new, (_, known) = peers
            known._quick = 0
            monkeypatch.setattr(Connection, "_dispatch", take)
            monkeypatch.setattr(Turns, "small", 0)  # as in a round that has lasted for too long

            async def have_a_turn(task_status: trio.TaskStatus[None]) -> None:
                with having:
                    await have_it(turns, task_status)

            await nursery.start(have_a_turn)
            for stream, _ in [*new, peers[-1]]:
                await stream.send_all(m.Ping().frame(1))
            await until(lambda: all(each._turn_over for _, each in peers), "all wait for a turn")
            having.cancel()
            await until(lambda: len(begun) == PEERS, "all have been begun")
            assert known in begun[:2]
            for stream, _ in peers:
                stream.socket.close()

    trio.run(main)


def test_very_many_requests_are_cancelled_in_their_peers_turn(tmp_path: Path) -> None:
    waiting = m.Get("t", b"k", 0, min_offset=1 << 40)  # waits for an offset that does not come

    async def main() -> None:
        async with topic(tmp_path) as broker:
            async with trio.open_nursery() as nursery:
                count = inbound.FEW + 1
                stream, connection = await opened(broker, broker.address)
                await stream.send_all(waiting.frame(1) * count)
                await until(lambda: len(connection._waits) == count, "all wait")
                await nursery.start(have_it, broker.server.turns)
                stream.socket.close()
                await until(lambda: connection._silent_since == math.inf, "it is seen to have left")
                await trio.testing.wait_all_tasks_blocked()
                assert len(connection._waits) == count
                nursery.cancel_scope.cancel()
            await until(lambda: not broker.server.connections, "it has ended, and so have its requests")

    trio.run(main)


def test_long_answers_wait_for_their_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with krappy.Broker(tmp_path) as broker, trio.open_nursery() as nursery:
            stream, connection = await opened(broker, broker.address)
            async with stream:
                assert isinstance(connection, Connection)
                await nursery.start(have_it, broker.server.turns)
                with trio.move_on_after(0.01) as paused:
                    await connection.session.pause()
                with trio.move_on_after(0.01) as made:
                    async with connection.answering(10):
                        pass
                assert paused.cancelled_caught
                assert made.cancelled_caught
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_signal_wakes_very_many_in_several_rounds() -> None:
    rounds = Rounds()
    woken: Counter[int] = Counter()
    count = 4 * MANY

    async def main() -> None:
        signal = Signal()
        callbacks: list[Any] = [lambda: woken.update([rounds.now]) for _ in range(count)]
        for callback in callbacks:
            signal.subscribe(callback)
        signal.fire()
        signal.fire()  # those that are still to be called are called only once
        signal.unsubscribe(callbacks[-1])
        while sum(woken.values()) < count - 1 + MANY:
            await trio.lowlevel.checkpoint()
        await trio.testing.wait_all_tasks_blocked()

    trio.run(main, instruments=[rounds])
    assert sum(woken.values()) == count - 1 + MANY  # those that were called before it fired again are called again
    assert max(woken.values()) <= 2 * MANY
    assert len(woken) >= 3


@pytest.mark.parametrize("reads", [True, False], ids=["a peer that reads", "a peer that does not"])
def test_many_requests_of_one_peer_that_wait_begin_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    """A thousand came in one read, and each took a millisecond before it waited for the first time, or had made its
    answer."""
    rounds = Rounds()
    begun: Counter[int] = Counter()  # in each round
    large = 100_000

    async def long(session: Any, request: m.StagedJobs) -> m.StagedJobsFound:
        begun[rounds.now] += 1
        await trio.lowlevel.checkpoint()
        return m.StagedJobsFound([{"job": "j" * large}])

    async def main() -> None:
        async with topic(tmp_path) as broker:
            stream, connection = await opened(broker, broker.address)
            assert isinstance(connection, Connection)
            served = connection._served[m.StagedJobs]
            monkeypatch.setitem(connection._served, m.StagedJobs, served._replace(handler=long))
            trio.lowlevel.add_instrument(rounds)
            await stream.send_all(b"".join(m.StagedJobs().frame(number) for number in range(200)))
            if reads:
                got = 0
                while got < 200 * large:
                    got += len(await stream.receive_some())
                assert sum(begun.values()) == 200
            else:
                await until(lambda: connection._outbox.size > OUTBOX, "its answers wait")
                await trio.sleep(0.05)
                assert sum(begun.values()) < 200
                assert connection._outbox.size < OUTBOX + (FEW + 3) * large
            await stream.aclose()
            await until(lambda: not broker.server.connections, "the connection has ended")
            assert broker.server.budget.used == broker.server.budget.parked == 0
        assert max(begun.values()) <= FEW

    trio.run(main)
