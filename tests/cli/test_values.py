"""How values are typed and shown."""

from __future__ import annotations

import json
import math
import unicodedata
from datetime import UTC, datetime, timedelta

import click
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from krappy import errors
from krappy.bench import load, report
from krappy.cli import output
from krappy.cli.errors import HINTS, explain
from krappy.cli.options import Bytes, Quantity, Separator, SettingOption, Start, key_bytes, moment
from krappy.settings import units


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31 12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("@0", datetime(1970, 1, 1, tzinfo=UTC)),
        ("@1500", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
    ],
)
def test_a_moment(text: str, expected: datetime) -> None:
    assert moment(text) == expected


@pytest.mark.parametrize(
    ("text", "age"),
    [("0s", timedelta()), ("15m", timedelta(minutes=15)), ("1.5h", timedelta(hours=1.5)), ("7d", timedelta(days=7))],
)
def test_an_age_is_a_moment_in_the_past(text: str, age: timedelta) -> None:
    before = datetime.now(UTC)
    found = moment(text)
    assert before - age <= found <= datetime.now(UTC) - age


@given(st.text(max_size=20))
def test_any_other_text_is_a_bad_parameter(text: str) -> None:
    try:
        found = moment(text)
    except click.BadParameter:
        return
    assert found.tzinfo is not None


@pytest.mark.parametrize(
    ("text", "expected"), [("earliest", "earliest"), ("0", 0), ("17", 17), ("@0", datetime(1970, 1, 1, tzinfo=UTC))]
)
def test_a_place(text: str, expected: object) -> None:
    assert Start("earliest", "latest").convert(text, None, None) == expected


@pytest.mark.parametrize("text", ["", "-1", "now", "1.5", "@", "@99999999999999999999", "9" * 30 + "d", "²"])
def test_no_place(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Start("earliest", "latest").convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("5", 5.0), ("0.5", 0.5), ("500ms", 0.5), ("2m", 120.0), ("1.5h", 5400.0), (3.0, 3.0)]
)
def test_seconds_may_have_units(text: object, seconds: float) -> None:
    assert Quantity(units.MS, 1000, 0).convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["", "x", "5M", "-1", "nan", "inf", "1e999", "5 weeks"])
