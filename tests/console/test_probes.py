"""`listen_health`: a listener that tells anybody whether the broker is alive and ready, and nothing else."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import httpx
import pytest
import trio

from krappy.app import Broker
from krappy.errors import ConfigError
from krappy.server.places import HEALTH, MOST_APART
from krappy.settings.server import load
from krappy.testing.running import run_broker
from tests.process import free_address
from tests.security.test_sasl import ADMIN, users_dir


def asked(address: str, path: str, method: str = "GET") -> tuple[int, str]:
    answer = httpx.request(method, f"http://{address}{path}", trust_env=False, timeout=30)
    assert len(answer.headers) <= 6
    return answer.status_code, answer.text


def test_it_answers_the_probes_alone(tmp_path: Path) -> None:
    """Where the console has users, and where there is no console."""
    users = users_dir(tmp_path / "users", ada="secret")
    for http in ({"listen_http": "SASL_PLAINTEXT://127.0.0.1:0", "users_dir": users, **ADMIN}, {}):
        health = free_address()
        with run_broker(tmp_path / f"data-{len(http)}", listen_health=health, **http):
            assert asked(health, "/healthz") == (200, '{"status":"ok"}')
            assert asked(health, "/readyz") == (200, '{"status":"ready"}')
            assert asked(health, "/readyz", "HEAD") == (200, "")
            assert asked(health, "/readyz", "POST")[0] == 405
            for path in ("/", "/metrics", "/api/v1/topics", "/api/v1/login", "/healthz/", "/healthz?x=%0a", "//readyz"):
                assert asked(health, path)[0] == (200 if "?" in path else 404)


def test_it_says_no_without_a_reason(tmp_path: Path) -> None:
    async def main() -> None:
        health = free_address()
        async with Broker(tmp_path, listen_health=health, ballast_bytes=0) as broker:
            assert broker.addresses["health"] == health
            broker.listening = False
            found = await trio.to_thread.run_sync(asked, health, "/readyz")
            assert found == (503, '{"status":"not ready"}')
            assert (await trio.to_thread.run_sync(asked, health, "/healthz"))[0] == 200

    trio.run(main)


def test_it_is_served_however_many_connections_there_are(tmp_path: Path) -> None:
    health = free_address()
    host, port = health.split(":")
    with (
        run_broker(tmp_path, listen_health=health, listen_http="127.0.0.1:0", max_connections=1) as broker,
        contextlib.ExitStack() as idle,
    ):
        for address in (broker.http_address, broker.address, health):
            where = address.partition(":")
            for _ in range(MOST_APART[HEALTH] + 5):
                idle.enter_context(socket.create_connection((where[0], int(where[2])), 10))
        assert asked(f"{host}:{port}", "/readyz")[0] == 200


def test_no_address_is_refused() -> None:
    assert load({"listen_health": "none"}, {}).listen_health == ""
    with pytest.raises(ConfigError, match="listen_health"):
        load({"listen_health": "SSL://127.0.0.1:1"}, {})
