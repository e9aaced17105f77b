"""Users of the console and the HTTP API: they log in by Basic, a cookie or the token. And what needs no login."""

from __future__ import annotations

import errno
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
import trio

from krappy import console
from krappy.broker.users import Users
from krappy.console import app, attempts, health
from krappy.console.security import OPEN
from krappy.errors import StorageError
from krappy.store.unsynced import Unsynced
from krappy.testing.running import RunningBroker, run_broker
from krappy.version import VERSION
from krappy.wire import messages as m
from tests.handlers.raw import Raw as Native
from tests.process import wait_until
from tests.security.authority import Authority
from tests.security.test_sasl import SECRET, users_dir

TOKEN = "a-token-of-some-length"
CHANGES = {"Krappy-Request": "1"}
SETTINGS = {"listen_native": "SASL_PLAINTEXT://127.0.0.1:0", "listen_kafka": "none"}
SUPER = {"super_users": "User:ada;User:emil;User:console"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS", 0.01)


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("http")
    settings = {
        **SETTINGS,
        **SUPER,
        "listen_http": "SASL_SSL://127.0.0.1:0",
        "tls_certificate": authority.issue("127.0.0.1"),
        "console_token": TOKEN,
        "users_dir": users_dir(folder / "users", ada=SECRET),
    }
    with run_broker(folder / "data", durability="os", **settings) as found:
        yield found


@pytest.fixture
def http(broker: RunningBroker, authority: Authority) -> Iterator[httpx.Client]:
    url = f"https://{broker.http_address}"
    with httpx.Client(base_url=url, verify=authority.context(), trust_env=False, timeout=60) as found:
        yield found


def test_health_and_pages_need_no_login(http: httpx.Client) -> None:
    for path in ("/healthz", "/readyz", "/", "/api/v1/openapi.json"):
        assert http.get(path).status_code == 200
        assert http.get(path, auth=("ada", "wrong")).status_code == 200


@pytest.mark.parametrize("locked", [False, True])
def test_a_probe_names_nothing_to_who_may_not_describe_the_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locked: bool
) -> None:
    """After a sync of a log had failed, the probe once told strangers a topic's name and a folder. `locked`: the
    listener answers only probes, because other machines can reach it and it has no login."""

    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(health, "FRESH_SECONDS", 0.0)
    listener = "0.0.0.0:0" if locked else "SASL_PLAINTEXT://127.0.0.1:0"
    users = users_dir(tmp_path / "users", ada=SECRET, bob=SECRET)
    settings = {
        **SETTINGS,
        "listen_http": listener,
        "sasl_enabled_mechanisms": "PLAIN",
        "users_dir": users,
        "super_users": "User:ada",
    }
    with (
        run_broker(tmp_path / "data", **settings) as broker,
        Native(broker.address) as native,
        httpx.Client(base_url=f"http://127.0.0.1:{broker.http_address.rpartition(':')[2]}", trust_env=False) as http,
    ):
        native.call(m.Authenticate("PLAIN", f"\0ada\0{SECRET}".encode()))
        native.call(m.CreateTopic("merger"))
        with monkeypatch.context() as patch:
            patch.setattr(Unsynced, "sync", refuse)
            with pytest.raises(StorageError):
                native.call(m.Message(native.producer("merger").handle, b"x"))

        def refused(auth: tuple[str, str] | None = None) -> list[str]:
            answer = http.get("/readyz", auth=auth)
            assert answer.status_code == 200
            assert answer.json()["status"] == "ready"
            found: list[str] = answer.json()["refused"]
            return found

        for auth in (None, ("ada", "wrong"), ("bob", SECRET)):
            assert refused(auth) == ["events of partitions whose log failed"]
        if locked:
            return
        assert "merger" in refused(("ada", SECRET))[0]
        http.post("/api/v1/login", json={"user": "ada", "password": SECRET}).raise_for_status()
        assert "merger" in refused()[0]


