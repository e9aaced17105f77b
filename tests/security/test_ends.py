"""Sessions, logins, and what they have opened end when they should: with the password, the user, the time or the ACL on
which they depend, but not with those of others."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from krappy import errors
from krappy.app import Broker
from krappy.blocking import Client
from krappy.broker import authorizer, logouts, users
from krappy.broker.logouts import Logouts
from krappy.clients.acls import AclInfo
from krappy.console import attempts, live, paying, security
from krappy.console.app import TOGETHER
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
from tests.process import wait_until
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
    """A broker with the super user ada and the user bob, who has no rights. Yields (the broker, a client of ada)."""
    folder = users_dir(tmp_path / "users", ada=SECRET, bob="b")
    settings = {**LISTENERS, **ADMIN, **HTTP, "users_dir": folder, "durability": "os", **more}
    with run_broker(tmp_path / "data", **settings) as broker, broker.connect(user="ada", password=SECRET) as client:
        yield broker, client


@contextmanager
def browser(broker: RunningBroker, user: str = "", password: str = "") -> Iterator[httpx.Client]:
    """A client of the console's API. It has logged in, unless `user` is empty."""
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


def test_logouts_that_wait_keep_nobody_from_the_console(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logouts of one user wait for each other, because one a second is done. Other users' requests do not wait."""
    came: list[str | None] = []
    end = Logouts.end

    async def noted(self: Logouts, user: str | None) -> None:
        came.append(user)
        await end(self, user)

    monkeypatch.setattr(logouts, "PAUSE", 5.0)
    monkeypatch.setattr(Logouts, "end", noted)
    out = partial(httpx.post, params={"all": "true"}, headers=CHANGES, auth=("bob", "b"), trust_env=False, timeout=60)
    with broker_of(tmp_path) as (broker, _), browser(broker, "ada", SECRET) as ada:
        url = f"http://{broker.http_address}/api/v1/logout"
        assert out(url).status_code == 200
        with ThreadPoolExecutor(2 * TOGETHER) as pool:
            waiting = [pool.submit(out, url) for _ in range(2 * TOGETHER)]
            wait_until(lambda: len(came) > TOGETHER, "they wait")
            assert ada.get("/topics", timeout=3).status_code == 200
            assert {each.result().status_code for each in waiting} == {200}
    assert set(came) == {"bob"}


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


@pytest.mark.parametrize("view", ["/topics/seen/tail", "/topics/seen/watch"])
@pytest.mark.parametrize("end", ["logout", "deletion"])
def test_nothing_is_shown_of_a_live_page_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str, end: str
) -> None:
    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 3600.0)
    with broker_of(tmp_path) as (broker, client):
        client.create_topic("seen")
        client.security.set_password("carl", "c")
        client.add_acls([AclInfo("topic", "seen", "User:carl", "read")])
        with browser(broker, "carl", "c") as carl, browser(broker) as ada, carl.stream("GET", view) as answer:
            lines = answer.iter_lines()
            assert any(line in ("event: start", "event: end_of_snapshot") for line in lines)
            if end == "logout":
                carl.post("/logout", headers=CHANGES).raise_for_status()
            else:
                client.security.delete_user("carl")
            event = {"key": "k", "value": "after"}
            ada.post("/topics/seen/events", json=event, headers=CHANGES, auth=("ada", SECRET)).raise_for_status()
            told = list(lines)
        assert "NOT_LOGGED_IN" in told[-2]
        assert "after" not in str(told)


def test_a_users_logins_end_his_oldest_session_and_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "MOST_OF_ONE", 3)
    with broker_of(tmp_path) as (broker, _), browser(broker, "ada", SECRET) as ada, ExitStack() as stack:
        bobs = [stack.enter_context(browser(broker, "bob", "b")) for _ in range(5)]
        assert [each.get("/topics").status_code for each in (*bobs, ada)] == [401, 401, 200, 200, 200, 200]


