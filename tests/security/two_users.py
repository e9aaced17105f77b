"""A broker with two users, whose passwords are files: Ada may do everything, and Eve what Ada allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from krappy.blocking import Client
from krappy.testing.running import run_broker

PASSWORD = "a-secret"


@contextmanager
def ada_and_eve(folder: Path) -> Iterator[tuple[Client, Client]]:
    """Their clients. `folder` gets `users`, with the files of their passwords, and `data`."""
    (users := folder / "users").mkdir()
    for name in ("ada", "eve"):
        (users / name).write_text(PASSWORD)
    listener = {"listen_native": "SASL_PLAINTEXT://127.0.0.1:0", "users_dir": str(users), "super_users": "User:ada"}
    with (
        run_broker(folder / "data", durability="os", **listener) as broker,
        broker.connect(user="ada", password=PASSWORD) as ada,
        broker.connect(user="eve", password=PASSWORD) as eve,
    ):
        yield ada, eve