def test_the_version_is_told_to_nobody_who_has_not_logged_in(broker: RunningBroker, http: httpx.Client) -> None:
    """Otherwise anybody could search for brokers that have a known fault."""
    folder = Path(console.__file__).parent / "static"
    files = ["/" + str(each.relative_to(folder)) for each in folder.rglob("*") if each.is_file()]
    version = http.get("/api/v1/cluster", auth=("ada", SECRET)).json()["version"]
    assert version == VERSION
    for path in ("/healthz", "/readyz", "/", *OPEN, "/api/v1/overview", "/metrics", "/none", *files):
        answer = http.get(path)
        told = str(answer.headers) + ("" if path.startswith("/vendor/") else answer.text)
        assert version not in told, path
    with Native(broker.address) as raw:
        assert version not in str(raw.call(m.Ping()))


def test_everything_else_needs_a_login(http: httpx.Client) -> None:
    for path in ("/api/v1/topics", "/api/v1/overview", "/api/v1/cluster", "/api/v1/connections", "/metrics"):
        answer = http.get(path)
        assert (answer.status_code, answer.json()["code"]) == (401, "NOT_LOGGED_IN")
        for wrong in (("ada", "wrong"), ("nobody", SECRET), ("", ""), ("ada", "")):
            assert http.get(path, auth=wrong).status_code == 401
        for header in ("Basic", "Basic !", "Basic AAAA", "Bearer", "Bearer wrong", "Digest x"):
            assert http.get(path, headers={"Authorization": header}).status_code == 401


def test_a_wrong_password_and_an_unknown_user_are_answered_alike(http: httpx.Client) -> None:
    answers = [http.get("/api/v1/topics", auth=pair).json() for pair in (("ada", "wrong"), ("nobody", SECRET))]
    assert answers[0] == answers[1]
    answers = [
        http.post("/api/v1/login", json={"user": user, "password": password}).json()
        for user, password in (("ada", "wrong"), ("nobody", SECRET))
    ]
    assert answers[0] == answers[1]


