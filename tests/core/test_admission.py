"""Which timestamps a topic takes, compared with the rule spelled out for one timestamp."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.core.admission import Times, admit, columns_cost
from krappy.errors import InvalidTimestamp
from krappy.records import batch, codecs
from krappy.settings.topic import TopicConfig
from krappy.types import NO_TIMESTAMP

NOW = 1_700_000_000_000
near = st.sampled_from([-(2**62), -2, -1, 0, 1, NOW - 100, NOW - 10, NOW, NOW + 10, NOW + 100, 2**62, 2**63 - 1])
times = near | st.builds(lambda far, by: far + by, near, st.integers(-1, 1)).filter(lambda time: time < 2**63)
limits = st.none() | st.sampled_from([0, 10, 100, NOW, NOW + 5, 2**62])


def right(time: int, before: int | None, after: int | None) -> bool:
    if time < 0:
        return time == NO_TIMESTAMP
    return (before is None or NOW - time <= before) and (after is None or time - NOW <= after)


@given(st.lists(times, min_size=1, max_size=6), limits, limits, st.booleans(), st.sampled_from([0, 4]))
def test_every_record_out_of_range_is_named_and_no_other(
    given: list[int], before: int | None, after: int | None, view: bool, codec: int
) -> None:
    if max(given) - min(given) >= 2**63:
        return  # no batch can hold both
    config = TopicConfig(timestamp_before_ms=before, timestamp_after_ms=after, view=view)
    data = batch.encode([b"k"] * len(given), [b"v"] * len(given), timestamps=given, codec=codec)
    wrong = [index for index, time in enumerate(given) if not right(time, before, after)]
    if not wrong:
        assert admit(data, config, Times(config, NOW)).header.max_timestamp == max(given)
    else:
        with pytest.raises(InvalidTimestamp) as caught:
            admit(data, config, Times(config, NOW))
        assert [index for index, _ in caught.value.others] == wrong[1:]
        assert caught.value.index == wrong[0]
    admit(data, config, None)  # as a batch that was accepted before
    stamped = TopicConfig(timestamp_before_ms=before, timestamp_after_ms=after, view=view, log_append_time=True)
    admit(data, stamped, Times(stamped, NOW))


@pytest.mark.parametrize(
    ("time", "told"),
    [
        (NOW * 1_000_000, "message.timestamp.after.max.ms is 3600000 (timestamps are milliseconds)"),
        (NOW + 3_600_001, "which is 3600001 ms ahead of the broker's clock"),
        (NOW - 11, "which is 11 ms behind the broker's clock; message.timestamp.before.max.ms is 10"),
        (-2, "before 1970"),
    ],
)
def test_the_error_names_the_setting(time: int, told: str) -> None:
    config = TopicConfig(timestamp_before_ms=10)
    with pytest.raises(InvalidTimestamp) as caught:
        admit(batch.encode(None, [b"v"], timestamps=time), config, Times(config, NOW))
    assert told in caught.value.text
    with pytest.raises(InvalidTimestamp) as one:
        Times(config, NOW).admit_one(time)
    assert told in one.value.text


@pytest.mark.parametrize("codec", [codecs.NONE, codecs.ZSTD])
def test_headers_count_in_what_columns_take(codec: int) -> None:
    """When headers are compressed, they may be a thousand times as long as the batch."""
    headers = [(("name", bytes(10_000)), ("none", None)), ()]
    data = batch.encode([b"k", b"l"], [b"v", b"w"], timestamps=[0, 0], headers=headers, codec=codec)
    cost = columns_cost(batch.read_header(data), batch.decode(data))
    content = 10_000 + 2 * 4 + 4
    assert content + 4 * batch.RECORD_COST <= cost < content + 4 * batch.RECORD_COST + 200
