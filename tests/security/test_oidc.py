"""The console and an identity provider: bearer tokens, and logins of browsers (OpenID Connect with PKCE)."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Browser, expect

from krappy.broker import clock
from krappy.console import attempts, oidc
from krappy.console.security import COOKIE, HOST_ONLY
from krappy.errors import ConfigError
from krappy.server import provider as web
from krappy.server import token_keys
from krappy.settings.server import load
from krappy.testing.running import RunningBroker, run_broker
from tests.console.conftest import browser  # noqa: F401
from tests.kafka.raw import Raw
from tests.process import free_ports, wait_until
from tests.security.authority import Authority
from tests.security.identity import AUDIENCE, CLIENT, CLIENT_SECRET, IdentityProvider, identity_provider
from tests.security.test_tokens import log_in

CHANGES = {"Krappy-Request": "1"}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "SECONDS", 0.01)


@pytest.fixture(scope="module")
def broker(
    provider: IdentityProvider, authority: Authority, reported: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningBroker]:
    folder = tmp_path_factory.mktemp("oidc")
    (folder / "secret").write_text(CLIENT_SECRET + "\n")
    [port] = free_ports(1)
    settings = {
        **provider.settings,
        "listen_native": "none",
        "listen_kafka": "none",
        "listen_http": f"SASL_SSL://127.0.0.1:{port}",
        "sasl_enabled_mechanisms": "SCRAM-SHA-512,OAUTHBEARER",
        "tls_certificate": authority.issue("127.0.0.1"),
        "console_oidc_client_id": CLIENT,
        "console_oidc_secret_file": str(folder / "secret"),
        "console_oidc_redirect": f"https://127.0.0.1:{port}/",
        "super_users": "Group:ops",
        "durability": "os",
    }
    with run_broker(
        folder / "data", report=lambda event, **facts: reported.append(f"{event} {facts}"), **settings
    ) as it:
        yield it
    assert not [each for each in reported if "internal_error" in each]


@pytest.fixture
def http(broker: RunningBroker, authority: Authority) -> Iterator[httpx.Client]:
    url = f"https://{broker.http_address}"
    with httpx.Client(base_url=url, verify=authority.context(), trust_env=False, timeout=60) as found:
        yield found


# --- bearer tokens


def test_a_bearer_token(http: httpx.Client, provider: IdentityProvider) -> None:
    def status(token: str, method: str = "GET", **more: Any) -> int:
        headers = {"Authorization": f"Bearer {token}"}
        return http.request(method, "/api/v1/topics", headers=headers, **more).status_code

    ops = provider.token(groups=["ops"])
    assert status(ops) == 200
    assert status(ops, "POST", json={"name": "made-by-token"}) == 201
    assert status(provider.token(), "POST", json={"name": "x"}) == 403
    bad = [
        provider.token(seconds=-60, groups=["ops"]),
        provider.token(aud="x"),
        provider.token(iss="x"),
        "x",
        ops + "x",
    ]
    assert [status(token) for token in bad] == [401] * len(bad)
    assert status("x" * 15_000) == 401


def test_a_live_view_ends_with_its_token(
    http: httpx.Client, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    from krappy.console import live

    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.2)
    everything = provider.token(groups=["ops"])
    http.post("/api/v1/topics", json={"name": "live"}, headers={"Authorization": f"Bearer {everything}"})
    token = provider.token(groups=["ops"], seconds=4)
    with http.stream("GET", "/api/v1/topics/live/tail", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status_code == 200
        assert "NOT_LOGGED_IN" in "".join(answer.iter_text())


@pytest.mark.parametrize("hours", [-24, 24])
def test_a_live_view_ends_with_its_token_by_a_clock_that_is_set(
    http: httpx.Client, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    from krappy.console import live

    monkeypatch.setattr(live, "KEEP_ALIVE_SECONDS", 0.2)
    headers = {"Authorization": f"Bearer {provider.token(groups=['ops'])}"}
    http.post("/api/v1/topics", json={"name": "live"}, headers=headers)
    token = provider.token(groups=["ops"], seconds=4 if hours < 0 else 3600)
    with http.stream("GET", "/api/v1/topics/live/tail", headers={"Authorization": f"Bearer {token}"}) as answer:
        assert answer.status_code == 200
        ahead = hours * 3600 * 1_000_000_000
        there = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead, monotonic_ns=time.monotonic_ns)
        monkeypatch.setattr(clock, "time", there)
        deadline = time.monotonic() + 30
        told = takewhile(lambda _: time.monotonic() < deadline, answer.iter_text())
        assert "NOT_LOGGED_IN" in "".join(told)


# --- logins of browsers, step by step


def begin(http: httpx.Client) -> dict[str, str]:
    """Begins a login; returns the parameters of the request to the provider."""
    where = http.post("/api/v1/login/provider", headers=CHANGES).json()["location"]
    return {name: values[0] for name, values in parse_qs(urlsplit(where).query).items()}


def come_back(provider: IdentityProvider, asked: dict[str, str]) -> dict[str, str]:
    """Lets the visitor log in at the provider; returns the parameters with which it sends the browser back."""
    query = parse_qs(urlsplit(provider.authorize(asked)).query)
    return {"code": query["code"][0], "state": query["state"][0]}


def login_cookies(http: httpx.Client) -> dict[str, str]:
    return {name: value for name, value in http.cookies.items() if name.startswith(f"{HOST_ONLY}krappy_login_")}


def test_a_login(http: httpx.Client, provider: IdentityProvider, broker: RunningBroker) -> None:
    assert http.get("/api/v1/login").json() == {"token": False, "password": True, "provider": True}
    answer = http.post("/api/v1/login/provider", headers=CHANGES)
    for part in ("HttpOnly", "SameSite=Strict", "Secure", "Max-Age=300", f"{HOST_ONLY}krappy_login_"):
        assert part in answer.headers["set-cookie"]
    asked = {name: values[0] for name, values in parse_qs(urlsplit(answer.json()["location"]).query).items()}
    assert asked["redirect_uri"] == f"https://{broker.http_address}/"
    assert http.get("/api/v1/topics").status_code == 401
    done = http.post("/api/v1/login", json=come_back(provider, asked))
    assert done.json()["needed"]
    assert 3590 < done.json()["seconds"] <= 3600  # the session lasts as long as the ID token
    assert "SameSite=Strict" in done.headers["set-cookie"]
    assert http.get("/api/v1/topics").status_code == 200
    assert http.post("/api/v1/topics", json={"name": "x"}).json()["code"] == "HEADER_MISSING"
    assert http.post("/api/v1/topics", json={"name": "by-cookie"}, headers=CHANGES).status_code == 201
    assert http.post("/api/v1/logout", headers=CHANGES).json()["ended"] == 1
    assert http.get("/api/v1/topics").status_code == 401


def test_logins_of_two_tabs_at_the_same_time(http: httpx.Client, provider: IdentityProvider) -> None:
    one, other = begin(http), begin(http)
    for asked in (other, one):
        assert http.post("/api/v1/login", json=come_back(provider, asked)).status_code == 200


def test_a_session_ends_with_its_token(http: httpx.Client, provider: IdentityProvider) -> None:
    provider.seconds = 2.0
    try:
        assert http.post("/api/v1/login", json=come_back(provider, begin(http))).json()["seconds"] <= 2
        # Httpx would forget it after its Max-Age.
        cookie = {"Cookie": f"{HOST_ONLY}{COOKIE}={http.cookies[HOST_ONLY + COOKIE]}"}
        assert http.get("/api/v1/topics").status_code == 200
        wait_until(lambda: http.get("/api/v1/topics", headers=cookie).status_code == 401, "it ends")
        provider.seconds = -5.0  # not more than clocks may differ
        assert http.post("/api/v1/login", json=come_back(provider, begin(http))).status_code == 401
    finally:
        provider.seconds = 3600.0


def test_a_session_ends_with_its_token_by_a_clock_that_is_set(
    http: httpx.Client, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert http.post("/api/v1/login", json=come_back(provider, begin(http))).status_code == 200
    assert http.get("/api/v1/topics").status_code == 200
    ahead = 2 * int(provider.seconds) * 1_000_000_000
    there = SimpleNamespace(time_ns=lambda: time.time_ns() + ahead, monotonic_ns=time.monotonic_ns)
    monkeypatch.setattr(clock, "time", there)
    assert http.get("/api/v1/topics").status_code == 401
    ahead = 0
    assert http.get("/api/v1/topics").status_code == 401  # it has ended for good


def test_logins_that_are_refused(
    http: httpx.Client, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(**body: str) -> bool:
        return http.post("/api/v1/login", json=body).status_code == 401

    back = come_back(provider, begin(http))
    [(name, cookie)] = login_cookies(http).items()
    assert refused(code=back["code"], state=back["state"] + "x")
    assert refused(code=back["code"], state="")
    http.cookies.clear()
    assert refused(**back)  # as if another browser came back
    for wrong in ("x", cookie + "0", "1" + cookie, cookie.replace(".", "", 1), "." + cookie):
        http.cookies.set(name, wrong, domain="127.0.0.1")
        assert refused(**back)
        http.cookies.clear()
    monkeypatch.setattr(oidc, "LASTS_MS", -1)
    assert refused(**come_back(provider, begin(http)))  # too late
    monkeypatch.undo()
    monkeypatch.setattr(attempts, "SECONDS", 0.01)
    first, *_, own = (begin(http) for _ in range(len(oidc.COOKIES) + 1))  # the last login takes the place of the first
    assert refused(**come_back(provider, first))
    mine = come_back(provider, own)
    for _, nonce in enumerate(("another", None, "\ud800")):
        monkeypatch.setattr(
            provider, "grant", lambda *_, nonce=nonce: {"id_token": provider.token(aud=CLIENT, nonce=nonce)}
        )
        assert refused(**mine)
    for claims in ({"aud": "x"}, {"iss": "x"}, {"azp": "x"}, {"seconds": -60}, {"aud": None}):
        said = {"aud": CLIENT, "nonce": own["nonce"], **claims}
        monkeypatch.setattr(provider, "grant", lambda *_, said=said: {"id_token": provider.token(**said)})
        assert refused(**mine), claims
    monkeypatch.setattr(provider, "grant", lambda *_: {"access_token": provider.token()})
    assert refused(**mine)
    monkeypatch.setattr(provider, "grant", lambda *_: {"id_token": provider.token(aud=CLIENT, nonce=own["nonce"])})
    assert not refused(**mine)  # so nothing else was wrong with the refused ones


def test_a_code_is_for_the_browser_that_began(http: httpx.Client, provider: IdentityProvider) -> None:
    """PKCE ensures it: a stolen code is worth nothing with the cookie of another login."""
    stolen = come_back(provider, begin(http))
    http.cookies.clear()
    own = begin(http)
    answer = http.post("/api/v1/login", json={"code": stolen["code"], "state": own["state"]})
    assert (answer.status_code, answer.json()["code"]) == (401, "NOT_LOGGED_IN")
    assert "answers 400" in answer.json()["detail"]


def test_logins_from_other_sites_are_refused(http: httpx.Client, provider: IdentityProvider) -> None:
    back = come_back(provider, begin(http))
    for headers in ({"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}):
        for path, body in (("/api/v1/login", back), ("/api/v1/login/provider", None)):
            answer = http.post(path, json=body, headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (403, "OTHER_SITE")


def test_a_provider_that_is_away(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broker: RunningBroker
) -> None:
    monkeypatch.setattr(web, "PAUSE", 0.01)
    with identity_provider() as provider:
        settings = {**provider.settings, "console_oidc_client_id": CLIENT, "listen_kafka": "none"}
        redirect = {"console_oidc_redirect": "http://127.0.0.1:8092/"}
        at = {"listen_native": "none", "listen_http": "SASL_PLAINTEXT://127.0.0.1:0"}
        told: list[str] = []
        with (
            run_broker(
                tmp_path / "data",
                report=lambda event, **facts: told.append(f"{event} {facts}"),
                **settings,
                **redirect,
                **at,
            ) as found,
            httpx.Client(base_url=f"http://{found.http_address}", trust_env=False, timeout=60) as http,
        ):
            provider.stop()

            def begun() -> int:
                return http.post("/api/v1/login/provider", headers=CHANGES).status_code

            assert begun() == 503
            text = http.post("/api/v1/login/provider", headers=CHANGES).text
            assert "the broker's log says why" in text
            # Anybody may send this request, so it must not name the provider.
            assert str(urlsplit(provider.issuer).port) not in text
            assert any("oidc_login_not_possible" in each and provider.issuer in each for each in told)
            provider.start()
            wait_until(lambda: begun() == 200, "it is back")
            provider.stop()
            assert begun() == 200  # the broker has read the discovery document
            # This broker accepts no tokens of users: OAUTHBEARER is not among its mechanisms.
            answer = http.get("/api/v1/topics", headers={"Authorization": f"Bearer {provider.token()}"})
            assert answer.status_code == 401


def test_a_slow_provider_holds_up_only_logins_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may begin a login, and end it with an invented code that the provider has to check."""
    monkeypatch.setattr(web, "SECONDS", 600.0)
    monkeypatch.setattr(token_keys, "PAUSE", 0.05)
    slow, asked = threading.Event(), []

    class Slow(IdentityProvider):
        def grant(self, *given: Any) -> Any:
            asked.append(given)
            slow.wait(60)

    provider = Slow()
    (tmp_path / "users").mkdir(0o700)
    (tmp_path / "users" / "ada").write_text("correct-horse")
    settings = {
        **provider.settings,
        "listen_native": "none",
        "listen_kafka": "SASL_PLAINTEXT://127.0.0.1:0",
        "listen_http": "SASL_PLAINTEXT://127.0.0.1:0",
        "sasl_enabled_mechanisms": "PLAIN,OAUTHBEARER",
        "users_dir": str(tmp_path / "users"),
        "super_users": "User:ada",
        "console_oidc_client_id": CLIENT,
        "console_oidc_redirect": "http://127.0.0.1:1/",
    }
    try:
        with run_broker(tmp_path / "data", durability="os", **settings) as broker, ThreadPoolExecutor(24) as pool:
            base = f"http://{broker.http_address}"

            def guess(_: int) -> int:
                with httpx.Client(base_url=base, trust_env=False, timeout=120, headers=CHANGES) as http:
                    begun = http.post("/api/v1/login/provider")
                    if begun.status_code == 503:
                        return 503
                    state = parse_qs(urlsplit(begun.json()["location"]).query)["state"][0]
                    return http.post("/api/v1/login", json={"code": "made-up", "state": state}).status_code

            guesses = [pool.submit(guess, number) for number in range(24)]
            try:
                wait_until(lambda: len(asked) == oidc.MOST_OF_ONE, "as many as may be wait for the provider")
                wait_until(lambda: sum(each.done() for each in guesses) == 24 - len(asked), "others are refused")
                with httpx.Client(base_url=base, trust_env=False, timeout=30) as http:
                    assert http.get("/api/v1/topics", auth=("ada", "correct-horse")).status_code == 200
                    login = {"user": "ada", "password": "correct-horse"}
                    assert http.post("/api/v1/login", json=login, headers=CHANGES).status_code == 200
                provider.rotate()
                with Raw(broker.kafka_addresses["SASL_PLAINTEXT"], timeout=30) as raw:
                    assert not log_in(raw, provider.token())["error_code"]
            finally:
                slow.set()
            answers = sorted(each.result() for each in guesses)
            assert answers == [401] * oidc.MOST_OF_ONE + [503] * (24 - oidc.MOST_OF_ONE)
    finally:
        slow.set()
        provider.stop()