def test_basic_and_the_token(http: httpx.Client) -> None:
    assert http.get("/api/v1/topics", auth=("ada", SECRET)).status_code == 200
    assert http.post("/api/v1/topics", json={"name": "basic"}, auth=("ada", SECRET)).status_code == 201
    assert http.get("/api/v1/topics", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_login_gives_a_cookie_that_needs_tls(http: httpx.Client) -> None:
    answer = http.post("/api/v1/login", json={"user": "ada", "password": SECRET})
    assert answer.json()["needed"]
    said = answer.headers["set-cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Secure"):
        assert part in said
    assert SECRET not in said
    assert said.startswith("__Host-")
    assert http.get("/api/v1/topics").status_code == 200
    assert http.post("/api/v1/topics", json={"name": "x"}).json()["code"] == "HEADER_MISSING"
    assert http.post("/api/v1/topics", json={"name": "cookie"}, headers=CHANGES).status_code == 201
    assert http.post("/api/v1/logout", headers=CHANGES).json() == {"logged_out": True, "ended": 1}
    http.cookies.clear()
    assert http.get("/api/v1/topics").status_code == 401


def test_a_cookie_that_a_sibling_domain_has_set_does_not_count(http: httpx.Client) -> None:
    said = http.post("/api/v1/login", json={"user": "ada", "password": SECRET}).headers["set-cookie"].partition(";")[0]
    http.cookies.clear()
    plain = said.removeprefix("__Host-")
    assert plain != said
    for cookies, status in ((plain, 401), (f"{plain.partition('=')[0]}=x; {said}", 200)):
        assert http.get("/api/v1/topics", headers={"Cookie": cookies}).status_code == status


def test_guesses_of_one_address_wait_for_each_other(
    broker: RunningBroker, authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many guesses come by as many connections. While the allowed number of wrong guesses wait for their answers, no
    further guess is checked."""
    checked, waiting, came, told = [], [], threading.Event(), threading.Event()

    async def wait(seconds: float) -> None:
        waiting.append(seconds)
        await trio.to_thread.run_sync(told.wait, 60)

    async def check(self: Users, user: str, password: str, *_: object) -> bool:
        checked.append(password)
        await trio.to_thread.run_sync(came.wait, 60)  # a guess that comes after some wrong ones is refused at once
        return password == SECRET

    monkeypatch.setattr(attempts, "sleep", wait)
    monkeypatch.setattr(attempts, "MOST", 3)
    monkeypatch.setattr(attempts, "QUEUED", 4)
    monkeypatch.setattr(Users, "check", check)
    url, context = f"https://{broker.http_address}/api/v1/topics", authority.context()

    def guess(number: int) -> int:
        return httpx.get(url, auth=("ada", f"guess {number}"), verify=context, trust_env=False, timeout=60).status_code

    with ThreadPoolExecutor(12) as pool:
        answers = [pool.submit(guess, number) for number in range(12)]
        wait_until(lambda: sum(each.done() for each in answers) == 5, "those beyond the queue are refused")
        assert {each.result() for each in answers if each.done()} == {429}
        came.set()
        wait_until(lambda: len(waiting) == 3, "those that were wrong wait to be told")
        assert len(checked) == 3
        told.set()
        assert sorted(each.result() for each in answers) == [401] * 7 + [429] * 5
    told.set()
    assert httpx.get(url, auth=("ada", SECRET), verify=context, trust_env=False, timeout=60).status_code == 200


def test_one_user_can_not_take_all_live_views(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "MOST_LIVE", 6)
    monkeypatch.setattr(app, "MOST_LIVE_OF_ONE", 3)
    settings = {**SETTINGS, **SUPER, "users_dir": users_dir(tmp_path / "users", ada=SECRET, emil=SECRET)}
    with (
        run_broker(tmp_path / "data", listen_http="SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker,
        httpx.Client(
            base_url=f"http://{broker.http_address}/api/v1", trust_env=False, timeout=60, headers=CHANGES
        ) as http,
        ExitStack() as opened,
    ):
        assert http.post("/topics", json={"name": "t"}, auth=("ada", SECRET)).status_code == 201

        def live(user: str) -> int:
            return opened.enter_context(http.stream("GET", "/topics/t/tail", auth=(user, SECRET))).status_code

        assert [live("ada") for _ in range(4)] == [200, 200, 200, 503]
        assert live("emil") == 200
        opened.close()
        wait_until(lambda: live("ada") == 200, "the places are free again")


def test_a_session_ends_with_its_password(tmp_path: Path) -> None:
    settings = {**SETTINGS, **SUPER, "users_dir": users_dir(tmp_path / "users", ada=SECRET)}
    with (
        run_broker(tmp_path / "data", listen_http="SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker,
        broker.connect(user="ada", password=SECRET) as admin,
        httpx.Client(base_url=f"http://{broker.http_address}", trust_env=False, timeout=60) as http,
    ):
        admin.security.set_password("emil", "old")
        assert http.post("/api/v1/login", json={"user": "emil", "password": "old"}).status_code == 200
        assert http.get("/api/v1/topics").status_code == 200
        admin.security.set_password("emil", "new")
        assert http.get("/api/v1/topics").status_code == 401
        assert http.post("/api/v1/login", json={"user": "emil", "password": "old"}).status_code == 401
        assert http.post("/api/v1/login", json={"user": "emil", "password": "new"}).status_code == 200
        admin.security.delete_user("emil")
        assert http.get("/api/v1/topics").status_code == 401
        assert http.post("/api/v1/login", json={"token": ""}).status_code == 401  # this broker has no token


def test_guesses_are_slowed_down(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MOST", 0)
    assert http.get("/api/v1/topics", auth=("ada", SECRET)).status_code == 429
    assert http.get("/healthz").status_code == 200
