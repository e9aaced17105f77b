"""A client is the user that its certificate names, until the certificate expires."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from krappy import errors
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw
from tests.security.authority import Authority


def test_a_certificate_is_a_user_until_it_expires(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = {
        "listen_native": "SSL://127.0.0.1:0",
        "listen_kafka": "none",
        "tls_certificate": authority.issue("127.0.0.1"),
        "tls_client_ca": authority.ca,
        "ssl_client_auth": "requested",
        "ssl_principal_mapping_rules": "RULE:^CN=([a-z]+),.*$/$1/U",
        "super_users": "User:ADA",
    }
    with run_broker(tmp_path / "data", durability="os", **settings) as broker:
        with broker.connect(ca=authority.ca, cert=authority.issue("c.example", subject="ada")) as client:
            assert client.ping().principal == "User:ADA"
            client.create_topic("hers")
        with broker.connect(ca=authority.ca) as client:
            assert client.ping().principal == "User:ANONYMOUS"
            with pytest.raises(errors.KrappyError):
                client.create_topic("nobodys")
        no_name = authority.issue("c.example", subject="Ada 7")  # no mapping rule matches this name
        with pytest.raises(errors.ConnectionLost), broker.connect(ca=authority.ca, cert=no_name, timeout=5):
            pass
        soon = authority.issue("c.example", subject="bob", seconds=6)
        with Raw(broker.address) as raw:
            host, _, _ = broker.address.rpartition(":")
            raw.socket = authority.context(soon).wrap_socket(raw.socket, server_hostname=host)
            assert raw.call(m.Ping()).principal == "User:BOB"
            began = time.monotonic()
            with pytest.raises(errors.RequestTimeout, match="certificate has expired"):
                raw.receive(0)
            assert time.monotonic() - began < 15


def test_a_certificate_that_names_nobody_lets_nobody_in(tmp_path: Path) -> None:
    """Its subject is empty, or a rule leaves nothing of it. All such peers would be the same user, without a name."""
    authority, refused = Authority(tmp_path), list[str]()

    def report(event: str, **facts: object) -> None:
        if event == "authentication_failed":
            refused.append(str(facts["reason"]))

    settings = {
        "listen_native": "SSL://127.0.0.1:0",
        "listen_kafka": "none",
        "tls_certificate": authority.issue("127.0.0.1"),
        "tls_client_ca": authority.ca,
        "ssl_client_auth": "required",
        "ssl_principal_mapping_rules": "RULE:^CN=nobody([0-9]*),.*$/$1/,DEFAULT",
        "audit_log": f"file:{tmp_path}/audit",
    }
    with run_broker(tmp_path / "data", durability="os", report=report, **settings) as broker:
        for subject in ("", "nobody"):
            cert = authority.issue("c.example", subject=subject)
            with pytest.raises(errors.ConnectionLost), broker.connect(ca=authority.ca, cert=cert, timeout=5):
                pass
        with broker.connect(ca=authority.ca, cert=authority.issue("c.example", subject="nobody7")) as client:
            assert client.ping().principal == "User:7"
    assert len(refused) == 2
    assert refused[0] == "there is no name of a user in ''"
    audit = "".join(file.read_text() for file in tmp_path.glob("audit*"))
    assert audit.count("authentication_failed") == 2
