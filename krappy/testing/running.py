"""Runs a broker in a thread, for tests and programs that do not use trio."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import trio

    from krappy.app import Broker
    from krappy.blocking import Client

STOP_SECONDS = 30.0


class RunningBroker:
    """A running broker. `address`, `kafka_address`: HOST:PORT of its protocols. `data_dir`: its data folder.

    `http_address`: HOST:PORT of its console if it was started with one (`listen_http="127.0.0.1:0"`), else "".
    `kafka_addresses`: HOST:PORT of each Kafka listener, by the listener's name.
    """

    def __init__(
        self,
        address: str,
        data_dir: Path,
        kafka_address: str = "",
        http_address: str = "",
        kafka_addresses: dict[str, str] | None = None,
    ) -> None:
        self.kafka_addresses = kafka_addresses or {}
        self.address = address
        self.http_address = http_address
        self.kafka_address = kafka_address
        self.data_dir = data_dir

    @contextmanager
    def connect(self, **options: Any) -> Iterator[Client]:
        """A blocking client (`krappy.blocking`), closed at the end of the `with`."""
        from krappy import blocking

        with blocking.connect(self.address, **options) as client:
            yield client


@contextmanager
def run_broker(data_dir: str | Path, **settings: Any) -> Iterator[RunningBroker]:
    """Runs a broker on a free port of 127.0.0.1 until the `with` ends. `settings`: any setting of a broker, by name;
    `ballast_bytes` is 0 by default here.

    Raises the broker's error: at once when it does not start; at the end of the `with` when it fails later. Raises
    TimeoutError when it does not stop.
    """
    data_dir = Path(data_dir)
    settings = {"ballast_bytes": 0, **settings}
    said: queue.SimpleQueue[tuple[Broker, trio.lowlevel.TrioToken, trio.Event] | BaseException] = queue.SimpleQueue()
    ended: list[BaseException] = []

    def main() -> None:
        try:
            run()
        except BaseException as error:  # any error, because the caller waits for `said`
            ended.append(error)
            said.put(error)

    def run() -> None:
        import trio

        from krappy.app import Broker, first_error

        async def serve() -> None:
            stop = trio.Event()
            async with Broker(data_dir, **settings) as broker:
                said.put((broker, trio.lowlevel.current_trio_token(), stop))
                await stop.wait()

        try:
            trio.run(serve)
        except BaseException as group:
            raise first_error(group) from None

    thread = threading.Thread(target=main, name="krappy-broker", daemon=True)
    thread.start()
    first = said.get()
    if isinstance(first, BaseException):
        thread.join()
        raise first
    broker, token, stop = first
    try:
        yield RunningBroker(broker.address, data_dir, broker.kafka_address, broker.http_address, broker.kafka_addresses)
    finally:
        if thread.is_alive():
            with contextlib.suppress(RuntimeError):  # trio.RunFinishedError: it has just ended
                token.run_sync_soon(stop.set)
        thread.join(STOP_SECONDS)
    if thread.is_alive():
        raise TimeoutError(f"the broker did not stop within {STOP_SECONDS:.0f} s")
    if ended:
        raise ended[0]
