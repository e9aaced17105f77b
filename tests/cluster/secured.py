"""Clusters whose brokers reach each other over TLS, and log in."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from krappy import blocking
from krappy.core.security.scram import ScramClient
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.kafka.raw import Raw
from tests.security.authority import Authority

PASSWORDS = {"broker": "broker-secret", "admin": "admin-secret", "eve": "eve-secret"}
HOST = "127.0.0.1"


def log_in(raw: Raw, user: str, password: str) -> None:
    """Logs in by SCRAM. Raises AssertionError if the broker refuses the user."""
    assert raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-512"})["error_code"] == 0
    client = ScramClient("SCRAM-SHA-512", user, password, "nonce")
    data = client.first()
    while data:
        answer = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": data})
        assert not answer["error_code"], answer
        data = client.step(bytes(answer["auth_bytes"]))
    assert client.done


class SecuredProcesses(ClusterProcesses):
    """Users log in over TLS at every listener. Brokers log in at each other as the user `broker`. `folder`: has the
    certificate of each broker as ID.pem, and its password as ID.password."""

    def __init__(self, folder: Path, authority: Authority, shared: SharedProcesses, **settings: Any) -> None:
        self.folder, self.authority = folder, authority
        users = folder / "users"
        users.mkdir()
        for name, password in PASSWORDS.items():
            (users / name).write_text(password)
        common = {
            "tls_client_ca": authority.ca,
            "users_dir": str(users),
            "super_users": "User:broker;User:admin",
            "inter_broker_user": "broker",
        }
        super().__init__(folder, shared.zookeeper, 3, shared.launch, **{**common, **settings})
        for id, each in self.brokers.items():
            self.certify(id, authority.issue(HOST))
            self.password(id, PASSWORDS["broker"])
            each.settings["tls_certificate"] = str(folder / f"{id}.pem")
            each.settings["inter_broker_password_file"] = str(folder / f"{id}.password")
            for name in ("listen_native", "listen_kafka", "listen_http"):
                each.settings[name] = f"SASL_SSL://{each.settings[name]}"

    def certify(self, id: int, certificate: str) -> None:
        """Gives the broker another certificate."""
        shutil.copy(certificate, self.folder / f"{id}.pem")

    def password(self, id: int, password: str) -> None:
        (self.folder / f"{id}.password").write_text(password + "\n")

    def address(self, id: int, listener: str = "listen_kafka") -> str:
        return str(self.brokers[id].settings[listener]).removeprefix("SASL_SSL://")

    @property
    def kafka(self) -> str:
        return ",".join(self.address(id) for id in self.running)

    def asked(self, id: int, user: str = "admin", client_id: str = "raw") -> Raw:
        raw = Raw(self.address(id), client_id)
        raw.socket = self.authority.context().wrap_socket(raw.socket, server_hostname=HOST)
        log_in(raw, user, PASSWORDS[user])
        return raw

    def options(self, user: str = "admin") -> dict[str, Any]:
        """The settings of a client of librdkafka."""
        return {
            "bootstrap.servers": self.kafka,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": self.authority.ca,
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.username": user,
            "sasl.password": PASSWORDS[user],
        }

    @property
    def admin(self) -> AdminClient:
        self._admin = AdminClient(self.options())
        return self._admin

    def producer(self, **options: Any) -> Producer:
        return Producer({**self.options(), **options})

    def connect(self, id: int, user: str = "admin") -> blocking.Client:
        address = self.address(id, "listen_native")
        return blocking.connect(address, ca=self.authority.ca, user=user, password=PASSWORDS[user], timeout=30)

    def logs(self) -> str:
        return "".join(each.log.read_text(errors="replace") for each in self.brokers.values())