def test_an_empty_authorization_makes_no_more_of_a_session(tmp_path: Path) -> None:
    """A request with an empty Authorization header still depends on its cookie."""
    with broker_of(tmp_path) as (broker, client), browser(broker, "ada", SECRET) as http:
        client.create_topic("seen")
        http.headers["Authorization"] = ""
        assert http.post("/topics", json={"name": "new"}).json()["code"] == "HEADER_MISSING"
        with http.stream("GET", "/topics/seen/tail") as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: start"
            with browser(broker) as other:
                assert other.post("/logout", params={"all": "true"}, auth=("ada", SECRET)).json()["ended"] == 1
            last = next(line for line in lines if "NOT_LOGGED_IN" in line)
        assert json.loads(last.removeprefix("data:"))["code"] == "NOT_LOGGED_IN"


def test_a_change_of_one_file_ends_no_sessions_of_other_users(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, client), browser(broker, "ada", SECRET) as ada:
        users_dir(tmp_path / "users", bob="other", dora="d")  # the broker may look at the files between the two changes
        while not {"dora"} <= {each.name for each in client.security.users()}:
            pass
        assert ada.get("/topics").status_code == 200
        with Kafka(address(broker)) as raw:
            assert log_in(raw, "bob", "b")["error_code"] == Code.SASL_AUTHENTICATION_FAILED


# --- logging in


def test_a_slow_login_needs_the_present_password(tmp_path: Path) -> None:
    with broker_of(tmp_path) as (broker, client):
        client.security.set_password("carl", "c")

        def begin(raw: Kafka) -> Callable[[], int]:
            """Does the first half of a login. Returns a function that does the second half and returns its error
            code."""
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


class SlowChecks:
    """Stands for the check of a password. Its answer comes once `may_end` is set."""

    def __init__(self) -> None:
        self.check = users._timed_check
        self.begun, self.may_end = threading.Event(), threading.Event()

    def __call__(self, *given: Any) -> tuple[bool, float]:
        found = self.check(*given)
        self.begun.set()
        assert self.may_end.wait(30)
        return found


def logs_in(broker: RunningBroker, by: str) -> bool:
    """Whether carl can log in with his password c."""
    if by == "native":
        with Native(broker.address) as raw:
            try:
                return bool(raw.call(m.Authenticate("PLAIN", b"\0carl\0c")).done)
            except errors.AuthenticationFailed:
                return False
    with browser(broker) as http:
        if by == "basic":
            return http.get("/topics", auth=("carl", "c")).status_code == 200
        return http.post("/login", json={"user": "carl", "password": "c"}).status_code == 200


@pytest.mark.parametrize("is_deleted", [False, True], ids=["changed", "deleted"])
@pytest.mark.parametrize("by", ["login", "basic", "native"])
def test_a_password_that_changes_while_it_is_checked_lets_nobody_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str, is_deleted: bool
) -> None:
    """Otherwise a session by the old password would count as one by the new password, and last for hours."""
    with broker_of(tmp_path) as (broker, client), ThreadPoolExecutor(1) as pool:
        client.security.set_password("carl", "c")
        assert logs_in(broker, by)
        client.security.set_password("carl", "other")
        client.security.set_password("carl", "c")
        checks = SlowChecks()
        monkeypatch.setattr(users, "_timed_check", checks)
        asked = pool.submit(logs_in, broker, by)
        assert checks.begun.wait(30)
        if is_deleted:
            client.security.delete_user("carl")
        else:
            client.security.set_password("carl", "other")
        checks.may_end.set()
        assert not asked.result(30)


@pytest.mark.parametrize("by", ["password", "cookie"])
def test_a_slow_request_needs_a_login_that_is_still_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """A request may take long: half a minute for its body, and some seconds for its turn or a quota."""
    begun, may_go_on, begin = threading.Event(), threading.Event(), paying.HttpPayer.begin

    async def begin_later(self: paying.HttpPayer, *, mutates: bool) -> None:
        begun.set()
        while not may_go_on.is_set():
            await trio.sleep(0.01)
        await begin(self, mutates=mutates)

    with broker_of(tmp_path) as (broker, client), browser(broker) as http, ThreadPoolExecutor(1) as pool:
        client.security.set_password("carl", "c")
        client.add_acls([AclInfo("topic", "late", "User:carl", "create")])
        if by == "cookie":
            assert http.post("/login", json={"user": "carl", "password": "c"}).status_code == 200
        else:
            http.auth = httpx.BasicAuth("carl", "c")
        monkeypatch.setattr(paying.HttpPayer, "begin", begin_later)
        asked = pool.submit(http.post, "/topics", json={"name": "late"}, headers=CHANGES)
        assert begun.wait(30)
        client.security.set_password("carl", "other")
        may_go_on.set()
        answer = asked.result(30)
        assert (answer.status_code, answer.json()["code"]) == (401, "NOT_LOGGED_IN")
        assert "late" not in [each.name for each in client.topics()]


