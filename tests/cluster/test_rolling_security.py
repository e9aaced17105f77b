"""A running cluster gets TLS and users, broker by broker, as krappy/docs/howto/secure-cluster.md says. Clients write
meanwhile. No acknowledged event is lost, and none is there twice."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition

from krappy.settings.listeners import read_listeners
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.cluster.secured import HOST, PASSWORDS, log_in
from tests.kafka.raw import Raw
from tests.long import long
from tests.process import free_ports
from tests.security.authority import Authority

TOPIC, PARTITIONS = "t", 6


class RollingProcesses(ClusterProcesses):
    """`secured`: whether tests and clients connect over TLS."""

    def __init__(self, folder: Path, shared: SharedProcesses) -> None:
        super().__init__(folder, shared.zookeeper, 3, shared.launch)
        self.authority = Authority(folder)
        self.secured = False
        self._plain = {id: str(each.settings["listen_kafka"]) for id, each in self.brokers.items()}
        self._ports = dict(zip(self.brokers, free_ports(3), strict=True))
        users = folder / "users"
        users.mkdir()
        for name, password in PASSWORDS.items():
            (users / name).write_text(password)

    def listen(self, id: int, *, plain: bool) -> str:
        secure = f"SASL_SSL://{HOST}:{self._ports[id]}"
        return f"PLAINTEXT://{self._plain[id]},{secure}" if plain else secure

    def roll(self, **settings: Any) -> None:
        """Restarts one broker after another, with these settings added. `plain`: whether the listener without TLS
        stays."""
        plain = settings.pop("plain")
        for id, each in self.brokers.items():
            self.until_in_sync(TOPIC)
            assert each.stop() == 0
            each.settings.update(settings, listen_kafka=self.listen(id, plain=plain))
            each.start()
            self.until_known()

    def make_topic(self) -> None:
        with self.asked(1) as raw:
            topic = {"name": TOPIC, "num_partitions": PARTITIONS, "replication_factor": 3}
            [made] = raw.ask(ApiKey.CREATE_TOPICS, {"topics": [topic], "timeout_ms": 30_000})["topics"]
            assert made["error_code"] == 0, made
        self.until_in_sync(TOPIC)

    def asked(self, id: int) -> Raw:
        listeners = dict(read_listeners(str(self.brokers[id].settings["listen_kafka"])))
        raw = Raw(listeners["SASL_SSL" if self.secured else "PLAINTEXT"])
        if self.secured:
            raw.socket = self.authority.context().wrap_socket(raw.socket, server_hostname=HOST)
            log_in(raw, "admin", PASSWORDS["admin"])
        return raw

    def options(self) -> dict[str, Any]:
        """The settings of a client of librdkafka."""
        if not self.secured:
            return {"bootstrap.servers": ",".join(self._plain.values())}
        return {
            "bootstrap.servers": ",".join(f"{HOST}:{port}" for port in self._ports.values()),
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": "admin",
            "sasl.password": PASSWORDS["admin"],
        }


class Writing:
    """A producer that writes until the `with` ends. `acknowledged`: the values of the acknowledged events."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.acknowledged: list[bytes] = []
        self.failed: list[Any] = []
        self._name = name
        self._producer = Producer({**options, "enable.idempotence": True, "linger.ms": 5, "message.timeout.ms": 60_000})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._write)

    def __enter__(self) -> Writing:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        assert self._producer.flush(60) == 0

    def _write(self) -> None:
        number = 0
        while not self._over.wait(0.005):
            value = f"{self._name} {number}".encode()
            self._producer.produce(TOPIC, value, partition=number % PARTITIONS, on_delivery=self._told)
            self._producer.poll(0)
            number += 1

    def _told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.value())
        else:
            self.failed.append(error)


def read_all(options: dict[str, Any]) -> Counter[bytes]:
    consumer = Consumer({**options, "group.id": "all", "enable.auto.commit": False, "enable.partition.eof": True})
    consumer.assign([TopicPartition(TOPIC, index, 0) for index in range(PARTITIONS)])
    found: Counter[bytes] = Counter()
    ended = 0
    while ended < PARTITIONS:
        for each in consumer.consume(1000, 30):
            if each.error():
                ended += 1
            else:
                found[each.value()] += 1
    consumer.close()
    return found


@long
def test_a_running_cluster_gets_tls_and_users(tmp_path: Path, shared_processes: SharedProcesses) -> None:
    cluster = RollingProcesses(tmp_path, shared_processes)
    for each in cluster.brokers.values():
        each.settings["listen_kafka"] = f"PLAINTEXT://{each.settings['listen_kafka']}"
    try:
        cluster.start()
        cluster.make_topic()
        with contextlib.ExitStack() as writing:
            before = writing.enter_context(Writing("before", cluster.options()))
            # 1. There is a second listener. Nobody needs it yet, and everybody may still do everything.
            cluster.roll(
                plain=True,
                authorizer="none",
                tls_certificate=cluster.authority.issue(HOST),
                tls_client_ca=cluster.authority.ca,
                users_dir=str(tmp_path / "users"),
                inter_broker_user="broker",
                inter_broker_password_file=str(tmp_path / "users" / "broker"),
                super_users="User:broker;User:admin",
            )
            cluster.secured = True
            # 2. Brokers reach each other by the second listener. Then clients change to it, too.
            cluster.roll(plain=True, inter_broker_listener_name="SASL_SSL")
            with Writing("after", cluster.options()) as after:
                writing.close()
                # 3. The first listener is removed, and ACLs are in force.
                cluster.roll(plain=False, authorizer="acl")
        cluster.until_in_sync(TOPIC)
        assert not before.failed + after.failed
        assert len(before.acknowledged) > 100
        assert len(after.acknowledged) > 100
        found = read_all(cluster.options())
        assert not set(before.acknowledged + after.acknowledged) - found.keys()
        assert set(found.values()) == {1}
        cluster.check_errors()
    finally:
        cluster.kill()
