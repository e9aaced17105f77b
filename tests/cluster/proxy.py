"""A proxy between a client and ZooKeeper. It can end connections after a number of bytes, or let nothing through."""

from __future__ import annotations

import trio


class Proxy:
    """`cut_after`: a connection ends after so many bytes in one direction; None: never. `silent`: while it is True,
    bytes are read and dropped. `delay_s`: how many seconds bytes to the client are delayed."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.cut_after: tuple[str, int] | None = None  # ("in" or "out", from the client's view; bytes)
        self.silent = False
        self.delay_s = 0.0
        self.connections = 0
        self.passed = {"in": 0, "out": 0}  # bytes of the newest connection, by direction
        self.port = 0

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        async with trio.open_nursery() as nursery:
            [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.port = listener.socket.getsockname()[1]
            task_status.started()
            await trio.serve_listeners(self._serve, [listener], handler_nursery=nursery)

    @property
    def address(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    async def _serve(self, client: trio.SocketStream) -> None:
        self.connections += 1
        self.passed = {"in": 0, "out": 0}
        passed = self.passed
        try:
            server = await trio.open_tcp_stream(*self.target)
        except OSError:
            return
        async with server, trio.open_nursery() as nursery:
            nursery.start_soon(self._pass, "out", client, server, passed, nursery.cancel_scope)
            nursery.start_soon(self._pass, "in", server, client, passed, nursery.cancel_scope)

    async def _pass(
        self,
        way: str,
        source: trio.SocketStream,
        sink: trio.SocketStream,
        passed: dict[str, int],
        connection: trio.CancelScope,
    ) -> None:
        try:
            while data := await source.receive_some(1 << 16):
                if self.silent:
                    continue
                if self.cut_after is not None and self.cut_after[0] == way:
                    data = data[: self.cut_after[1] - passed[way]]
                if way == "in" and self.delay_s:
                    await trio.sleep(self.delay_s)
                passed[way] += len(data)
                await sink.send_all(data)
                if self.cut_after is not None and self.cut_after[0] == way and passed[way] >= self.cut_after[1]:
                    break
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        connection.cancel()
