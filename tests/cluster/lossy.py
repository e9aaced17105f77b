"""Three brokers whose answers to clients can be lost, because clients reach them through proxies. Brokers reach each
other by another listener, and so do tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient

from tests.clients.proxy import Proxy, proxy
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.kafka.raw import Raw
from tests.process import free_ports


class LossyProcesses(ClusterProcesses):
    """`kafka` and `native` are the proxies' addresses."""

    def __init__(self, folder: Path, shared: SharedProcesses, stack: ExitStack) -> None:
        super().__init__(folder, shared.zookeeper, 3, shared.launch, zookeeper_session_timeout_ms=4000)
        self.ways: list[Proxy] = []
        self._direct: dict[int, str] = {}
        self._kafka: list[str] = []
        self._native: list[str] = []
        for id, own in zip(self.brokers, free_ports(3), strict=True):
            settings = self.brokers[id].settings
            kafka = stack.enter_context(proxy(str(settings["listen_kafka"])))
            native = stack.enter_context(proxy(str(settings["listen_native"])))
            self.ways += [kafka, native]
            self._kafka.append(kafka.address)
            self._native.append(native.address)
            self._direct[id] = f"127.0.0.1:{own}"
            settings["listen_kafka"] = f"OWN://{self._direct[id]},CLIENTS://{kafka.to}"
            settings["listener_security_protocol_map"] = "OWN:PLAINTEXT,CLIENTS:PLAINTEXT"
            settings["advertised_listeners"] = f"CLIENTS://{kafka.address},NATIVE://{native.address}"

    @property
    def kafka(self) -> str:
        return ",".join(self._kafka)

    @property
    def native(self) -> str:
        return ",".join(self._native)

    @property
    def admin(self) -> AdminClient:
        self._admin = AdminClient({"bootstrap.servers": self.kafka})
        return self._admin

    def asked(self, id: int) -> Raw:
        return Raw(self._direct[id])

    def as_client(self, id: int) -> Raw:
        """A connection whose answers can be lost."""
        return Raw(self._kafka[id - 1])

    def deafen(self) -> None:
        """From now on clients' requests pass, but answers do not, until `cut`."""
        for each in self.ways:
            each.deafen()

    def cut(self) -> None:
        """Resets all connections of clients. They may connect again."""
        for each in self.ways:
            each.cut()


@contextmanager
def lossy_brokers(folder: Path, shared: SharedProcesses) -> Iterator[LossyProcesses]:
    with ExitStack() as stack:
        cluster = LossyProcesses(folder, shared, stack)
        stack.callback(cluster.kill)
        cluster.start()
        yield cluster
