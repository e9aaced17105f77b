"""Sessions, logins and what is open end when they should: with the password, the user, the time or the ACL that they
stand on; and with nobody else's."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from krappy import errors
from krappy.app import Broker
from krappy.blocking import Client
from krappy.broker import users
from krappy.clients.acls import AclInfo
from krappy.console import attempts, live
from krappy.core.security.acl import Acl, Pattern, Permission
from krappy.core.security.operations import Grant, Op, Resource
from krappy.core.security.principal import Principal
from krappy.core.security.scram import ScramClient
from krappy.records import batch
from krappy.testing.running import RunningBroker, run_broker
from krappy.wire import messages as m
from krappy.wire.kafka import ApiKey
from krappy.wire.kafka.codes import Code
from tests.handlers.raw import Raw as Native
from tests.kafka.raw import Raw as Kafka
from tests.security.test_sasl import ADMIN, LISTENERS, SECRET, address, log_in, users_dir

HTTP = {"listen_http": "SASL_PLAINTEXT://127.0.0.1:0"}
CHANGES = {"Krappy-Request": "1"}
ONE = batch.encode([b"k"], [b"v"], timestamps=1_000)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS", 0.01)
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.05)
    monkeypatch.setattr(users, "LOOK_SECONDS", 0.05)


@contextmanager
def broker_of(tmp_path: Path, **more: object) -> Iterator[tuple[RunningBroker, Client]]:
    """One with a super user, ada, whose client it gives; bob has no rights."""
    folder = users_dir(tmp_path / "users", ada=SECRET, bob="b")
    settings = {**LISTENERS, **ADMIN, **HTTP, "users_dir": folder, "durability": "os", **more}
    with run_broker(tmp_path / "data", **settings) as broker, broker.connect(user="ada", password=SECRET) as client:
        yield broker, client


@contextmanager
def browser(broker: RunningBroker, user: str = "", password: str = "") -> Iterator[httpx.Client]:
    """One that has logged in, unless there is no user."""
    with httpx.Client(base_url=f"http://{broker.http_address}/api/v1", trust_env=False, timeout=60) as http:
        if user:
            assert http.post("/login", json={"user": user, "password": password}).status_code == 200
        yield http


# --- the console


def test_a_user_ends_no_sessions_of_others(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, _), browser(broker, "ada", SECRET) as ada, browser(broker, "bob", "b") as bob:
        with browser(broker, "bob", "b") as other:
            assert bob.post("/logout", params={"all": "true"}, headers=CHANGES).json()["ended"] == 2
            assert other.get("/topics").status_code == 401
        assert ada.get("/topics").status_code == 200
        with browser(broker) as basic:
            assert basic.post("/logout", params={"all": "true"}, auth=("bob", "b")).json()["ended"] == 0
            assert basic.post("/logout", params={"all": "true"}, auth=("ada", SECRET)).json()["ended"] == 1
        assert ada.get("/topics").status_code == 401


def test_a_live_page_that_was_opened_with_a_password_ends_with_it(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, client), browser(broker) as http:
        client.create_topic("seen")
        client.security.set_password("carl", "c")
        client.add_acls([AclInfo("topic", "seen", "User:carl", "read")])
        with http.stream("GET", "/topics/seen/tail", auth=("carl", "c")) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: start"
            client.security.set_password("carl", "other")
            *_, last = (line for line in lines if line.startswith("data:"))
        assert json.loads(last.removeprefix("data:"))["code"] == "NOT_LOGGED_IN"


def test_a_change_of_one_file_ends_no_sessions_of_other_users(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, client), browser(broker, "ada", SECRET) as ada:
        users_dir(tmp_path / "users", dora="d", bob="other")
        while not {"dora"} <= {each.name for each in client.security.users()}:
            pass
        assert ada.get("/topics").status_code == 200
        with Kafka(address(broker)) as raw:
            assert log_in(raw, "bob", "b")["error_code"] == Code.SASL_AUTHENTICATION_FAILED


# --- logging in


def test_a_login_that_takes_its_time_needs_the_password_of_now(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, client):
        client.security.set_password("carl", "c")

        def begin(raw: Kafka) -> Callable[[], int]:
            """The first half of a login; the second gives the code."""
            raw.ask(ApiKey.SASL_HANDSHAKE, {"mechanism": "SCRAM-SHA-512"})
            login = ScramClient("SCRAM-SHA-512", "carl", "c", "nonce")
            challenge = raw.ask(ApiKey.SASL_AUTHENTICATE, {"auth_bytes": login.first()})["auth_bytes"]
            proof = {"auth_bytes": login.step(challenge)}
            return lambda: int(raw.ask(ApiKey.SASL_AUTHENTICATE, proof)["error_code"])

        with Kafka(address(broker)) as first, Kafka(address(broker)) as second, Kafka(address(broker)) as third:
            assert begin(first)() == 0
            again, late = begin(first), begin(second)
            client.security.set_password("carl", "other")
            assert late() == Code.SASL_AUTHENTICATION_FAILED
            client.security.set_password("carl", "c")
            late = begin(third)
            client.security.delete_user("carl")
            assert late() == Code.SASL_AUTHENTICATION_FAILED
            assert again() == Code.SASL_AUTHENTICATION_FAILED


def test_a_watch_ends_when_nobody_logs_in_again(tmp_path: Path) -> None:
    """Else it, and pings, would keep a user for ever whom nobody lets in any more."""
    session = {"connections_max_reauth_ms": 1000, "authentication_timeout_ms": 1000}
    with broker_of(tmp_path, **session) as (broker, client), Native(broker.address) as raw:
        client.create_topic("watched")
        assert raw.call(m.Authenticate("PLAIN", b"\0ada\0" + SECRET.encode())).done
        raw.send(m.Watch("watched"))

        def ping() -> None:
            while True:
                raw.call(m.Ping())

        with pytest.raises((EOFError, ConnectionError)):
            ping()
        with pytest.raises(errors.RequestTimeout, match="logged in"):
            raw.receive(0)


# --- ACLs


def test_what_is_opened_while_it_is_taken_away_ends(tmp_path: Path) -> None:
    """A request looks first whether it is allowed, and opens what it opens later."""
    grant, eve = Grant(Resource.TOPIC, "t", Op.READ), Principal(name="eve")
    allow = Acl(Resource.TOPIC, Pattern.LITERAL, "t", "User:eve", "*", Op.READ, Permission.ALLOW)

    async def main() -> None:
        settings: dict[str, Any] = {"listen_native": "127.0.0.1:0", "listen_kafka": "none", "ballast_bytes": 0}
        async with Broker(tmp_path, authorizer="acl", super_users="User:a", **settings) as broker:
            local = broker.engine
            access, ended = local.access(eve), list[errors.AuthorizationFailed]()
            await local.authorizer.add([allow])
            access.hold([grant], ended.append)
            assert not ended
            await local.authorizer.remove([allow])
            assert len(ended) == 1
            access.hold([grant], ended.append)
            assert len(ended) == 2

    trio.run(main)
