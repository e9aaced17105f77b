"""Right passwords do not wait behind wrong passwords of another address. The tests count turns."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy.broker import users
from krappy.testing.running import run_broker
from krappy.turns import UserTurns
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from tests.handlers.raw import Raw as NativeRaw
from tests.kafka.raw import Raw
from tests.process import wait_until
from tests.security.test_sasl import ADMIN, LISTENERS, users_dir

WRONG = 20
RIGHT = {"ada": "one", "bob": "two", "emil": "three"}


def test_right_passwords_take_turns_with_the_wrong_ones_of_another_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This is so in each protocol. At most n + 1 wrong passwords are checked before the n-th right one, although 20
    wrong ones came first."""
    checked, go, check = list[str](), threading.Event(), users._timed_check
    made: list[UserTurns] = []

    class Seen(UserTurns):
        def __init__(self, most: int) -> None:
            super().__init__(most=most)
            made.append(self)

    def timed_check(credential: Any, password: str) -> tuple[bool, float]:
        assert go.wait(60)
        checked.append(password)
        return check(credential, password)

    monkeypatch.setattr(users, "UserTurns", Seen)
    monkeypatch.setattr(users, "_timed_check", timed_check)
    folder = users_dir(tmp_path / "users", **RIGHT)
    listeners = {**LISTENERS, "listen_http": "SASL_PLAINTEXT://127.0.0.1:0"}
    with (
        run_broker(tmp_path / "data", durability="os", users_dir=folder, **ADMIN, **listeners) as broker,
        ExitStack() as opened,
        ThreadPoolExecutor(3) as pool,
    ):

        def by_kafka() -> bool:
            with Raw(broker.kafka_addresses["SASL_PLAINTEXT"]) as raw:
                raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
                return bool(raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0one"})["error_code"] == 0)

        def by_native() -> bool:
            with NativeRaw(broker.address) as raw:
                return bool(raw.call(m.Authenticate("PLAIN", b"\0bob\0two")).done)

        def by_http() -> bool:
            url = f"http://{broker.http_address}/api/v1/topics"
            return httpx.get(url, auth=("emil", "three"), trust_env=False, timeout=60).status_code == 200

        for number in range(WRONG):
            raw = opened.enter_context(Raw(broker.kafka_addresses["SASL_PLAINTEXT"], source="127.0.0.2"))
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "PLAIN"})
            raw.send(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": b"\0ada\0wrong %d" % number})
        [turns] = made
        wait_until(lambda: len(turns) == WRONG - 1, "one is checked, and the others wait")
        answers = [pool.submit(door) for door in (by_kafka, by_native, by_http)]
        wait_until(lambda: len(turns) == WRONG + 2, "the right ones wait, too")
        go.set()
        assert all(each.result(60) for each in answers)
    places = [place for place, password in enumerate(checked) if password in RIGHT.values()]
    assert all(place <= 2 * n for n, place in enumerate(places, 1)), checked
