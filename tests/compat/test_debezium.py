"""Debezium: the topic's table has what a table of Postgres has, also what was done while Connect was killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from krappy.blocking import Client
from krappy.errors import UnknownTopic
from tests.compat import tools
from tests.compat.programs import LONG_S, MADE, Program, block, commands, do, jvm
from tests.compat.servers import KrappyServer
from tests.compat.test_connect import STANDALONE, worker
from tests.process import free_ports

TOPIC = "shop.public.customers"
SOMEBODY = "postgres" if os.getuid() == 0 else None  # PostgreSQL does not run as root
ROWS = "SELECT coalesce(json_agg(customers ORDER BY id), '[]') FROM customers"
pytestmark = [MADE, pytest.mark.timeout(4 * LONG_S)]


class Postgres:
    """A server of the test's own on a free port of 127.0.0.1, whose superuser is `shop`."""

    def __init__(self, folder: Path) -> None:
        self._bin = tools.postgres()
        self.port = free_ports(1)[0]
        data = folder / "data"
        self._run("initdb", "-D", data, "-U", "shop", "--auth=trust", "--encoding=UTF8", "--no-sync")
        settings = {
            "port": self.port,
            "listen_addresses": "'127.0.0.1'",
            "unix_socket_directories": "''",
            "wal_level": "logical",
            "shared_buffers": "'16MB'",
        }
        with (data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = {value}\n" for name, value in settings.items())
        self.program = Program([self._bin / "postgres", "-D", data], folder, "postgres", user=SOMEBODY)

    def _run(self, name: str, *arguments: str | Path) -> str:
        done = subprocess.run(
            [self._bin / name, *arguments],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=LONG_S,
            user=SOMEBODY,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def answers(self) -> bool:
        where = ("-h", "127.0.0.1", "-p", str(self.port), "-U", "shop", "-d", "postgres")
        return (
            subprocess.run([self._bin / "pg_isready", *where], stdout=subprocess.DEVNULL, check=False).returncode == 0
        )

    def sql(self, *statements: str) -> str:
        where = (
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "shop",
            "-d",
            "postgres",
            "-qAt",
            "-v",
            "ON_ERROR_STOP=1",
        )
        return self._run("psql", *where, *(part for each in statements for part in ("-c", each))).strip()


@pytest.fixture
def postgres() -> Iterator[Postgres]:
    folder = Path(tempfile.mkdtemp(prefix="postgres-"))
    try:
        if SOMEBODY is not None:
            shutil.chown(folder, SOMEBODY)
        found = Postgres(folder)
        with found.program:
            found.program.until(found.answers, "PostgreSQL answers")
            yield found
    except (tools.Missing, LookupError) as reason:  # LookupError: there is no user for it
        pytest.skip(str(reason))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def table(client: Client) -> list[dict[str, Any]]:
    """The rows of the topic's table, in the form in which Postgres shows its own."""
    try:
        found = [json.loads(entry.value or b"") for entry in client.table(TOPIC).scan()]
    except UnknownTopic:
        return []
    rows = [{name: value for name, value in row.items() if not name.startswith("__")} for row in found]
    return sorted(rows, key=lambda row: row["id"])


def is_after_snapshot(offsets: Path) -> bool:
    """Whether Debezium would go on from Connect's file of offsets. Else it takes a new snapshot when it starts, and a
    snapshot does not tell which rows were deleted before it."""
    stored = offsets.read_bytes() if offsets.exists() else b""
    return b'"snapshot_completed":true' in stored or b'"lsn_proc"' in stored


def test_rows_become_a_table(postgres: Postgres, broker: KrappyServer, native: Client, tmp_path: Path) -> None:
    properties, _ = worker("worker.properties", broker, tmp_path)
    connector = tmp_path / "shop.properties"
    text = block("shop.properties")
    assert "database.port=5432" in text
    connector.write_text(text.replace("database.port=5432", f"database.port={postgres.port}"))
    postgres.sql(
        "CREATE TABLE customers (id int PRIMARY KEY, name text, city text)",
        "INSERT INTO customers SELECT n, 'name ' || n, 'Kraków' FROM generate_series(1, 200) n",
    )

    def same() -> bool:
        rows = json.loads(postgres.sql(ROWS))
        return bool(rows) and table(native) == rows

    with Program(jvm("connect", STANDALONE, properties, connector), tmp_path, "debezium") as program:
        program.until(same, "the snapshot is there")
        postgres.sql(
            "UPDATE customers SET city = 'Gdańsk' WHERE id % 3 = 0",
            "DELETE FROM customers WHERE id % 5 = 0",
            "INSERT INTO customers VALUES (1000, 'new', NULL)",
        )
        program.until(same, "the changes are there")
        program.until(lambda: is_after_snapshot(tmp_path / "offsets"), "Connect has stored where it is")
        program.kill()
        postgres.sql(
            "DELETE FROM customers WHERE id = 1000",
            "UPDATE customers SET name = upper(name) WHERE id < 50",
            "INSERT INTO customers VALUES (5, 'again', 'Łódź')",
        )
        program.start()
        program.until(same, "what was changed meanwhile is there")
    [look_up] = commands("Changes of a database into a table")
    said = do(look_up, broker, tmp_path)
    assert "NAME 1" in said
    deleted = native.table(TOPIC).get('{"id":1000}')
    assert deleted is not None
    assert deleted.deleted
