"""What the server does while its memory is spent: requests on their way go on, later."""

from __future__ import annotations

from pathlib import Path

import trio

from krappy import errors
from krappy.wire import messages as m
from krappy.wire.frames import FrameReader
from krappy.wire.messages import read_error, take_id, unpack
from tests.server.test_leaving import opened, topic, until


def test_the_end_of_a_large_frame_comes_while_memory_is_spent(tmp_path: Path) -> None:
    frame = m.Message(1, bytes(200_000)).frame(7)
    last = 1000

    async def main() -> None:
        async with topic(tmp_path, memory_bytes=1 << 20) as broker:
            budget = broker.server.budget
            stream, connection = await opened(broker, broker.address)
            async with stream:
                await stream.send_all(frame[:-last])
                await until(lambda: connection.received == len(frame) - last, "all but the last bytes are there")
                taken = budget.total - budget.used
                budget.charge(taken)
                await stream.send_all(frame[-last:])
                await until(lambda: connection.received == len(frame), "the frame is whole")
                budget.credit(taken)
                reader = FrameReader()
                while not (frames := list(reader.frames())):
                    reader.feed(await stream.receive_some())
                values = unpack(frames[0][1])
                assert take_id(values) == 7
                assert isinstance(read_error(values), errors.UnknownHandle)

    trio.run(main)
