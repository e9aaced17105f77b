"""The link to another broker, with a listener that answers as each test wants."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from krappy.broker.topics.internal_topics import TRANSACTIONS
from krappy.cluster.inter_broker import Ask, InterBroker, PeerLogin
from krappy.cluster.peer_links import LINES, PeerLinks
from krappy.cluster.peers import LONGEST_PAUSE_S, PeerLink
from krappy.core.cluster.coordinators import partition_of
from krappy.core.cluster.image import Image
from krappy.errors import ConnectionLost, FrameTooLarge, KrappyError, ProtocolError, RequestTimeout
from krappy.types import TopicPartition
from krappy.wire.kafka import RANGES, ApiKey, encode_response
from tests.broker.engine import asks
from tests.cluster.replication import Listener, MemoryBroker, MemoryLeader, MemoryTopic, Message, listening

ID = bytes(16)
NEWEST = RANGES[ApiKey.FETCH][1]


def asking(number: int = 0, wait_ms: int = 0) -> Message:
    """A Fetch without partitions. It is answered at once, with nothing."""
    return {"replica_state": {"replica_id": 2, "replica_epoch": number}, "max_wait_ms": wait_ms, "topics": []}


@asynccontextmanager
async def linked(**given: Any) -> AsyncIterator[tuple[Listener, PeerLink]]:
    async with listening(MemoryBroker(MemoryTopic("t", ID, [MemoryLeader()], (1, 2)))) as listener:
        link = PeerLink(lambda: listener.address, "test", **given)
        try:
            yield listener, link
        finally:
            link.close()


def numbered(listener: Listener) -> None:
    """Lets each answer carry the number of its request, as the session id."""
    listener.changes = lambda request, answer: {**answer, "session_id": request["replica_state"]["replica_epoch"]}


def test_requests_that_are_asked_together_get_their_own_answers() -> None:
    async def main() -> None:
        async with linked() as (listener, link):
            numbered(listener)
            found: dict[int, int] = {}

            async def ask(number: int) -> None:
                found[number] = (await link.ask(ApiKey.FETCH, asking(number), least=15))["session_id"]

            async with trio.open_nursery() as nursery:
                for number in range(50):
                    nursery.start_soon(ask, number)
            assert found == {number: number for number in range(50)}
            assert listener.connections == 1

    trio.run(main)


def test_the_highest_version_of_both_is_taken() -> None:
    async def main(high: int) -> None:
        async with linked() as (listener, link):
            listener.versions = {
                **listener.versions,
                "api_keys": [{"api_key": int(ApiKey.FETCH), "min_version": 4, "max_version": high}],
            }
            if high < 15:
                with pytest.raises(
                    ProtocolError, match=f"serves versions 4 to 14 of FETCH, and one from 15 to {NEWEST}"
                ):
                    await link.ask(ApiKey.FETCH, asking(), least=15)
            else:
                await link.ask(ApiKey.FETCH, asking(), least=15)
            with pytest.raises(ProtocolError, match="serves no version of PRODUCE"):
                await link.ask(ApiKey.PRODUCE, {})

    for high in (14, 15, NEWEST, 99):
        trio.run(main, high)


def test_a_cancelled_request_ends_the_connection_and_the_next_makes_another() -> None:
    async def main() -> None:
        async with linked() as (listener, link):
            numbered(listener)

            heard = trio.Event()

            async def hear(request: Message) -> None:
                if request["replica_state"]["replica_epoch"] == 1:
                    heard.set()
                    await trio.sleep_forever()

            listener.hears = hear
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.ask, ApiKey.FETCH, asking(1))
                await heard.wait()
                nursery.cancel_scope.cancel()
            begun = trio.current_time()
            assert (await link.ask(ApiKey.FETCH, asking(2)))["session_id"] == 2
            assert trio.current_time() - begun < 5
            assert listener.connections == 2

    trio.run(main)


def test_the_requests_of_one_user_keep_nobody_elses_waiting() -> None:
    """The listener answers one after the other."""

    async def main() -> None:
        async with linked(together=4) as (listener, link):
            answered: list[str] = []

            async def hear(request: Message) -> None:
                await trio.sleep(0.01)

            async def ask(user: str) -> None:
                asks(user)
                await link.ask(ApiKey.FETCH, asking())
                answered.append(user)

            listener.hears = hear
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask, "eve")
                await trio.testing.wait_all_tasks_blocked()
                nursery.start_soon(ask, "bob")
            assert answered.index("bob") <= 5

    trio.run(main)


def test_a_user_who_leaves_ends_no_request_of_another() -> None:
    async def main() -> None:
        async with linked(together=4) as (listener, link):
            numbered(listener)
            may_answer, found = trio.Event(), list[int]()

            async def hear(request: Message) -> None:
                await may_answer.wait()

            async def bob() -> None:
                asks("bob")
                found.append((await link.ask(ApiKey.FETCH, asking(2)))["session_id"])

            async def eve(task_status: trio.TaskStatus[trio.CancelScope]) -> None:
                asks("eve")
                with trio.CancelScope() as scope:
                    task_status.started(scope)
                    await link.ask(ApiKey.FETCH, asking(1))

            listener.hears = hear
            async with trio.open_nursery() as nursery:
                leaving = await nursery.start(eve)
                nursery.start_soon(bob)
                await trio.testing.wait_all_tasks_blocked(0.05)
                leaving.cancel()
                may_answer.set()
            assert found == [2]
            assert listener.connections == 1

    trio.run(main)


def test_who_leaves_before_the_request_was_sent_is_not_kept() -> None:
    """Nothing of others is on the connection yet; and a broker that stops must not wait for one that is away."""

    async def main() -> None:
        async with linked(together=4) as (_, link):
            link._not_before = trio.current_time() + 1_000  # it could not be reached before
            with trio.move_on_after(0.05) as scope:
                await link.ask(ApiKey.FETCH, asking())
            assert scope.cancelled_caught

    trio.run(main)


def test_when_one_request_fails_all_that_wait_fail() -> None:
    async def main() -> None:
        async with linked(timeout_s=1) as (listener, link):

            async def hear(request: Message) -> None:
                await trio.sleep_forever()

            listener.hears = hear
            failures: list[type[KrappyError]] = []

            async def ask() -> None:
                try:
                    await link.ask(ApiKey.FETCH, asking())
                except KrappyError as error:
                    failures.append(type(error))

            async with trio.open_nursery() as nursery:
                for _ in range(5):
                    nursery.start_soon(ask)
            assert failures == [RequestTimeout] + [ConnectionLost] * 4
            listener.hears = None
            await link.ask(ApiKey.FETCH, asking())

    trio.run(main)


def test_a_broker_that_may_wait_has_so_much_longer() -> None:
    async def main() -> None:
        async with linked(timeout_s=1) as (listener, link):

            async def hear(request: Message) -> None:
                await trio.sleep(2)

            listener.hears = hear
            await link.ask(ApiKey.FETCH, asking(), held_s=10)
            with pytest.raises(RequestTimeout, match="no answer for 1 s"):
                await link.ask(ApiKey.FETCH, asking())

    trio.run(main)


def test_a_link_that_is_up_may_be_silent_for_less_time() -> None:
    """A broker with much to do, as handshakes of TLS, may let others wait for their connections."""

    async def main() -> None:
        async with linked(timeout_s=30, silence_s=1) as (listener, link):

            async def hear(request: Message) -> None:
                await trio.sleep(2)

            listener.greets = hear
            await link.ask(ApiKey.FETCH, asking())
            listener.hears = hear
            with pytest.raises(RequestTimeout, match="no answer for 1 s"):
                await link.ask(ApiKey.FETCH, asking())

    trio.run(main)


class ShortLogin(PeerLogin):
    """Each login asks the broker something, and lasts for a moment."""

    async def log_in(self, ask: Ask) -> int:
        await ask(ApiKey.API_VERSIONS, {"client_software_name": "test", "client_software_version": "1"})
        return 1


def test_a_link_that_logs_in_again_may_take_as_long_for_it_as_at_first() -> None:
    async def main() -> None:
        async with linked(way=InterBroker(login=ShortLogin("", "", str)), timeout_s=30, silence_s=1) as (
            listener,
            link,
        ):
            await link.ask(ApiKey.FETCH, asking())

            async def hear(request: Message) -> None:
                await trio.sleep(2)

            listener.greets = hear
            await link.ask(ApiKey.FETCH, asking())
            assert listener.connections == 1

    trio.run(main)


def test_an_answer_may_take_long_but_not_stop() -> None:
    async def main(stops: bool) -> None:
        async with linked(timeout_s=3) as (listener, link):
            begun: list[float] = []

            async def serve(stream: trio.SocketStream) -> None:
                await stream.receive_some(1 << 16)
                parts = encode_response(ApiKey.API_VERSIONS, 3, 1, listener.versions)
                await stream.send_all(b"".join(parts))
                await stream.receive_some(1 << 16)
                data = b"".join(encode_response(ApiKey.FETCH, NEWEST, 2, {"session_id": 9, "responses": []}))
                for at in range(0, len(data), 2):
                    await stream.send_all(data[at : at + 2])
                    await trio.sleep(0.4 if not stops or at < 8 else 30)

            async with trio.open_nursery() as nursery:
                [accepting] = await nursery.start(
                    lambda task_status: trio.serve_tcp(serve, 0, host="127.0.0.1", task_status=task_status)
                )
                listener.address = accepting.socket.getsockname()[:2]
                ask = link.ask(ApiKey.FETCH, asking(), begun=lambda: begun.append(trio.current_time()))
                if stops:
                    with pytest.raises(RequestTimeout):
                        await ask
                else:
                    assert (await ask)["session_id"] == 9
                    assert trio.current_time() - begun[0] > 3
                nursery.cancel_scope.cancel()

    trio.run(main, False)
    trio.run(main, True)


def test_answers_are_bounded() -> None:
    async def main() -> None:
        async with linked(largest=1000) as (listener, link):
            listener.speaks = lambda data: [(1001).to_bytes(4, "big") + bytes(10)]
            with pytest.raises(FrameTooLarge, match="an answer of 1001 bytes; the limit is 1000"):
                await link.ask(ApiKey.FETCH, asking())

    trio.run(main)


def test_a_broker_that_is_away_is_asked_less_and_less_often() -> None:
    async def main() -> None:
        asked: list[float] = []

        def address() -> None:
            asked.append(trio.current_time())

        link = PeerLink(address, "test")
        for _ in range(12):
            with pytest.raises(ConnectionLost, match="not registered"):
                await link.ask(ApiKey.FETCH, asking())
        pauses = [later - before for before, later in pairwise(asked)]
        assert pauses[0] <= 0.05
        assert all(LONGEST_PAUSE_S / 2 <= each <= LONGEST_PAUSE_S for each in pauses[-4:])

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_nobody_listens() -> None:
    async def main() -> None:
        async with listening(MemoryBroker()) as listener:
            address = listener.address
        link = PeerLink(lambda: address, "test")
        with pytest.raises(ConnectionLost, match=f"127.0.0.1:{address[1]}"):
            await link.ask(ApiKey.FETCH, asking())

    trio.run(main)


def _mangled(chance: random.Random, data: bytes) -> bytes:
    """The bytes of an answer, changed in a few places, cut or made longer. The size in front is right half of the
    time."""
    body = bytearray(data[4:])
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(body) + 1)
        change: Callable[[], None] = chance.choice(
            [
                lambda at=at: body.__setitem__(slice(at, at + 1), chance.randbytes(1)),
                lambda at=at: body.__setitem__(slice(at, at), chance.randbytes(chance.randint(1, 9))),
                lambda at=at: body.__delitem__(slice(at, at + chance.randint(1, 9))),
                lambda at=at: body.__setitem__(slice(at, at + 4), b"\xff\xff\xff\xff"),
            ]
        )
        change()
    size = len(body) if chance.random() < 0.5 else len(data) - 4
    return size.to_bytes(4, "big") + bytes(body)


def test_whatever_the_peer_sends_only_errors_of_the_tree_come_out() -> None:
    async def main() -> None:
        chance = random.Random(1)
        leader = MemoryLeader()
        leader.produce(b"a" * 30)
        topic = MemoryTopic("t", ID, [leader], (1, 2))
        asked = {"partition": 0, "current_leader_epoch": 5, "fetch_offset": 0, "partition_max_bytes": 1000}
        body = {**asking(), "max_bytes": 1000, "topics": [{"topic_id": ID, "partitions": [asked]}]}
        came = 0
        async with listening(MemoryBroker(topic)) as listener:
            listener.speaks = lambda data: [_mangled(chance, data), None]
            for _ in range(1500):
                link = PeerLink(lambda: listener.address, "test", timeout_s=1, largest=1 << 20)
                try:
                    answer = await link.ask(ApiKey.FETCH, body, least=15)
                except KrappyError:
                    came += 1
                else:
                    assert set(answer) >= {"error_code", "responses"}
                link.close()
        assert came > 500

    trio.run(main)


@pytest.mark.parametrize("together", [None, 4])
def test_who_waits_for_a_connection_fails_with_it(together: int | None) -> None:
    """One attempt is made for all who wait, however many they are. Who comes later has another one."""
    attempts = 0

    def address() -> None:
        nonlocal attempts
        attempts += 1

    async def main() -> None:
        link = PeerLink(address, "test", together=together)
        failed: list[ConnectionLost] = []

        async def ask() -> None:
            with pytest.raises(ConnectionLost, match="not registered") as told:
                await link.ask(ApiKey.FETCH, asking())
            failed.append(told.value)

        for number in (1, 2):
            async with trio.open_nursery() as nursery:
                for _ in range(50):
                    nursery.start_soon(ask)
            assert (attempts, len(failed)) == (number, 50 * number)
        assert len({id(each) for each in failed}) == 100

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.0))


def test_who_comes_during_an_attempt_has_another_one() -> None:
    found = iter([("127.0.0.1", 1)] * 2)  # nobody listens there

    async def main() -> None:
        async with listening(MemoryBroker(MemoryTopic("t", ID, [MemoryLeader()], (1, 2)))) as listener:
            link = PeerLink(lambda: next(found, listener.address), "test")

            async def fails() -> None:
                with pytest.raises(ConnectionLost):
                    await link.ask(ApiKey.FETCH, asking(), least=15)

            await fails()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fails)  # its attempt begins after a pause
                await trio.testing.wait_all_tasks_blocked()
                assert (await link.ask(ApiKey.FETCH, asking(), least=15))["error_code"] == 0
            link.close()

    trio.run(main)


def test_coordinators_are_asked_by_one_link_for_each_partition() -> None:
    """Answers come in the order of the requests. So one that waits for the disk of a partition would keep those about
    other partitions waiting."""
    partitions = 5
    image: Any = SimpleNamespace(topics={TRANSACTIONS: SimpleNamespace(partitions=range(partitions))})
    links = PeerLinks(lambda: image, InterBroker(), "test")
    names = [str(number) for number in range(50)]
    found = {(partition_of(name, partitions), links.to_coordinator(2, TRANSACTIONS, name)) for name in names}
    assert len(found) == len({link for _, link in found}) == partitions
    assert links.to(2) is links.to(2)
    assert links.to(2) is not links.to(3)


def test_a_thousand_partitions_share_few_links() -> None:
    """A job that fills a topic appends to all its partitions at the same time. One address may have 1,000
    connections."""
    links = PeerLinks(Image, InterBroker(), "test")
    found = {links.to(2, TopicPartition("t", index)) for index in range(1000)}
    assert 2 <= len(found) <= LINES
