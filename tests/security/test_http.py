"""Users of the console and the HTTP API: Basic, a cookie, the token; what is answered without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from krappy.console import attempts
from krappy.testing.running import RunningBroker, run_broker
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
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


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


def test_everything_else_does(http: httpx.Client) -> None:
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
    assert http.get("/api/v1/topics").status_code == 200
    assert http.post("/api/v1/topics", json={"name": "x"}).json()["code"] == "HEADER_MISSING"
    assert http.post("/api/v1/topics", json={"name": "cookie"}, headers=CHANGES).status_code == 201
    assert http.post("/api/v1/logout", headers=CHANGES).json() == {"logged_out": True, "ended": 1}
    http.cookies.clear()
    assert http.get("/api/v1/topics").status_code == 401


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
        assert http.post("/api/v1/login", json={"token": ""}).status_code == 401  # there is no token


def test_guesses_are_slowed_down(http: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MOST", 0)
    assert http.get("/api/v1/topics", auth=("ada", SECRET)).status_code == 429
    assert http.get("/healthz").status_code == 200
