"""The pytest plugin, used as a project that knows nothing of ours would use it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from krappy.errors import ConfigError, StorageError
from krappy.testing.running import RunningBroker, run_broker


def pytest_in(folder: Path, source: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs one test file in a folder of its own, with no plugin but those named."""
    (folder / "test_theirs.py").write_text(textwrap.dedent(source))
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, "test_theirs.py"],
        cwd=folder,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


THEIRS = """
    import socket

    def test_a_broker_answers(krappy_broker):
        host, port = krappy_broker.address.rsplit(":", 1)
        socket.create_connection((host, int(port)), timeout=10).close()
        assert krappy_broker.data_dir.is_dir()

    def test_what_is_stored_can_be_looked_up(krappy_broker):
        with krappy_broker.connect() as client:
            client.create_topic("users")
            with client.producer("users") as producer:
                producer.send("Ada", key="u1")
            assert client.table("users").get("u1").value == b"Ada"

    def test_each_test_has_its_own(krappy_broker):
        with krappy_broker.connect() as client:
            assert client.topics() == []
"""


def test_the_fixture_works_under_plain_pytest(tmp_path: Path) -> None:
    done = pytest_in(tmp_path, THEIRS, "-p", "krappy.testing.plugin")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "3 passed" in done.stdout


def test_the_fixture_comes_with_the_package(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text("def test_it(krappy_broker):\n    assert krappy_broker.address\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_theirs.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_run_without_brokers_loads_none_of_their_libraries(tmp_path: Path) -> None:
    source = """
        import sys

        def test_nothing():
            assert {"trio", "rocksdict", "krappy.app", "krappy.blocking"}.isdisjoint(sys.modules)
    """
    done = pytest_in(tmp_path, source, "-p", "krappy.testing.plugin")
    assert done.returncode == 0, done.stdout + done.stderr


def test_async_tests_can_use_it_too(tmp_path: Path) -> None:
    source = """
        import anyio, krappy, pytest

        @pytest.mark.parametrize("backend", ["trio", "asyncio"])
        def test_it(krappy_broker, backend):
            async def main():
                async with krappy.connect(krappy_broker.address) as client:
                    async with client.producer("t") as producer:
                        return await producer.send("v", key="k")

            assert anyio.run(main, backend=backend).offset == 0
    """
    done = pytest_in(tmp_path, source, "-p", "krappy.testing.plugin")
    assert done.returncode == 0, done.stdout + done.stderr


def test_here(krappy_broker: RunningBroker) -> None:
    with krappy_broker.connect(timeout=5) as client:
        assert client.ping().version


def test_data_outlives_a_broker(tmp_path: Path) -> None:
    for number in range(3):
        with run_broker(tmp_path) as broker, broker.connect() as client, client.producer("t") as producer:
            assert producer.send("v").result().offset == number


def test_a_broker_that_cannot_start_raises_why(tmp_path: Path) -> None:
    with pytest.raises(ConfigError), run_broker(tmp_path, durability="never"):
        pass
    with run_broker(tmp_path), pytest.raises(StorageError, match="in use"), run_broker(tmp_path):
        pass
