"""Who comes into an ISR, over real brokers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.brokers import ClusterProcesses
from tests.cluster.test_cluster import leaders, make_topic
from tests.process import child, wait_until

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


def times_back(cluster: ClusterProcesses, follower: int) -> int:
    """How often a leader took this broker into an ISR."""
    return sum(
        follower in each["came"]
        for id in cluster.brokers
        if id != follower
        for each in cluster.events(id, "isr_changed")
    )


def test_a_follower_that_only_zookeeper_does_not_hear_of_stays_out_of_the_isr(cluster: ClusterProcesses) -> None:
    """It goes on to fetch, and is registered until its session ends. The controller takes it out before that; leaders
    do not put it back several times a second."""
    make_topic(cluster, "t")
    with proxy(cluster.zookeeper.port) as between:
        assert between.stdout is not None
        cut = cluster.brokers[3]
        assert cut.stop() == 0
        chroot = str(cut.settings["zookeeper_connect"]).partition("/")[2]
        cut.settings["zookeeper_connect"] = f"127.0.0.1:{int(between.stdout.readline())}/{chroot}"
        cut.start()
        cluster.until_in_sync("t")
        [first, *_] = [index for index, leader in enumerate(leaders(cluster, "t")) if leader != 3]

        def is_in() -> bool:
            return 3 in cluster.partitions_at(1, "t")[first].isrs  # broker 3 hears of nothing

        before = times_back(cluster, 3)
        os.kill(between.pid, signal.SIGSTOP)
        try:
            wait_until(lambda: not is_in(), "the controller has taken the broker out")
            end = time.monotonic() + 2  # its session lasts that long, at least
            while time.monotonic() < end:
                assert not is_in()
            assert times_back(cluster, 3) == before
        finally:
            os.kill(between.pid, signal.SIGCONT)
        cluster.until_in_sync("t")
        assert times_back(cluster, 3) > before
