"""What users give, made into what the protocol takes."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from krappy.clients import values
from krappy.clients.backoff import Backoff
from krappy.clients.events import spans
from krappy.clients.runtime import run
from krappy.errors import ConfigError, InvalidRecord, InvalidRequest, InvalidTimestamp


@pytest.mark.parametrize(
    ("given", "host", "port", "shown"),
    [
        ("localhost", "localhost", 7092, "localhost:7092"),
        ("10.1.2.3:99", "10.1.2.3", 99, "10.1.2.3:99"),
        ("[::1]:99", "::1", 99, "[::1]:99"),
        ("[::1]", "::1", 7092, "[::1]:7092"),
        ("::1", "::1", 7092, "[::1]:7092"),
        ("krappy://broker.example:1/", "broker.example", 1, "broker.example:1"),
    ],
)
def test_addresses(given: str, host: str, port: int, shown: str) -> None:
    found = values.address(given)
    assert (found.host, found.port, str(found)) == (host, port, shown)


@pytest.mark.parametrize("wrong", ["", ":7092", "host:", "host:x", "host:0", "host:65536", "[", "[]:5", "host:١"])
def test_what_is_no_address(wrong: str) -> None:
    if wrong == "host:":
        assert values.address(wrong).port == values.DEFAULT_PORT
        return
    with pytest.raises(ConfigError, match="no address"):
        values.address(wrong)


def test_no_address_is_the_one_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KRAPPY_ADDRESS", "there:5")
    assert list(map(str, values.addresses(None))) == ["there:5"]
    monkeypatch.setenv("KRAPPY_ADDRESS", "there:5,here:6")
    assert list(map(str, values.addresses(None))) == ["there:5", "here:6"]
    monkeypatch.setenv("KRAPPY_ADDRESS", "")
    assert list(map(str, values.addresses(None))) == ["127.0.0.1:7092"]


@pytest.mark.parametrize(
    "given", ["a:1,b,[::1]:2", ["a:1", "b:7092", "krappy://[::1]:2/"], ("a:1", " b", "a:1", "::1:2")]
)
def test_several_addresses(given: Any) -> None:
    assert list(map(str, values.addresses(given)))[:2] == ["a:1", "b:7092"]


@pytest.mark.parametrize("wrong", [[], "a,,b", 5, b"a:1", [5]])
def test_invalid_addresses(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="address"):
        values.addresses(wrong)


def test_texts() -> None:
    for given in ("ü", b"\xc3\xbc", bytearray(b"\xc3\xbc"), memoryview(b"\xc3\xbc")):
        found = values.encoded(given, "value")
        assert (found, type(found)) == (b"\xc3\xbc", bytes)
    assert values.encoded(None, "value") is None
    with pytest.raises(InvalidRecord, match="a value is str, bytes or None, not int"):
        values.encoded(5, "value")  # type: ignore[arg-type]


def test_times() -> None:
    zone = timezone(timedelta(hours=-3))
    assert values.milliseconds(datetime(1970, 1, 1, 0, 0, 1, 500, tzinfo=UTC)) == 1000
    assert values.milliseconds(datetime(1969, 12, 31, 21, tzinfo=zone)) == 0
    assert values.milliseconds(7) == 7
    wrong: Any
    for wrong in (True, 1.5, "1"):
        with pytest.raises(InvalidRecord):
            values.milliseconds(wrong)


def test_starts() -> None:
    assert values.start("earliest") == ("earliest", None)
    assert values.start(0) == ("offset", 0)
    assert values.start(datetime.fromtimestamp(5, UTC)) == ("timestamp", 5000)
    wrong: Any
    for wrong in (True, -1, "first", None, 1.0):
        with pytest.raises(InvalidRequest):
            values.start(wrong)


def test_runs_of_offsets() -> None:
    assert spans([]) == spans(range(0)) == []
    assert spans(range(3, 6)) == spans([3, 4, 5]) == [(3, 5)]
    assert spans([1, 3, 4, 9]) == [(1, 1), (3, 4), (9, 9)]


def test_pauses_grow_to_a_limit_and_are_never_the_same_for_all() -> None:
    backoff = Backoff(random.Random(1).random, first=1.0, longest=8.0)
    pauses = [backoff.pause() for _ in range(6)]
    for pause, most in zip(pauses, [1, 2, 4, 8, 8, 8], strict=True):
        assert most / 2 <= pause <= most
    assert len(set(pauses)) == 6
    backoff.reset()
    assert backoff.pause() <= 1.0


def test_a_coroutine_that_suspends_is_no_blocking_one() -> None:
    class Suspends:
        def __await__(self) -> Any:
            yield

    async def good() -> int:
        return 5

    async def bad() -> None:
        await Suspends()

    assert run(good()) == 5
    with pytest.raises(RuntimeError, match="suspended"):
        run(bad())


@pytest.mark.parametrize("wrong", [2**63, 2**70])
def test_numbers_beyond_64_bits_are_refused(wrong: int) -> None:
    assert values.event_time(2**63 - 1) == values.expected(2**63 - 1) == 2**63 - 1
    with pytest.raises(InvalidTimestamp, match="not in ms"):
        values.event_time(wrong)
    with pytest.raises(InvalidRequest, match="expect="):
        values.expected(wrong)


def test_a_header_with_a_name_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(InvalidRecord, match="header's name that is not UTF-8"):
        values.headers({"\udcff": "value"})
