"""TLS on each listener: which clients are let in, how certificates change, and that strangers do no harm to others."""

from __future__ import annotations

import contextlib
import gc
import os
import re
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
import trio.abc

import krappy
from krappy import blocking, errors
from krappy.server import handshakes, server
from krappy.server import tls as server_tls
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw
from tests.process import json_lines
from tests.rounds import Rounds
from tests.security.authority import Authority
from tests.security.test_sasl import users_dir

LISTENERS = {
    "listen_native": "SSL://127.0.0.1:0",
    "listen_kafka": "SSL://127.0.0.1:0,PLAINTEXT://127.0.0.1:0",
    "listen_http": "SSL://127.0.0.1:0",
}


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    certificate = authority.issue("127.0.0.1", "localhost")
    folder = tmp_path_factory.mktemp("broker")
    with run_broker(folder, durability="os", tls_certificate=certificate, **LISTENERS) as found:
        yield found


def raw(address: str, context: ssl.SSLContext, seconds: float = 20.0) -> ssl.SSLSocket:
    """A connection after its handshake. Raises OSError."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)), seconds)
    try:
        return context.wrap_socket(sock, server_hostname=host)
    except BaseException:
        sock.close()
        raise


# --- clients


def test_the_blocking_client(broker: RunningBroker, authority: Authority) -> None:
    with broker.connect(ca=authority.ca) as client:
        with client.producer("blocking") as producer:
            deliveries = [producer.send(bytes(20_000), key=f"k{number}") for number in range(500)]
            for each in deliveries:
                each.result()
        with client.consumer("blocking", end="now") as consumer:
            assert sum(1 for _ in consumer) == 500
        assert client.table("blocking").get("k7").value == bytes(20_000)  # type: ignore[union-attr]


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_async_client(broker: RunningBroker, authority: Authority, backend: str) -> None:
    import anyio

    topic = f"async-{backend}"

    async def main() -> None:
        async with krappy.connect(broker.address, ca=authority.ca) as client:
            async with client.producer(topic) as producer:
                for number in range(300):
                    await producer.post(bytes(30_000), key=f"k{number}")
                await producer.flush()
            async with client.consumer(topic, end="now") as consumer:
                assert [len(event.value or b"") async for event in consumer] == [30_000] * 300

    anyio.run(main, backend=backend)


def test_one_large_event_each_way(broker: RunningBroker, authority: Authority) -> None:
    """The event is larger than what a socket takes at once. OpenSSL demands that a refused send is repeated with the
    same bytes at its beginning."""
    value = os.urandom(900_000)
    with broker.connect(ca=authority.ca) as client:
        with client.producer("large", linger_ms=0) as producer:
            deliveries = [producer.send(value, key=f"{number}") for number in range(40)]
            for each in deliveries:
                each.result()
        with client.consumer("large", end="now", max_bytes=16 << 20) as consumer:
            assert all(event.value == value for event in consumer)


def test_the_environment_says_whom_to_trust(
    broker: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KRAPPY_CA", authority.ca)
    with broker.connect() as client:
        assert client.ping().cluster


def test_a_client_that_does_not_trust_the_authority_says_so(broker: RunningBroker, tmp_path: Path) -> None:
    other = Authority(tmp_path)
    with pytest.raises(errors.ConnectionLost, match="its certificate is not trusted"), broker.connect(ca=other.ca):
        pass


def test_a_client_checks_the_name_of_the_broker(authority: Authority, tmp_path: Path) -> None:
    settings = {**LISTENERS, "tls_certificate": authority.issue("elsewhere.example")}
    with (
        run_broker(tmp_path, **settings) as broker,
        pytest.raises(errors.ConnectionLost, match="not trusted"),
        broker.connect(ca=authority.ca),
    ):
        pass


def test_a_client_without_tls_is_told(broker: RunningBroker) -> None:
    with pytest.raises(errors.ConnectionLost, match="TLS"), broker.connect():
        pass


def test_a_client_with_tls_at_a_listener_without(tmp_path: Path, authority: Authority) -> None:
    with (
        run_broker(tmp_path) as broker,
        pytest.raises(errors.ConnectionLost, match="no TLS with it"),
        broker.connect(ca=authority.ca),
    ):
        pass


def test_http_over_tls(broker: RunningBroker, authority: Authority) -> None:
    with httpx.Client(verify=authority.context(), trust_env=False, base_url=f"https://{broker.http_address}") as http:
        assert http.get("/healthz").status_code == 200
        assert http.get("/api/v1/overview").json()["certificate_expires"] > time.time()
        http.put("/api/v1/topics/over-http", headers={"Krappy-Request": "1"}, json={"partitions": 1})
        page = http.get("/")
        assert page.status_code == 200
        assert len(page.content) > 100
        assert "krappy_tls_certificate_expiry_seconds 0.0" not in http.get("/metrics").text


def test_kafka_clients(broker: RunningBroker, authority: Authority) -> None:
    confluent = pytest.importorskip("confluent_kafka")
    python = pytest.importorskip("kafka")
    where = {
        "bootstrap.servers": broker.kafka_addresses["SSL"],
        "security.protocol": "SSL",
        "ssl.ca.location": authority.ca,
    }
    producer = confluent.Producer({**where, "linger.ms": 5})
    failed: list[object] = []
    for number in range(2000):
        producer.produce(
            "rd-tls", b"%d" % number * 100, on_delivery=lambda error, _: failed.append(error) if error else None
        )
    assert producer.flush(30) == 0
    assert not failed
    consumer = confluent.Consumer({**where, "group.id": "rd", "enable.auto.commit": False})
    consumer.assign([confluent.TopicPartition("rd-tls", 0, 0)])
    got = 0
    while got < 2000:
        messages = consumer.consume(2000, 20)
        assert messages, f"{got} of 2000 came"
        got += len(messages)
    consumer.close()
    options = {
        "bootstrap_servers": broker.kafka_addresses["SSL"],
        "security_protocol": "SSL",
        "ssl_cafile": authority.ca,
    }
    sender = python.KafkaProducer(**options, enable_idempotence=False)
    assert sender.send("kp-tls", b"value").get(30).offset == 0
    sender.close()


def test_aiokafka(broker: RunningBroker, authority: Authority) -> None:
    aiokafka = pytest.importorskip("aiokafka")
    import asyncio

    async def main() -> list[bytes]:
        options = {
            "bootstrap_servers": broker.kafka_addresses["SSL"],
            "security_protocol": "SSL",
            "ssl_context": authority.context(),
        }
        producer = aiokafka.AIOKafkaProducer(**options)
        await producer.start()
        for number in range(100):
            await producer.send_and_wait("aio-tls", b"%d" % number)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer("aio-tls", **options, auto_offset_reset="earliest")
        await consumer.start()
        found = [(await consumer.getone()).value for _ in range(100)]
        await consumer.stop()
        return found

    assert asyncio.run(asyncio.wait_for(main(), 60)) == [b"%d" % number for number in range(100)]


# --- what is spoken


def test_no_version_before_1_2(broker: RunningBroker) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with pytest.warns(DeprecationWarning, match="TLSv1"):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    for address in (broker.address, broker.http_address, broker.kafka_addresses["SSL"]):
        with pytest.raises(OSError, match=r"protocol|alert"):
            raw(address, old).close()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(broker: RunningBroker, authority: Authority, version: ssl.TLSVersion) -> None:
    context = authority.context()
    context.minimum_version = context.maximum_version = version
    with raw(broker.address, context) as sock:
        assert sock.compression() is None
        assert sock.cipher() is not None
    with broker.connect(tls=context) as client:
        assert client.ping().cluster


def test_no_weak_ciphers(broker: RunningBroker) -> None:
    """Ciphers of TLS 1.2 with CBC, or without forward secrecy, are refused. sslyze tries all ciphers
    (tests/compat/test_sslyze.py)."""
    weak = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    weak.check_hostname, weak.verify_mode = False, ssl.CERT_NONE
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ALL:!AESGCM:!CHACHA20:@SECLEVEL=0")
    for address in (broker.address, broker.http_address, broker.kafka_addresses["SSL"]):
        with pytest.raises(OSError, match=r"handshake|alert"):
            raw(address, weak).close()


@pytest.mark.parametrize("group", ["ffdhe8192", "secp384r1"])
def test_a_stranger_does_not_choose_a_costly_exchange_of_keys(
    broker: RunningBroker, authority: Authority, group: str
) -> None:
    """Such an exchange would take 0.2 s of the event loop for a message of 1 KB. This is tested at each listener."""
    context = authority.context()
    context.set_ecdh_curve(group)
    for address in (broker.address, broker.kafka_addresses["SSL"], broker.http_address):
        with pytest.raises(ssl.SSLError):
            raw(address, context)


def test_nothing_is_ever_sent_in_the_clear(broker: RunningBroker) -> None:
    """A client that speaks no TLS gets at most an alert, whatever it sends."""
    for address in (broker.address, broker.http_address, broker.kafka_addresses["SSL"]):
        for said in (b"\0\0\0\x05\0\0\0\x32\x80", b"GET / HTTP/1.1\r\n\r\n", bytes(100), os.urandom(1000)):
            host, _, port = address.rpartition(":")
            with socket.create_connection((host, int(port)), 20) as sock, contextlib.suppress(ConnectionError):
                sock.sendall(said)
                answer = b""
                while piece := sock.recv(1000):
                    answer += piece
                assert answer[:2] in (b"", b"\x15\x03"), answer


def native(address: str, context: ssl.SSLContext) -> Raw:
    found = Raw(address)
    found.socket = context.wrap_socket(found.socket, server_hostname=address.rpartition(":")[0])
    return found


def test_answers_come_after_the_end_of_what_is_read(authority: Authority, tmp_path: Path) -> None:
    """Either side may close the direction from client to broker; the other direction goes on. A broker that reads no
    more still says why, and a client that sends no more still gets its answers."""
    settings = {**LISTENERS, "tls_certificate": authority.issue("127.0.0.1"), "idle_timeout_ms": 2000}
    with run_broker(tmp_path / "data", **settings) as broker:
        with native(broker.address, authority.context()) as raw:
            assert raw.call(m.Ping()).cluster
            with pytest.raises(errors.RequestTimeout, match="idle"):
                raw.receive(0)
        with native(broker.address, authority.context()) as raw:
            producer = raw.producer("halves")
            asked = [raw.send(m.Message(producer.handle, b"%d" % number)) for number in range(100)]
            socket.socket.shutdown(raw.socket, socket.SHUT_WR)
            assert [raw.receive(each).offset for each in asked] == list(range(100))


# --- client certificates


def test_a_client_certificate_is_asked_for(authority: Authority, tmp_path: Path) -> None:
    mine = authority.issue("client.example", subject="ada")
    stranger = Authority(tmp_path).issue("client.example", subject="eve")
    settings = {
        **LISTENERS,
        "tls_certificate": authority.issue("127.0.0.1"),
        "tls_client_ca": authority.ca,
        "ssl_client_auth": "required",
    }
    with run_broker(tmp_path / "data", **settings) as broker:
        with broker.connect(ca=authority.ca, cert=mine) as client:
            assert client.ping().cluster
        for cert in (None, stranger):
            with pytest.raises(errors.ConnectionLost), broker.connect(ca=authority.ca, cert=cert, timeout=5):
                pass
        # The HTTP listener asks for none, because browsers show none.
        with httpx.Client(verify=authority.context(), trust_env=False) as http:
            assert http.get(f"https://{broker.http_address}/healthz").status_code == 200


@pytest.mark.parametrize("demand", ["required", "requested"])
def test_a_certificate_that_is_refused_is_told_in_the_audit_log(
    authority: Authority, tmp_path: Path, demand: str
) -> None:
    settings = {
        **LISTENERS,
        "tls_certificate": authority.issue("127.0.0.1"),
        "tls_client_ca": authority.ca,
        "ssl_client_auth": demand,
        "audit_log": f"file:{tmp_path}/audit",
    }
    failures = tmp_path / "audit.failures"
    told: list[dict[str, Any]] = []

    def reasons() -> list[str]:
        told[:] = json_lines(failures) if failures.exists() else []
        return [line["reason"] for line in told]

    certificates: list[str | None] = [Authority(tmp_path).issue("client.example"), authority.issue("x", seconds=-60)]
    expected = ["self-signed certificate in certificate chain|unable to get local issuer", "certificate has expired"]
    if demand == "required":
        certificates.append(None)
        expected.append("peer did not return a certificate")
    with run_broker(tmp_path / "data", **settings) as broker:
        with pytest.raises(ssl.SSLError):  # here the client refuses the broker, so nothing is told
            raw(broker.address, Authority(tmp_path).context())
        for address in (broker.address, broker.kafka_addresses["SSL"]):
            for cert in certificates:
                before = len(reasons())
                with contextlib.suppress(OSError), raw(address, authority.context(cert)) as sock:
                    sock.recv(1)  # in TLS 1.3 the client gets the alert after its part of the handshake
                until(lambda before=before: len(reasons()) == before + 1)
        with broker.connect(ca=authority.ca, cert=authority.issue("client.example")) as client:
            assert client.ping().cluster
        assert len(reasons()) == 2 * len(certificates)
    assert {(line["event"], line["mechanism"], line["host"]) for line in told} == {
        ("authentication_failed", "SSL", "127.0.0.1")
    }
    for why, line in zip(expected * 2, told, strict=True):
        assert re.search(why, line["reason"])


# --- certificates that change


def replace(path: str, by: str) -> None:
    """Renews a certificate in the usual way: the new file takes the old one's name."""
    other = Path(f"{path}.new")
    other.write_bytes(Path(by).read_bytes())
    other.chmod(0o600)
    os.replace(other, path)