def test_invalid_seconds(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Quantity(units.MS, 1000, 0).convert(text, None, None)


def test_bytes_may_have_units() -> None:
    assert Bytes(1, 1 << 20).convert("64K", None, None) == 64 << 10
    assert Bytes(1, 1 << 20).convert("100", None, None) == 100
    for wrong in ("2M", "64s", "x"):
        with pytest.raises(click.BadParameter):
            Bytes(1, 1 << 20).convert(wrong, None, None)
    assert Quantity(units.BYTES, 1_000_000, 0.001).convert("50M", None, None) == (50 << 20) / 1_000_000


@given(st.integers(0, 2**62), st.sampled_from([units.BYTES, units.MS]))
def test_a_number_that_is_shown_with_a_unit_reads_back(number: int, unit: str) -> None:
    shown = units.shown(number, unit)
    assert not shown or units.read(shown, unit) == number


def test_separators_and_settings() -> None:
    assert Separator().convert(r"\t", None, None) == "\t"
    assert SettingOption().convert("a.b=c=d", None, None) == ("a.b", "c=d")
    for wrong in ("a", "=b"):
        with pytest.raises(click.BadParameter):
            SettingOption().convert(wrong, None, None)


@given(st.one_of(st.none(), st.binary(max_size=30)))
def test_bytes_are_told_from_text_in_json(value: bytes | None) -> None:
    shown = output.plain(value)
    if value is None:
        assert shown is None
    elif isinstance(shown, str):
        assert shown.encode() == value
    else:
        assert key_bytes("base64:" + shown["base64"]) == value


@given(st.one_of(st.binary(max_size=30), st.text(max_size=10).map(lambda text: f"base64:{text}".encode())))
@example(b"u1\n+ u2\tforged")
@example("\x1b[2J\x9b\x85".encode())
@example("\u2028u2\u202eforged".encode())
@example(b"base64:/w==")
def test_a_key_that_was_shown_can_be_typed_and_is_one_line(value: bytes) -> None:
    shown = output.key_text(value)
    assert key_bytes(shown) == value
    assert len(shown.splitlines()) <= 1
    assert not any(unicodedata.category(each) == "Cc" for each in shown)
    assert not any(unicodedata.bidirectional(each) in ("LRO", "RLO", "LRE", "RLE", "PDF") for each in shown)


@given(st.text(max_size=30))
@example("\x7f\x85\n\x1b")
def test_json_is_exact_and_has_no_control_characters(value: str) -> None:
    shown = output.to_json([value])
    assert json.loads(shown) == [value]
    assert len(shown.splitlines()) == 1
    assert not any(unicodedata.category(each) == "Cc" for each in shown)


def test_wrong_base64_is_a_bad_parameter() -> None:
    with pytest.raises(click.BadParameter):
        key_bytes("base64:*")


@given(st.integers(-(2**63), 2**63 - 1))
def test_every_timestamp_can_be_shown(timestamp: int) -> None:
    assert output.when(timestamp)


SIZES = {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536: "1.5 KiB", 1 << 40: "1.0 TiB", 1 << 52: "4096.0 TiB"}


@pytest.mark.parametrize(("number", "shown"), SIZES.items())
def test_sizes(number: int, shown: str) -> None:
    assert output.size(number) == shown


def test_an_error_is_one_line_with_a_hint() -> None:
    line, status = explain(errors.UnknownGroup("there is no\ngroup 'x'"))
    assert line == f"there is no group 'x'; {HINTS[errors.UnknownGroup]}"
    assert status == 1


def test_what_tasks_raise_together_is_told_by_its_cause() -> None:
    group = BaseExceptionGroup("g", [ValueError("v"), BaseExceptionGroup("h", [errors.StorageError("full")])])
    assert explain(group)[0] == "full"


def test_advice_about_a_size_is_about_the_limit_that_it_was() -> None:
    of_the_topic = explain(errors.RecordTooLarge("a batch of 9 bytes; max.message.bytes is 5"))[0]
    assert of_the_topic.endswith("`krappy topic alter --config max.message.bytes=…` raises the limit")
    assert explain(errors.RecordTooLarge("the broker takes 5"))[0] == "the broker takes 5"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (FileNotFoundError(2, "No such file or directory", "x.csv"), "x.csv: No such file or directory"),
        (PermissionError(13, "Permission denied"), "Permission denied"),
        (ValueError("a\nb"), "a mistake in krappy itself: ValueError: a b (KRAPPY_DEBUG=1 shows where)"),
    ],
)
def test_errors_of_the_system(error: Exception, line: str) -> None:
    assert explain(error) == (line, 1)


@pytest.mark.parametrize(("rank", "expected"), [(50, 50), (99, 99), (99.9, 100), (100, 100), (0, 1)])
def test_percentiles_by_nearest_rank(rank: float, expected: float) -> None:
    assert report.percentile([float(number) for number in range(1, 101)], rank) == expected


@given(st.lists(st.floats(0, 1), min_size=1, max_size=50), st.floats(1, 100))
def test_a_percentile_is_not_exceeded_by_that_share(values: list[float], rank: float) -> None:
    ordered = sorted(values)
    found = report.percentile(ordered, rank)
    assert sum(value <= found for value in ordered) >= math.floor(len(ordered) * rank / 100)


def test_a_summary_is_of_the_median_round() -> None:
    rounds = [report.Round(100, seconds, 1000, [seconds]) for seconds in (1.0, 4.0, 2.0)]
    found = report.summary("produce", "events/s", rounds, view=True)
    assert (found["per_second"], found["per_second_min"], found["per_second_max"]) == (50.0, 25.0, 100.0)
    assert (found["p50_ms"], found["max_ms"], found["view"]) == (2000.0, 4000.0, True)


def test_a_load_is_the_same_each_time_and_of_its_size() -> None:
    events = load.make(2000, 100, 50)
    assert events == load.make(2000, 100, 50)
    assert events.size == 2000 * 100
    assert len(set(events.keys)) == 50
    assert sum(len(values) for _, values in events.batches(300)) == 2000
    assert sorted(load.every_key(500, 20).keys) == load.every_key(500, 20).keys
