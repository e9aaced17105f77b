"""A connection that has ended leaves nothing to the garbage collector, because all requests wait while it runs."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest
import trio

import krappy
from krappy.server.connection import Connection
from krappy.server.kafka import KafkaConnection
from krappy.server.kafka_session import KafkaSession
from krappy.server.session import Session
from krappy.server.strangers import StrangerStep
from krappy.wire.kafka import ApiKey
from tests.cluster.secured import HOST, log_in
from tests.kafka.raw import Closed, Raw
from tests.security.authority import Authority

PASSWORD = "correct horse"


def enter(raw: Raw) -> None:
    log_in(raw, "u", PASSWORD)
    raw.ask(ApiKey.METADATA, {"topics": []})


def refused(raw: Raw) -> None:
    with pytest.raises((AssertionError, Closed)):
        log_in(raw, "u", "battery staple")


def silent(raw: Raw) -> None:
    pass


def late(raw: Raw) -> None:
    """Does not log in in time."""
    assert raw.closed()


@pytest.mark.parametrize("visit", [enter, refused, silent, late])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_connection_that_has_ended_is_gone(tmp_path: Path, protocol: str, visit: Any) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "u").write_text(PASSWORD)
    settings = {"users_dir": str(tmp_path / "users"), "super_users": "User:u", "failed_authentication_delay_ms": 1}
    settings |= {"tls_certificate": authority.issue(HOST), "listen_kafka": f"{protocol}://{HOST}:0"}
    settings |= {"listen_native": f"{protocol}://{HOST}:0", "insecure_listeners": "allow"}
    if visit is late:
        settings["authentication_timeout_ms"] = 1000

    def call(address: str) -> None:
        raw = Raw(address)
        if protocol == "SASL_SSL":
            raw.socket = authority.context().wrap_socket(raw.socket, server_hostname=HOST)
        visit(raw)
        raw.socket.close()

    async def main() -> None:
        async with krappy.Broker(tmp_path / "data", ballast_bytes=0, durability="os", **settings) as broker:  # type: ignore[arg-type]
            native: dict[str, Any] = {"tls": True, "ca": authority.ca} if protocol == "SASL_SSL" else {}
            async with krappy.connect(broker.native_address, user="u", password=PASSWORD, **native) as client:
                await client.ping()
            await trio.to_thread.run_sync(call, broker.kafka_address)
            with trio.fail_after(30):
                while broker.server.connections:
                    await trio.sleep(0.01)
            assert broker.server.accepted == 2
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()

    gc.collect()
    gc.disable()
    try:
        trio.run(main)
        found = {type(each) for each in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
    assert not found & {Connection, Session, KafkaConnection, KafkaSession, StrangerStep}
