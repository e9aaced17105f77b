"""TLS and users on a running broker, as k8s/README.md adds them; and what can change while it runs."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from krappy.errors import AuthenticationFailed, AuthorizationFailed
from tests.k8s.cluster.conftest import define
from tests.k8s.cluster.guide import Desk, blocks
from tests.k8s.cluster.krappy import CLIENT_S, Krappy
from tests.k8s.cluster.secrets import Secrets, certificate

TOPIC = "secured"
SEEN_S = 180  # seconds until a changed Secret is in the pod: the kubelet's sync takes a minute and more


@pytest.fixture(scope="module")
def held(installed: Krappy, desk: Desk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secrets]:
    """Adds the components of "TLS and users" to the overlay, with their Secrets; at the end the overlay is
    as it was."""
    installed.wait_until_ready()
    with installed.client() as client:
        client.create_topic(TOPIC, partitions=3, if_absent=True)
        with client.producer(TOPIC) as producer:
            producer.send_columns([f"k{number}" for number in range(1000)], ["before"] * 1000)
    before = desk.overlay.read_text()
    [text] = blocks("Security", "yaml")
    desk.overlay.write_text(
        yaml.safe_dump({**yaml.safe_load(before), "components": yaml.safe_load(text)["components"]})
    )
    define(installed.node, "cert-manager.io", "Certificate")
    found = Secrets(installed.kubectl, tmp_path_factory.mktemp("authority"))
    found.apply(certificate(installed.kubectl, desk.overlay.parent))
    roll = "kubectl apply -k my-krappy && kubectl -n krappy rollout status statefulset/krappy --timeout=300s"
    try:
        desk.type(roll)
        found.log_in(installed)
        installed.wait_until_ready()
        yield found
    finally:
        installed.login, installed.kafka_login = {}, {}
        desk.overlay.write_text(before)
        desk.type(f"{roll} && kubectl -n krappy delete certificate krappy-tls")
        installed.wait_until_ready()


@pytest.fixture
def secured(installed: Krappy, held: Secrets) -> Krappy:
    installed.wait_until_ready()
    return installed


def test_who_logs_in_finds_what_was_there(secured: Krappy, held: Secrets) -> None:
    with secured.client() as client:
        found = client.table(TOPIC).get("k7")
        assert found is not None
        assert found.value == b"before"
    producer = Producer({"bootstrap.servers": secured.kafka, **secured.kafka_login})
    producer.produce(TOPIC, b"by librdkafka", b"k7")
    assert producer.flush(CLIENT_S) == 0
    assert (b"k7", b"by librdkafka") in secured.stored(TOPIC)
    [broker] = (
        AdminClient({"bootstrap.servers": secured.kafka, **secured.kafka_login})
        .list_topics(timeout=CLIENT_S)
        .brokers.values()
    )
    assert broker.host == "krappy-0.krappy-headless.krappy.svc"


def test_nobody_else_comes_in(secured: Krappy, held: Secrets) -> None:
    with pytest.raises(AuthenticationFailed), secured.client(**{**held.native("admin"), "password": "wrong"}):
        pass
    with secured.client(**held.native("prometheus")) as client, pytest.raises(AuthorizationFailed):
        client.table(TOPIC).get("k7")
    for port in (7092, 9092, 8092):
        with socket.create_connection((secured.service, port), timeout=30) as plain:
            plain.sendall(b"\0\0\0\x10 not a handshake\n\n")
            assert b"krappy" not in plain.recv(1 << 16).lower()
    with httpx.Client(verify=held.authority.context(), trust_env=False) as web:
        assert web.get(f"https://{secured.service}:8092/metrics").status_code == 401


def test_prometheus_reads_what_an_acl_lets_it_read(secured: Krappy, held: Secrets, tmp_path: Path) -> None:
    """By the command that the guide gives for it."""
    (tmp_path / "password").write_text(held.passwords["admin"])
    login = ("prometheus", held.passwords["prometheus"])
    with httpx.Client(verify=held.authority.context(), trust_env=False, auth=login) as web:
        url = f"https://{secured.service}:8092/metrics"
        assert web.get(url).status_code == 403
        environ = {
            **os.environ,
            "KRAPPY_ADDRESS": secured.native,
            "KRAPPY_CA": held.authority.ca,
            "KRAPPY_USER": "admin",
            "KRAPPY_PASSWORD_FILE": str(tmp_path / "password"),
        }
        command = ["acl", "add", "prometheus", "--operation", "describe", "--cluster"]
        subprocess.run([sys.executable, "-m", "krappy", *command], env=environ, check=True, timeout=CLIENT_S)
        assert "krappy_tls_certificate_expiry_seconds" in web.get(url).text


def serial(secured: Krappy, held: Secrets) -> str:
    """The serial number of the certificate that the broker shows now."""
    context = held.authority.context()
    with (
        socket.create_connection((secured.service, 7092), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=secured.service) as encrypted,
    ):
        assert isinstance(encrypted, ssl.SSLSocket)
        found = encrypted.getpeercert()
        assert found is not None
        return str(found["serialNumber"])


def test_a_renewed_certificate_is_taken_without_a_restart(secured: Krappy, held: Secrets, desk: Desk) -> None:
    uid, restarts, before = secured.uid(), secured.status()["restartCount"], serial(secured, held)
    with secured.client() as client:
        held.certify(certificate(secured.kubectl, desk.overlay.parent))
        secured.kubectl.until("the new certificate", lambda: serial(secured, held) != before, SEEN_S)
        client.ping()  # over the old connection
    with secured.client() as client:
        client.ping()
    assert (secured.uid(), secured.status()["restartCount"]) == (uid, restarts)


def test_a_new_password_counts_and_the_old_one_does_not(secured: Krappy, held: Secrets) -> None:
    old = held.native("prometheus")

    def refused() -> bool:
        try:
            with secured.client(**old):
                return False
        except AuthenticationFailed:
            return True

    held.passwords["prometheus"] = "another-of-sixteen-letters"
    held.users()
    secured.kubectl.until("the new password", refused, SEEN_S)
    with secured.client(**held.native("prometheus")) as client:
        client.ping()


def test_the_nightly_backup_logs_in(secured: Krappy, desk: Desk, held: Secrets) -> None:
    _, nightly, _ = blocks("Back up")
    desk.type("kubectl -n krappy delete job backup-now --ignore-not-found")
    told = json.loads(desk.type(nightly).splitlines()[-1])
    assert told["files"] > 0


def test_no_secret_is_in_what_the_pod_shows(secured: Krappy, held: Secrets) -> None:
    said = secured.kubectl("logs", "krappy-0") + secured.kubectl("get", "pod", "krappy-0", "-o", "yaml")
    said += (
        Path(f"/proc/{secured.process()}/cmdline").read_text() + Path(f"/proc/{secured.process()}/environ").read_text()
    )
    assert not [user for user, password in held.passwords.items() if password in said]
