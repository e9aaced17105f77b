"""`krappy serve` loads OpenSSL only if a listener needs it (krappy/deferred.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy import blocking
from krappy.errors import AuthenticationFailed
from tests.process import broker_process, spawned
from tests.security.authority import Authority


def loaded(pid: int) -> bool:
    return "libcrypto" in Path(f"/proc/{pid}/maps").read_text()


def test_a_listener_with_tls_and_users(tmp_path: Path) -> None:
    authority, users = Authority(tmp_path), tmp_path / "users"
    users.mkdir()
    (users / "ada").write_text("secret of ada")
    settings: dict[str, Any] = {
        "tls_certificate": authority.issue("127.0.0.1"),
        "users_dir": users,
        "super_users": "User:ada",
    }
    listen = "SASL_SSL://127.0.0.1:0"
    with broker_process(tmp_path / "data", launch=spawned, listen_native=listen, **settings) as broker:
        with blocking.connect(broker.address, ca=authority.ca, user="ada", password="secret of ada") as client:
            client.create_topic("t")
            assert [topic.name for topic in client.topics()] == ["t"]
        with pytest.raises(AuthenticationFailed):
            blocking.connect(broker.address, ca=authority.ca, user="ada", password="another").__enter__()
        assert loaded(broker.pid)
        assert broker.stop() == 0


def test_a_listener_without_both(tmp_path: Path) -> None:
    with broker_process(tmp_path / "data", launch=spawned) as broker:
        with blocking.connect(broker.address) as client:
            client.create_topic("t")
        assert not loaded(broker.pid)
