"""What a round runs on: three brokers on machines of their own, one or three ZooKeepers, the network between them."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from krappy.wire.kafka import ApiKey
from tests.chaos.machines import Machine, Shims
from tests.chaos.networks import Network
from tests.chaos.renewed import Renewed
from tests.cluster.zookeeper import ZooKeeperServer, jars
from tests.kafka.raw import Raw
from tests.process import wait_until

BROKERS = (1, 2, 3)
LOOK_SECONDS = 3.0
MOST = 4  # a patience lasts at most so many times its seconds
Tell = Callable[[str], None]


class Patience:
    """A number of seconds in which the brokers could work. Time for which the machine kept a broker off its processors
    does not count."""

    def __init__(self, machines: Iterable[Machine], seconds: float) -> None:
        self._machines, self._seconds = tuple(machines), seconds
        self._began = time.monotonic()
        self._before = {each.process.pid: self._kept_off(each) for each in self._machines if each.process.running}

    def _kept_off(self, machine: Machine) -> float:
        try:
            return machine.process.kept_off()
        except OSError:  # the process has just ended
            return 0.0

    @property
    def passed(self) -> float:
        return time.monotonic() - self._began

    @property
    def kept_off(self) -> float:
        """Seconds for which a broker was kept off the processors; of the broker that waited longest."""
        running = [each for each in self._machines if each.process.running]
        return max((self._kept_off(each) - self._before.get(each.process.pid, 0.0) for each in running), default=0.0)

    @property
    def is_over(self) -> bool:
        return self.passed > min(self._seconds + self.kept_off, MOST * self._seconds)


class World:
    """`machines`: by broker id. `zookeepers`: in the order of their numbers. `close` ends everything."""

    def __init__(self, folder: Path, network: Network, zookeepers: int, shims: Shims, **settings: Any) -> None:
        self.folder, self.network = folder, network
        self.zookeepers = _ensemble(folder, network, zookeepers)
        self.zookeeper_down: set[int] = set()
        connect = ",".join("{}:{}".format(*each.address) for each in self.zookeepers) + "/chaos"
        self.machines: dict[int, Machine] = {}
        for id in BROKERS:
            host = network.join(f"broker-{id}")
            native, kafka = network.ports(2)
            listen = {"listen_native": f"{host.address}:{native}", "listen_kafka": f"{host.address}:{kafka}"}
            self.machines[id] = Machine(id, folder, host, {"zookeeper_connect": connect, **listen, **settings}, shims)
        self._connect()
        self.died: list[str] = []  # brokers that ended by themselves
        self.wrong: list[str] = []  # other things that must not happen
        self.anew = Renewed()

    @property
    def kafka(self) -> str:
        return ",".join(str(each.process.settings["listen_kafka"]) for each in self.machines.values())

    @property
    def native(self) -> str:
        return ",".join(str(each.process.settings["listen_native"]) for each in self.machines.values())

    def start(self) -> None:
        """Returns once all brokers are registered. Raises Missing."""
        jars()
        for zookeeper in self.zookeepers:
            zookeeper.start()
        for zookeeper in self.zookeepers:
            zookeeper.wait()
        for machine in self.machines.values():
            machine.begin()
        for machine in self.machines.values():
            machine.process.ready()
        wait_until(lambda: all(each.process.events("registered") for each in self.machines.values()), "all registered")

    def close(self) -> None:
        for machine in self.machines.values():
            with contextlib.suppress(OSError, AssertionError):
                machine.kill()
        for zookeeper in self.zookeepers:
            with contextlib.suppress(OSError):
                zookeeper.kill()

    # --- its present state

    def look(self) -> ClusterMetadata | None:
        """What a broker says of the cluster. None: no broker answers, not even to a new client."""
        for _ in range(2):
            with contextlib.suppress(KafkaException):
                return self.admin.list_topics(timeout=LOOK_SECONDS)
            self._connect()
        return None

    def _connect(self) -> None:
        self.admin = AdminClient({"bootstrap.servers": self.kafka, "socket.timeout.ms": 5000, "log_level": 0})

    def leader(self, topic: str, partition: int) -> int:
        """The leader's broker id. −1: there is no leader, or no broker knows it."""
        found = self.look()
        if found is None or topic not in found.topics or partition not in found.topics[topic].partitions:
            return -1
        return int(found.topics[topic].partitions[partition].leader)

    def controller(self) -> int:
        found = self.look()
        return -1 if found is None else int(found.controller_id)

    def lagging(self, topics: dict[str, int]) -> list[str]:
        """The partitions that lack a leader, a replica in sync, or a replica. `topics`: how many partitions each
        has."""
        found = self.look()
        if found is None:
            return ["no broker answers"]
        lacking = []
        for topic, count in topics.items():
            there = found.topics[topic].partitions if topic in found.topics else {}
            for index in range(count):
                each = there.get(index)
                if each is None or each.leader < 0 or not sorted(each.isrs) == sorted(each.replicas) == list(BROKERS):
                    told = "unknown" if each is None else f"leader {each.leader}, in sync {sorted(each.isrs)}"
                    lacking.append(f"{topic}-{index}: {told}")
        return lacking

    def ask(self, key: ApiKey, body: dict[str, Any], timeout: float = 5.0) -> dict[str, Any] | None:
        """Sends a request to the first broker that runs, by Kafka's protocol. None: it did not answer."""
        for machine in self.machines.values():
            if machine.up and not machine.paused and not machine.cut:
                address = str(machine.process.settings["listen_kafka"])
                with contextlib.suppress(OSError, EOFError), Raw(address, timeout=timeout) as raw:
                    return raw.ask(key, body)
        return None

    def tend(self) -> None:
        """Starts brokers again that ended by themselves, as a supervisor does, and notes that they died."""
        for machine in self.machines.values():
            if machine.up and not machine.paused and not machine.process.running:
                self.died.append(f"broker {machine.id} ended by itself: {machine.process.last_words()[-600:]}")
                machine.begin()

    # --- ZooKeepers

    def kill_zookeeper(self, index: int, how: signal.Signals = signal.SIGKILL) -> None:
        self.zookeepers[index].kill(how)
        self.zookeeper_down.add(index)

    def start_zookeeper(self, index: int) -> None:
        self.zookeepers[index].start()
        self.zookeeper_down.discard(index)

    # --- the end of a round

    def heal(self) -> None:
        """Ends all trouble: afterwards all servers run, and reach each other."""
        for machine in self.machines.values():
            if machine.cut:
                self.network.heal(machine.host.name)  # type: ignore[union-attr]
                machine.cut = ""
            if machine.paused:
                machine.pause(False)
            machine.jump(0)
            machine.busy = ""
        for index in range(len(self.zookeepers)):
            self.zookeepers[index].pause(False) if self.zookeepers[index].running else self.start_zookeeper(index)
        for zookeeper in self.zookeepers:
            zookeeper.wait()
        for machine in self.machines.values():
            if not machine.up:
                machine.begin()

    def until_in_sync(self, topics: dict[str, int], seconds: float) -> tuple[float, list[str]]:
        """Waits until all replicas are in sync. Returns (seconds that it took, the partitions that still lag)."""
        began = time.monotonic()
        while lacking := self.lagging(topics):
            if time.monotonic() > began + seconds:
                break
            self.tend()
            time.sleep(0.2)
        return time.monotonic() - began, lacking


def _ensemble(folder: Path, network: Network, count: int) -> list[ZooKeeperServer]:
    hosts = [network.join(f"zookeeper-{number + 1}") for number in range(count)]
    ports = [network.ports(3) for _ in hosts]
    lines = [f"server.{n + 1}={host.address}:{ports[n][1]}:{ports[n][2]}" for n, host in enumerate(hosts)]
    ensemble = "\n".join(lines) + "\n" if count > 1 else ""
    return [
        ZooKeeperServer(folder / host.name, ports[n][0], n + 1, ensemble, host.address, host.prefix)
        for n, host in enumerate(hosts)
    ]


@contextlib.contextmanager
def world(folder: Path, network: Network, zookeepers: int, shims: Shims, **settings: Any) -> Iterator[World]:
    made = World(folder, network, zookeepers, shims, **settings)
    try:
        made.start()
        yield made
    finally:
        made.close()
