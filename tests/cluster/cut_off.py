"""A broker of a cluster that reaches ZooKeeper through a proxy, so that it can be cut off from it alone."""

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
    """A process through which ZooKeeper is reached, until it is stopped; its first line is its port."""
    with child([sys.executable, "-c", PROXY, str(port)], stdout=subprocess.PIPE, text=True) as process:
        yield process


@contextmanager
def cut_off(cluster: ClusterProcesses, id: int) -> Iterator[Callable[[], AbstractContextManager[None]]]:
    """The broker is started again. In `with cut():` it does not hear of ZooKeeper, nor ZooKeeper of it; its connections
    stay."""
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
