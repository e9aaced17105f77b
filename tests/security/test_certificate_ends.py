"""Nobody stays connected, or comes back, with an expired certificate: not by resuming a TLS session, not with a
password in addition, and not while he waits for an answer."""

from __future__ import annotations

import contextlib
import os
import shutil
import ssl
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from krappy.server import authentication, tls
from krappy.testing.running import run_broker
from krappy.wire.kafka import ApiKey
from tests.kafka.raw import Closed, Raw, fetch
from tests.process import json_lines, wait_until
from tests.security.authority import Authority
from tests.security.test_sasl import SECRET, log_in, users_dir

VERSIONS = [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3]
NAMED = "RULE:^CN=([^,]+).*$/$1/,DEFAULT"
SECONDS = 4.0  # how long a certificate is valid: long enough for a broker to start
EXPIRED = "the certificate has expired"
ALL = {"topics": None}


def settings(own: Authority, trusted: str, tmp_path: Path, kafka: str = "SSL") -> dict[str, Any]:
    return {
        "listen_kafka": f"{kafka}://127.0.0.1:0",
        "listen_native": "none",
        "listen_http": "none",
        "tls_certificate": own.issue("127.0.0.1"),
        "tls_client_ca": trusted,
        "ssl_client_auth": "required",
        "ssl_principal_mapping_rules": NAMED,
        "super_users": "User:ada",
        "users_dir": users_dir(tmp_path / "users", ada=SECRET),
        "audit_log": f"file:{tmp_path}/audit",
        "durability": "os",
    }


def connect(address: str, context: ssl.SSLContext, session: ssl.SSLSession | None = None) -> Raw:
    """Opens a connection by TLS; `session`: it is resumed. Raises OSError."""
    raw = Raw(address)
    try:
        raw.socket = context.wrap_socket(raw.socket, server_hostname="127.0.0.1", session=session)
    except BaseException:
        raw.close()
        raise
    return raw


def session_of(raw: Raw) -> ssl.SSLSession:
    assert isinstance(raw.socket, ssl.SSLSocket)
    assert raw.socket.session is not None
    return raw.socket.session


def goes_on(raw: Raw) -> bool:
    """Whether the connection has resumed an earlier TLS session."""
    assert isinstance(raw.socket, ssl.SSLSocket)
    return bool(raw.socket.session_reused)


def until_closed(raw: Raw) -> None:
    with pytest.raises(Closed):
        raw.receive_frame()


def until_told(folder: Path) -> None:
    """Waits until the audit log says that a client with an expired certificate was refused."""
    told = ("authentication_failed", "SSL", EXPIRED)
    wait_until(
        lambda: told in [(x["event"], x["mechanism"], x["reason"]) for x in json_lines(folder / "audit.failures")],
        "it is told",
    )


@pytest.mark.parametrize("kafka", ["SSL", "SASL_SSL"])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_resumed_session_ends_when_its_certificate_expires(
    tmp_path: Path, version: ssl.TLSVersion, kafka: str
) -> None:
    own = Authority(tmp_path)
    with run_broker(tmp_path / "data", **settings(own, own.ca, tmp_path, kafka)) as broker:
        address = broker.kafka_addresses[kafka]
        context = own.context(own.issue("client", subject="ada", seconds=SECONDS))
        context.maximum_version = version

        def come(session: ssl.SSLSession | None = None) -> Raw:
            raw = connect(address, context, session)
            if kafka == "SASL_SSL":
                assert log_in(raw, "ada", SECRET)["error_code"] == 0
            assert raw.ask(ApiKey.METADATA, ALL)["topics"] == []
            return raw

        with come() as first, come(session_of(first)) as second:
            assert goes_on(second)
            session = session_of(second)
            until_closed(first)
            until_closed(second)
        for _ in range(2):
            with contextlib.suppress(ConnectionError), connect(address, context, session) as late:
                assert goes_on(late)
                until_closed(late)
        until_told(tmp_path)
        ended = [each for each in json_lines(tmp_path / "audit") if each["event"] == "ended"]
        assert {(each["principal"], each["reason"]) for each in ended} == {("User:ada", EXPIRED)}
        with connect(address, own.context(own.issue("client", subject="ada"))) as other:  # other clients notice nothing
            assert other.ask(ApiKey.API_VERSIONS, version=0)["error_code"] == 0


