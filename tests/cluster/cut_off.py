"""A broker that reaches ZooKeeper through a proxy, so that it can be cut off from ZooKeeper alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from tests.cluster.brokers import ClusterProcesses
from tests.process import child

PROXY = """
import sys, trio
from tests.cluster.proxy import Proxy

async def main():
    proxy = Proxy(("127.0.0.1", int(sys.argv[1])))
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        print(proxy.port, flush=True)

trio.run(main)
"""


@contextmanager
def proxy(port: int) -> Iterator[subprocess.Popen[str]]:
    """A process that is a proxy of ZooKeeper. Its first line of output is its port. While it is stopped, nothing
    passes."""
    with child([sys.executable, "-c", PROXY, str(port)], stdout=subprocess.PIPE, text=True) as process:
        yield process


@contextmanager
def cut_off(cluster: ClusterProcesses, id: int) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """Starts the broker again, with a proxy. In `with cut():` the broker and ZooKeeper do not hear from each other, but
    their connections stay."""
    with proxy(cluster.zookeeper.port) as between:
        assert between.stdout is not None
        broker = cluster.brokers[id]
        assert broker.stop() == 0
        chroot = str(broker.settings["zookeeper_connect"]).partition("/")[2]
        broker.settings["zookeeper_connect"] = f"127.0.0.1:{int(between.stdout.readline())}/{chroot}"
        broker.start()
        cluster.until_known()

        @contextmanager
        def cut() -> Iterator[None]:
            os.kill(between.pid, signal.SIGSTOP)
            try:
                yield
            finally:
                os.kill(between.pid, signal.SIGCONT)

        yield cut