def test_a_watch_ends_when_nobody_logs_in_again(tmp_path: Path) -> None:
    """Otherwise a watch, with pings, would keep a user connected for ever who may not log in any more."""
    session = {"connections_max_reauth_ms": 2500, "authentication_timeout_ms": 2500}
    with broker_of(tmp_path, **session) as (broker, client), Native(broker.address) as raw:
        client.create_topic("watched")
        assert raw.call(m.Authenticate("PLAIN", b"\0ada\0" + SECRET.encode())).done
        raw.send(m.Watch("watched"))

        def ping() -> None:
            while True:
                raw.call(m.Ping())
                time.sleep(0.05)

        with pytest.raises((EOFError, ConnectionError)):
            ping()
        with pytest.raises(errors.RequestTimeout, match="logged in"):
            raw.receive(0)


# --- ACLs


def test_many_grants_are_looked_at_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thing that is open may depend on thousands of grants."""
    eve, done = Principal(name="eve"), list[str]()
    allow = Acl(Resource.TOPIC, Pattern.LITERAL, "*", "User:eve", "*", Op.READ, Permission.ALLOW)
    look, turn = authorizer.Authorizer._look_at, trio.lowlevel.checkpoint

    def looks(self: authorizer.Authorizer, *given: Any) -> bool:
        done.append("look")
        return look(self, *given)

    async def turns() -> None:
        if done:
            done.append("turn")
        await turn()

    async def main() -> None:
        settings: dict[str, Any] = {"listen_native": "127.0.0.1:0", "listen_kafka": "none", "ballast_bytes": 0}
        async with Broker(tmp_path, authorizer="acl", super_users="User:a", **settings) as broker:
            local = broker.engine
            access = local.access(eve)
            await local.authorizer.add([allow])
            for _ in range(3):
                grants = [Grant(Resource.TOPIC, f"t{number}", Op.READ) for number in range(authorizer.TURN)]
                access.hold(grants, lambda error: None)
            monkeypatch.setattr(authorizer.Authorizer, "_look_at", looks)
            monkeypatch.setattr(trio.lowlevel, "checkpoint", turns)
            await local.authorizer._review()
            monkeypatch.undo()
            assert done.count("look") >= 3
            assert ("look", "look") not in pairwise(done)

    trio.run(main)


def test_what_ends_with_an_acl_ends_in_several_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To end one thing may take long. A user may have a thousand members in a group."""
    eve, done, turn = Principal(name="eve"), list[str](), trio.lowlevel.checkpoint
    allow = Acl(Resource.TOPIC, Pattern.LITERAL, "t", "User:eve", "*", Op.READ, Permission.ALLOW)

    async def turns() -> None:
        if done:
            done.append("turn")
        await turn()

    async def main() -> None:
        settings: dict[str, Any] = {"listen_native": "127.0.0.1:0", "listen_kafka": "none", "ballast_bytes": 0}
        async with Broker(tmp_path, authorizer="acl", super_users="User:a", **settings) as broker:
            local = broker.engine
            await local.authorizer.add([allow])
            for _ in range(100):
                local.access(eve).hold([Grant(Resource.TOPIC, "t", Op.READ)], lambda error: done.append("end"))
            monkeypatch.setattr(trio.lowlevel, "checkpoint", turns)
            await local.authorizer.remove([allow])
            await local.authorizer._review()
            monkeypatch.undo()
            assert done.count("end") == 100
            assert max(map(len, "".join("." if each == "end" else " " for each in done).split())) <= 20

    trio.run(main)


def test_what_is_opened_while_its_acl_is_deleted_ends(tmp_path: Path) -> None:
    """A request is authorized first, and opens something later. The ACL may be deleted in between."""
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
            await local.authorizer.add([allow._replace(name="another")])
            assert len(ended) == 2  # each has ended once, whatever else changes

    trio.run(main)