def shown(address: str, context: ssl.SSLContext) -> int:
    """The serial number of the certificate that the broker shows."""
    with raw(address, context) as sock:
        found = sock.getpeercert()
        assert found
        return int(str(found["serialNumber"]), 16)


def until(done: Any, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_certificate_is_exchanged_under_load_and_a_wrong_one_is_not_taken(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_tls, "LOOK_SECONDS", 0.05)
    certificate = authority.issue("127.0.0.1")
    reported: list[tuple[str, dict[str, Any]]] = []
    settings = {**LISTENERS, "tls_certificate": certificate, "durability": "os"}
    with run_broker(
        tmp_path / "data", **settings, report=lambda event, **facts: reported.append((event, facts))
    ) as broker:
        stop = threading.Event()
        sent: list[int] = []
        failures: list[BaseException] = []

        def produce() -> None:
            """Connects again and again, so that both certificates are used."""
            try:
                while not stop.is_set():
                    with broker.connect(ca=authority.ca) as client, client.producer("load") as producer:
                        for _ in range(20):
                            sent.append(producer.send(f"{len(sent)}", key="k").result(30).offset)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            context = authority.context()
            until(lambda: len(sent) > 100)
            for _ in range(5):
                first = shown(broker.address, context)
                replace(certificate, authority.issue("127.0.0.1"))
                until(lambda first=first: shown(broker.address, context) != first)
                count = len(sent)
                until(lambda count=count: len(sent) > count + 40)
            kept = shown(broker.address, context)
            for wrong in (Path(authority.ca), Path(authority.issue("127.0.0.1", seconds=-5)), Path(os.devnull)):
                count = sum(event == "tls_reload_failed" for event, _ in reported)
                replace(certificate, str(wrong))
                until(lambda count=count: sum(event == "tls_reload_failed" for event, _ in reported) > count)
                assert shown(broker.address, context) == kept
            replace(certificate, authority.issue("127.0.0.1"))
            until(lambda: shown(broker.address, context) != kept)
        finally:
            stop.set()
            thread.join(60)
        assert not failures
        assert sent == list(range(len(sent)))
        with broker.connect(ca=authority.ca) as client, client.consumer("load", end="now") as consumer:
            assert [event.value for event in consumer] == [b"%d" % number for number in range(len(sent))]


def relabelled(pem: str, label: str) -> str:
    """The same certificate as another kind of PEM block that OpenSSL reads."""
    der = ssl.PEM_cert_to_DER_cert(pem)
    if label.startswith("TRUSTED"):
        der += b"\x30\x00"  # an empty X509_CERT_AUX
    return ssl.DER_cert_to_PEM_cert(der).replace(" CERTIFICATE-", f" {label}-")


@pytest.mark.parametrize(
    ("users", "label"),
    [(False, "CERTIFICATE"), (True, "CERTIFICATE"), (False, "TRUSTED CERTIFICATE"), (False, "X509 CERTIFICATE")],
    ids=["certificates", "users, too", "trusted certificates", "old files"],
)
def test_a_connection_ends_with_the_authority_of_its_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users: bool, label: str
) -> None:
    """Otherwise a client with a certificate of an authority that is not trusted any more could stay as long as it
    likes. Other clients are not interrupted, whichever files change."""
    monkeypatch.setattr(server_tls, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(server, "LOOK_SECONDS", 0.05)
    stays, goes = Authority(tmp_path), Authority(tmp_path)
    trusted = tmp_path / "trusted.pem"

    def trust(*authorities: Authority) -> None:
        (tmp_path / "new").write_text("".join(relabelled(Path(each.ca).read_text(), label) for each in authorities))
        (tmp_path / "new").rename(trusted)

    trust(stays, goes)
    told: list[tuple[str, dict[str, Any]]] = []
    kind = "SASL_SSL" if users else "SSL"
    settings = {
        "listen_native": f"{kind}://127.0.0.1:0",
        "listen_kafka": f"{kind}://127.0.0.1:0",
        "tls_certificate": stays.issue("127.0.0.1"),
        "tls_client_ca": str(trusted),
        "ssl_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:^CN=([^,]+).*$/$1/",
        "super_users": "User:ada;User:eve",
        "sasl_enabled_mechanisms": "PLAIN",
        "users_dir": users_dir(tmp_path / "users", ada="a", eve="e"),
        "durability": "os",
        "audit_log": "stderr",
    }
    mine, hers = (stays.context(each.issue("x", subject=name)) for each, name in ((stays, "ada"), (goes, "eve")))

    def enter(address: str, context: ssl.SSLContext, name: str) -> Raw:
        found = native(address, context)
        if users:
            found.call(m.Authenticate("PLAIN", f"\0{name}\0{name[0]}".encode()))
        assert found.call(m.Ping()).principal == f"User:{name}"
        return found

    def reloaded() -> int:
        return sum(event == "tls_reloaded" for event, _ in told)

    with (
        run_broker(tmp_path / "data", **settings, report=lambda event, **facts: told.append((event, facts))) as broker,
        contextlib.ExitStack() as open_now,
    ):
        ada, eve, idle = (enter(broker.address, *who) for who in ((mine, "ada"), (hers, "eve"), (hers, "eve")))
        kafka = open_now.enter_context(raw(broker.kafka_addresses[kind], hers))
        for each in (ada, eve, idle):
            open_now.enter_context(each)
        ada.call(m.CreateTopic("watched"))
        watch = eve.send(m.Watch("watched"))
        eve.receive(watch)
        trust(goes, stays)  # the same authorities in another order
        until(lambda: reloaded() == 1)
        assert ada.call(m.Ping()).principal == "User:ada"
        assert idle.call(m.Ping()).principal == "User:eve"
        trust(stays)
        until(lambda: reloaded() == 2)
        for each in (eve, idle):
            with pytest.raises(errors.RequestTimeout, match="trusted no more"):
                each.receive(0)
        assert kafka.recv(1) == b""
        assert ada.call(m.Ping()).principal == "User:ada"
        with pytest.raises((OSError, EOFError)), native(broker.address, hers) as refused:
            refused.call(m.Ping())
        with enter(broker.address, mine, "ada") as again:
            assert again.call(m.Ping()).cluster
    ended = {(facts["principal"], facts["reason"]) for event, facts in told if event == "ended"}
    assert ended == {("User:eve", "the authority of the certificate is trusted no more")}


def test_a_certificate_is_taken_once_it_may_be(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker tries a refused file again, even if its content has not changed. Others may not read the key any more,
    or the certificate has become valid."""
    monkeypatch.setattr(server_tls, "LOOK_SECONDS", 0.05)
    certificate, context = authority.issue("127.0.0.1"), authority.context()
    failures: list[str] = []

    def report(event: str, **facts: Any) -> None:
        if event == "tls_reload_failed":
            failures.append(facts["error"])

    with run_broker(tmp_path, **LISTENERS, tls_certificate=certificate, durability="os", report=report) as broker:
        first = shown(broker.address, context)
        time.sleep(0.1)
        renewed = Path(authority.issue("127.0.0.1"))
        renewed.chmod(0o644)
        os.replace(renewed, certificate)
        until(lambda: failures)
        assert shown(broker.address, context) == first
        Path(certificate).chmod(0o600)
        until(lambda: shown(broker.address, context) != first)
        second = shown(broker.address, context)

        replace(certificate, authority.issue("127.0.0.1", since=2.0))
        until(lambda: len(failures) == 2)
        assert shown(broker.address, context) == second

        def taken() -> bool:
            try:
                return shown(broker.address, context) != second
            except ssl.SSLCertVerificationError:  # OpenSSL's clock is some milliseconds behind the broker's
                return False

        until(taken)
        assert len(failures) == 2
        assert "chmod o-r" in failures[0]
        assert "is not valid before" in failures[1]


# --- what is refused at the start


def test_a_listener_with_tls_needs_a_certificate(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigError, match="tls_certificate"), run_broker(tmp_path, **LISTENERS):
        pass


def test_a_key_that_others_may_read_is_refused(tmp_path: Path, authority: Authority) -> None:
    certificate = authority.issue("127.0.0.1")
    Path(certificate).chmod(0o644)
    with (
        pytest.raises(errors.ConfigError, match="chmod o-r"),
        run_broker(tmp_path, tls_certificate=certificate, **LISTENERS),
    ):
        pass


def test_a_key_of_another_certificate_is_refused(tmp_path: Path, authority: Authority) -> None:
    pair = {"tls_certificate": authority.issue("a.example"), "tls_key": authority.issue("b.example")}
    with (
        pytest.raises(errors.ConfigError, match="the key is not that of the file's first certificate"),
        run_broker(tmp_path, **pair, **LISTENERS),
    ):
        pass


def test_client_certificates_need_an_authority(tmp_path: Path, authority: Authority) -> None:
    settings = {**LISTENERS, "tls_certificate": authority.issue("127.0.0.1"), "ssl_client_auth": "required"}
    with pytest.raises(errors.ConfigError, match="tls_client_ca"), run_broker(tmp_path, **settings):
        pass


def test_java_key_stores_are_told_how_they_become_pem(tmp_path: Path) -> None:
    store = tmp_path / "store.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed" + bytes(100))
    store.chmod(0o600)
    settings = {"tls_certificate": str(store), **LISTENERS}
    with pytest.raises(errors.ConfigError, match="openssl pkcs12"), run_broker(tmp_path / "data", **settings):
        pass


def test_a_certificate_in_der_is_told_how_it_becomes_pem(tmp_path: Path, authority: Authority) -> None:
    """A PKCS12 file begins with the same byte."""
    der = tmp_path / "certificate.der"
    pem = Path(authority.issue("127.0.0.1")).read_text()
    der.write_bytes(ssl.PEM_cert_to_DER_cert(pem[pem.index("-----BEGIN CERTIFICATE") :].partition("\n\n")[0].strip()))
    der.chmod(0o600)
    settings = {"tls_certificate": str(der), **LISTENERS}
    with pytest.raises(errors.ConfigError, match="openssl x509 -inform DER"), run_broker(tmp_path / "data", **settings):
        pass


@pytest.mark.parametrize("text", ["", "-----BEGIN X509 CRL-----\nMIIB\n-----END X509 CRL-----\n"])
def test_a_file_that_is_no_pem_is_told_in_words(tmp_path: Path, authority: Authority, text: str) -> None:
    """Those of OpenSSL are "PEM lib"."""
    good, odd = authority.issue("127.0.0.1"), tmp_path / "odd.pem"
    odd.write_text(text)
    odd.chmod(0o600)
    settings = {"ssl_client_auth": "required", "tls_certificate": good, "tls_key": good, "tls_client_ca": authority.ca}
    for setting in ("tls_key", "tls_client_ca"):
        with (
            pytest.raises(errors.ConfigError, match=f"{setting}.*{odd}.*there is no certificate in PEM"),
            run_broker(tmp_path / "data", **{**settings, setting: str(odd), **LISTENERS}),
        ):
            pass
    for name in ("ca", "cert"):
        given: Any = {"ca": authority.ca, name: str(odd)}
        with (
            pytest.raises(errors.ConfigError, match="there is no certificate in PEM"),
            blocking.connect("x:1", **given),
        ):
            pass


# --- strangers


@pytest.fixture
def _no_garbage_collection() -> Iterator[None]:
    """Turns the garbage collector off. It would go through all that the tests keep, and so delay the broker."""
    gc.disable()
    yield
    gc.enable()


ATTACK = """
import contextlib, os, socket, ssl, sys
FROM = ("127.0.0.2", 0)
said = ssl.MemoryBIO()
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.set_ecdh_curve("prime256v1")  # makes the broker work for a ms at once
with contextlib.suppress(ssl.SSLWantReadError):
    context.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost").do_handshake()
good = said.read()
host, _, port = sys.argv[1].rpartition(":")
for _ in range(5):
    many = [socket.create_connection((host, int(port)), 20, FROM) for _ in range(250)]
    for sock in many:
        with contextlib.suppress(OSError):
            sock.sendall(good)
hello = b"\\x16\\x03\\x01\\x02\\x00\\x01\\x00\\x01\\xfc\\x03\\x03"
silent = []
number = 0
while True:
    number += 1
    if number == 2000:
        print("enough", flush=True)
    host, _, port = sys.argv[1 + number % 3].rpartition(":")
    with contextlib.suppress(OSError):
        sock = socket.create_connection((host, int(port)), 20, FROM)
        kind = number % 4
        if kind == 0:
            silent.append(sock)
            if len(silent) > 400:
                silent.pop(0).close()
            continue
        sock.sendall((hello[: number % 11], hello + os.urandom(508), os.urandom(50))[kind - 1])
        sock.close()
"""  # a program of its own, because threads here would take the interpreter's lock from the broker


@pytest.mark.usefixtures("_no_garbage_collection")
def test_hostile_handshakes_harm_nobody(authority: Authority, tmp_path: Path) -> None:
    """One address begins thousands of handshakes that are silent, slow, broken off or wrong. Other clients work
    meanwhile."""
    rounds, measured = Rounds(), threading.Event()

    def report(event: str, **facts: Any) -> None:
        if event == "tls_handshake_failed" and not measured.is_set():  # `report` is called on the event loop
            trio.lowlevel.add_instrument(rounds)
            measured.set()

    settings = {**LISTENERS, "tls_certificate": authority.issue("127.0.0.1"), "durability": "os"}
    with (
        run_broker(tmp_path / "data", report=report, **settings) as broker,
        broker.connect(ca=authority.ca, timeout=60) as client,
    ):
        addresses = (broker.address, broker.kafka_addresses["SSL"], broker.http_address)
        with pytest.raises(httpx.HTTPError):
            httpx.get(f"http://{broker.address}", trust_env=False)
        assert measured.wait(60)
        command = [sys.executable, "-c", ATTACK, *addresses]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as attacker:
            assert attacker.stdout is not None
            try:
                enough = threading.Thread(target=attacker.stdout.readline)
                enough.start()
                pings = 0
                while pings < 20 or enough.is_alive():
                    client.ping()
                    pings += 1
                raw(broker.address, authority.context(), 120.0).close()  # new clients get in, too
            finally:
                attacker.kill()
        client.ping()
        longest = rounds.longest  # without the broker's stop, which ends all connections at once
    assert 0 < longest < 0.1, longest


def test_a_handshake_that_does_not_go_on_is_ended(broker: RunningBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshakes, "SECONDS", 0.3)
    for address in (broker.address, broker.kafka_addresses["SSL"], broker.http_address):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), 20) as sock:
            sock.sendall(b"\x16\x03\x01")
            began = time.monotonic()
            with contextlib.suppress(ConnectionError):
                while sock.recv(100):
                    pass
            assert time.monotonic() - began < 10


def test_the_oldest_of_too_many_handshakes_gives_way(
    broker: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshakes, "MOST", 20)
    host, _, port = broker.address.rpartition(":")
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((host, int(port)), 20)) for _ in range(40)]
        assert silent[0].recv(10) == b""
        with blocking.connect(broker.address, ca=authority.ca) as client:
            assert client.ping().cluster


def test_key_updates_without_end_hold_up_nobody(broker: RunningBroker, authority: Authority) -> None:
    """In one read of the socket, OpenSSL answers all key updates that have come. OpenSSL's own client sends one for
    each `K`."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    command = [program, "s_client", "-connect", broker.address, "-CAfile", authority.ca, "-tls1_3"]
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as attacker:
        assert attacker.stdin is not None
        began = time.monotonic()
        with contextlib.suppress(OSError), broker.connect(ca=authority.ca) as client:
            while attacker.poll() is None and time.monotonic() - began < 30:
                attacker.stdin.write(b"K\n" * 1000)
                attacker.stdin.flush()
                client.ping()
        assert time.monotonic() - began < 30, "its connection was not ended"
        with contextlib.suppress(OSError):
            attacker.stdin.close()
        attacker.kill()