@pytest.mark.parametrize("version", VERSIONS)
def test_a_certificate_lasts_no_longer_than_its_authority(tmp_path: Path, version: ssl.TLSVersion) -> None:
    own, short = Authority(tmp_path), Authority(tmp_path, seconds=SECONDS)
    with run_broker(tmp_path / "data", **settings(own, short.ca, tmp_path)) as broker:
        context = own.context(short.issue("client", subject="ada"))
        context.maximum_version = version
        with connect(broker.kafka_address, context) as first:
            assert first.ask(ApiKey.METADATA, ALL)["topics"] == []
            session = session_of(first)
            with connect(broker.kafka_address, context, session) as second:
                assert goes_on(second)
                until_closed(second)
            until_closed(first)
        with contextlib.suppress(ConnectionError), connect(broker.kafka_address, context, session) as late:
            assert goes_on(late)
            until_closed(late)
        until_told(tmp_path)


@pytest.mark.parametrize("version", VERSIONS)
def test_no_session_outlives_the_authorities_that_it_began_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: ssl.TLSVersion
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.05)
    own, goes, trusted = Authority(tmp_path), Authority(tmp_path), tmp_path / "trusted.pem"
    trusted.write_text(Path(own.ca).read_text() + Path(goes.ca).read_text())
    with run_broker(tmp_path / "data", **settings(own, str(trusted), tmp_path)) as broker:
        contexts = [own.context(each.issue("client", subject="ada")) for each in (own, goes)]
        sessions = []
        for each in contexts:
            each.maximum_version = version
            with connect(broker.kafka_address, each) as raw:
                assert raw.ask(ApiKey.METADATA, ALL)["topics"] == []
                sessions.append(session_of(raw))
                gone = raw
                if each is contexts[1]:
                    shutil.copy(own.ca, tmp_path / "new.pem")
                    os.replace(tmp_path / "new.pem", trusted)
                    until_closed(gone)
        with pytest.raises((OSError, Closed)), connect(broker.kafka_address, contexts[1], sessions[1]) as raw:
            raw.ask(ApiKey.METADATA, ALL)
        with connect(broker.kafka_address, contexts[0], sessions[0]) as raw:
            assert not goes_on(raw)
            assert raw.ask(ApiKey.METADATA, ALL)["topics"] == []


@pytest.mark.parametrize("behind", [0, 1], ids=["waits", "waits and has asked more"])
def test_a_client_that_waits_is_ended_too(tmp_path: Path, behind: int) -> None:
    own = Authority(tmp_path)
    with run_broker(tmp_path / "data", **settings(own, own.ca, tmp_path)) as broker:
        context = own.context(own.issue("client", subject="ada", seconds=SECONDS))
        with connect(broker.kafka_address, context) as raw:
            raw.make("waited-for")
            raw.send(ApiKey.FETCH, fetch([("waited-for", 0, 0)], max_wait_ms=500_000, min_bytes=1), 12)
            for _ in range(behind):
                raw.send(ApiKey.METADATA, ALL)
            until_closed(raw)


def test_a_certificate_that_expires_by_a_clock_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may start with a clock that is far behind, and set it when it reaches a time server."""
    own, ahead = Authority(tmp_path), 0.0
    clock = SimpleNamespace(time=lambda: time.time() + ahead)
    monkeypatch.setattr(authentication, "time", clock)
    with run_broker(tmp_path / "data", **settings(own, own.ca, tmp_path)) as broker:
        soon, late = (own.context(own.issue("client", subject="ada", seconds=each)) for each in (3600, 36_000))
        with connect(broker.kafka_address, soon) as first, connect(broker.kafka_address, late) as other:
            for raw in (first, other):
                assert raw.ask(ApiKey.METADATA, ALL)["topics"] == []
            ahead = 7200.0
            until_closed(first)
            assert other.ask(ApiKey.METADATA, ALL)["topics"] == []