@pytest.mark.parametrize("sent", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"])
def test_an_answer_that_drips_ends_in_time(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """Also the thread that reads it."""
    monkeypatch.setattr(web, "SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def drip() -> None:
            with server.accept()[0] as peer, suppress(OSError):
                peer.sendall(sent)
                for _ in range(3000):
                    peer.sendall(b"x")
                    time.sleep(0.01)

        dripping = pool.submit(drip)
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        reader = web.Provider(load({"oauth_issuer": url, "oauth_audience": AUDIENCE}, {}))
        with pytest.raises(TimeoutError):
            reader._read(url, None, {})
        dripping.result()


@pytest.mark.parametrize(
    ("changed", "setting"),
    [
        ({"listen_http": "127.0.0.1:8092"}, "console_oidc_client_id"),
        ({"console_oidc_redirect": ""}, "console_oidc_redirect"),
        ({"console_oidc_redirect": "http://krappy.example/"}, "console_oidc_redirect"),
        ({"oauth_issuer": ""}, "oauth_issuer"),
        ({"oauth_issuer": "http://idp.example"}, "oauth_issuer"),
    ],
)
def test_settings_that_can_not_be(changed: dict[str, str], setting: str) -> None:
    good = {
        "console_oidc_client_id": "console",
        "console_oidc_redirect": "https://krappy.example/",
        "oauth_issuer": "https://idp.example",
        "listen_http": "SASL_SSL://127.0.0.1:8092",
    }
    load(good, {})
    with pytest.raises(ConfigError, match=f"^{setting}: "):
        load({**good, **changed}, {})


# --- a real browser


def test_a_browser(broker: RunningBroker, provider: IdentityProvider, browser: Browser) -> None:  # noqa: F811
    """The browser goes to the provider, and comes back to the page where it was. Logging out ends the session."""
    context = browser.new_context(ignore_https_errors=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(f"https://{broker.http_address}/#/connections")
        page.get_by_role("button", name="Log in with the identity provider").click()
        expect(page.get_by_role("heading", name="Connections")).to_be_visible(timeout=60_000)
        assert re.fullmatch(rf"https://{broker.http_address}/#/connections", page.url)
        held = {each["name"]: each for each in context.cookies()}
        assert held[HOST_ONLY + COOKIE]["httpOnly"]
        assert held[HOST_ONLY + COOKIE]["sameSite"] == "Strict"
        assert page.evaluate("document.cookie") == ""
        page.reload()
        expect(page.get_by_role("heading", name="Connections")).to_be_visible(timeout=60_000)
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", name="Log in")).to_be_visible(timeout=60_000)
        page.goto(f"https://{broker.http_address}/?error=access_denied&state=x")
        expect(page.get_by_role("alert")).to_contain_text("has not let you in", timeout=60_000)
        page.goto(f"https://{broker.http_address}/?code=stolen&state=x")
        expect(page.get_by_role("alert")).to_contain_text("another login", timeout=60_000)
        assert not errors
    finally:
        context.close()


def test_no_secret_is_told(
    broker: RunningBroker, provider: IdentityProvider, http: httpx.Client, reported: list[str]
) -> None:
    back = come_back(provider, begin(http))
    http.post("/api/v1/login", json=back)
    token = provider.token(seconds=-60)
    http.get("/api/v1/topics", headers={"Authorization": f"Bearer {token}"})
    [cookie] = login_cookies(http).values()
    said = "".join(reported) + http.get("/api/v1/cluster").text
    for secret in (CLIENT_SECRET, back["code"], back["state"], token, token.split(".")[2], *cookie.split(".")[1:]):
        assert secret not in said
