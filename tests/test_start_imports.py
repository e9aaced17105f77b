"""What a broker has in memory once it takes requests, before anybody has asked it for anything. A module that only some
part needs is not loaded before that part is used. It would take memory for as long as the broker runs, and time of its
start."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

UNUSED = {
    "_hashlib": "passwords, and names that are digests: OpenSSL takes 5 MB",
    "_ssl": "TLS",
    "anyio": "the console of a broker in a cluster, which is a client of the others: 3 MB",
    "argparse": "the command line of the package crc32c, which is not imported as a whole",
    "asyncio": "3 MB; the broker's loop is trio's",
    "cramjam": "snappy and zstd: the first batch",
    "cryptography": "tokens of an identity provider",
    "difflib": "what is near to a wrong name",
    "email": "metadata of packages",
    "h11": "the console: its first connection",
    "importlib.metadata": "2 MB, with zipfile and email, for the version: krappy/version.py tells it",
    "jwt": "tokens of an identity provider",
    "krappy.client": "other processes",
    "krappy.cluster.zk": "a cluster",
    "krappy.console.app": "the console: its first connection",
    "krappy.records.writer": "1 MB of tables: the first batch that the broker makes itself",
    "lz4": "the first batch",
    "numpy": "Spark",
    "prometheus_client": "the console",
    "pyarrow": "Spark",
    "pyroaring": "the first TOPIC@latest",
    "re2": "the first pattern of topics or of certificates' names",
    "rich": "the command line's tables",
    "starlette": "the console",
    "structlog": "7 MB, most of it asyncio's: krappy/logs.py writes its lines itself",
    "zipfile": "metadata of packages",
}

BROKER = """
import json, os, signal, sys
from krappy.cli import serving
from krappy.cli.main import run

def look(config, broker, as_json):
    print(json.dumps(sorted(sys.modules)))
    os.kill(os.getpid(), signal.SIGTERM)

serving._announce = look
sys.exit(run(["serve", "--data", *sys.argv[1:], "--listen-native", "127.0.0.1:0", "--listen-kafka", "127.0.0.1:0",
              "--listen-http", "127.0.0.1:0", "--ballast-bytes", "0"]))
"""


def imported_by(*arguments: str) -> set[str]:
    """The modules of a broker with all three listeners. `arguments`: its folder, and options."""
    command = [sys.executable, "-c", BROKER, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout))


def needless(imported: set[str], module: str) -> list[str]:
    return sorted(name for name in imported if name == module or name.startswith(f"{module}."))


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    return imported_by(str(tmp_path_factory.mktemp("broker") / "data"))


@pytest.mark.parametrize("module", UNUSED)
def test_a_broker_has_not_imported_what_it_does_not_use(imported: set[str], module: str) -> None:
    assert not needless(imported, module), f"{UNUSED[module]} needs it"


def test_what_it_uses_is_found(imported: set[str]) -> None:
    """Without this, the test above would pass if no module was found."""
    assert {"trio", "rocksdict", "krappy.handlers.kafka.fetch", "krappy.handlers.native.table"} <= imported


def test_the_checksum_is_that_of_the_package() -> None:
    """It is taken from the package's module in C."""
    from crc32c import crc32c as known

    from krappy.records.checksum import crc32c

    for data in (b"", b"123456789", bytes(100_000)):
        assert crc32c(data) == known(data)
        assert crc32c(data, 7) == known(data, 7)
    assert crc32c(b"123456789") == 0xE3069283
