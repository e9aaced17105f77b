"""Half a message costs its sender nothing. Peers that have not logged in keep few bytes of such, and nobody waits for
them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import trio_test

import krappy
from krappy.server.authentication import LOCKED_FRAME
from krappy.server.strangers import StrangerBytes
from krappy.wire import messages as m
from tests.process import PATIENCE
from tests.security.test_sasl import SECRET, users_dir
from tests.server.test_leaving import until

MEMORY = 1 << 20  # of which strangers have room for eight of their largest messages
MANY = 150  # connections: their bytes are more than all of MEMORY
HALF = LOCKED_FRAME.to_bytes(4, "big") + bytes(LOCKED_FRAME - 1)
SENDERS = [f"127.0.0.{number}" for number in range(2, 12)]


@asynccontextmanager
async def guarded(folder: Path) -> AsyncIterator[krappy.Broker]:
    settings: dict[str, Any] = {
        **{"listen_native": "SASL_PLAINTEXT://127.0.0.1:0", "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0"},
        **{"users_dir": users_dir(folder / "users", ada=SECRET), "sasl_enabled_mechanisms": "SCRAM-SHA-512,PLAIN"},
        **{"super_users": "User:ada", "durability": "os"},
    }
    async with krappy.Broker(folder / "data", memory_bytes=MEMORY, **settings) as broker:
        yield broker


async def connected(address: str, source: str) -> trio.SocketStream:
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port), local_address=source)


@pytest.mark.parametrize("protocol", ["native", "kafka"])
@trio_test
async def test_half_messages_of_strangers_leave_the_budget_to_others(tmp_path: Path, protocol: str) -> None:
    """A publish of more than 64 KiB needs room in the budget. It never got any while strangers filled the budget with
    half messages, and sent another one in place of each that was dropped."""
    async with guarded(tmp_path) as broker, AsyncExitStack() as opened:
        server, address = broker.server, broker.address if protocol == "native" else broker.kafka_address
        early = await opened.enter_async_context(await connected(address, "127.0.0.99"))
        await early.send_all(HALF[:1000])
        await until(lambda: server.stranger_bytes.used == 1000, "one stranger's half message is there")
        (stays,) = server.connections
        for number in range(MANY):
            stream = await opened.enter_async_context(await connected(address, SENDERS[number % len(SENDERS)]))
            with suppress(trio.BrokenResourceError):  # it may give way before it has sent all
                await stream.send_all(HALF)
        await until(lambda: server.accepted == MANY + 1, "all have come")
        await until(lambda: len(server.connections) <= 9, "others have given way")
        assert server.stranger_bytes.used <= MEMORY // 16
        assert server.budget.used == 0
        async with krappy.connect(broker.address, user="ada", password=SECRET) as client:
            await client.create_topic("large")
            async with client.producer("large") as producer:
                with trio.fail_after(PATIENCE):
                    await producer.send(b"x" * (MEMORY // 8))
        assert stays in server.connections  # its address has fewest bytes
        await opened.aclose()
        await until(lambda: not server.connections, "all have left")
        assert server.stranger_bytes.used == 0


@trio_test
async def test_what_comes_behind_a_login_is_no_strangers(tmp_path: Path) -> None:
    """It counts as all that clients send, as soon as its sender has logged in."""
    login, ping = m.Authenticate("PLAIN", f"\0ada\0{SECRET}".encode()).frame(1), m.Ping().frame(2)
    async with guarded(tmp_path) as broker, await connected(broker.address, "127.0.0.1") as stream:
        server = broker.server
        await stream.send_all(login + ping[:-1])
        await until(lambda: server.budget.used == len(ping) - 1, "it has logged in")
        assert server.stranger_bytes.used == 0
        await stream.send_all(ping[-1:])
        await until(lambda: server.budget.used == 0, "it is answered")


class Waiting:
    def __init__(self, name: str, ended: list[str]) -> None:
        self._name, self._ended = name, ended

    def give_way(self, why: str) -> None:
        self._ended.append(self._name)


def test_who_gives_way() -> None:
    """Of the address with most bytes, the one that has waited longest; as many as it takes, and nobody twice."""
    ended: list[str] = []
    room = StrangerBytes(100)
    alone, one, two, three, four = (Waiting(name, ended) for name in ("alone", "1", "2", "3", "4"))
    room.keep("10.0.0.1", alone, 40)
    for each in (one, two, three, four):
        room.keep("10.0.0.2", each, 20)
    assert (ended, room.used) == (["1"], 100)
    room.keep("10.0.0.2", one, 0)  # its end
    room.keep("10.0.0.2", two, 0)  # its message is whole
    assert (ended, room.used) == (["1"], 80)
    room.keep("10.0.0.1", alone, 60)
    assert (ended, room.used) == (["1"], 100)
    room.keep("10.0.0.2", four, 70)
    assert (ended, room.used) == (["1", "3", "4"], 60)
    room.keep("10.0.0.1", alone, 0)
    assert room.used == 0
