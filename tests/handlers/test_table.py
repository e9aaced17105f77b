"""The table by native messages: lookups, scans, watches, history, against a real broker."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from krappy import arrow_layout, errors
from krappy.partitioner import MOST_HASHED
from krappy.testing.running import RunningBroker
from krappy.wire import messages as m
from tests.handlers.raw import Raw, read_all, records, scan


def test_a_lookup_tells_absent_deleted_and_value_apart(raw: Raw) -> None:
    handle = raw.producer("t").handle
    raw.call(m.Message(handle, b"1", b"a", timestamp=5, headers=[("h", b"x"), ("n", None)]))
    raw.call(m.Message(handle, b"2", b"b"))
    raw.call(m.Message(handle, None, b"b", timestamp=7))
    assert raw.call(m.Get("t", b"a")).entry == [[0, 5, b"1", [["h", b"x"], ["n", None]]]]
    assert raw.call(m.Get("t", b"b")).entry == [[2, 7, None, None]]
    assert raw.call(m.Get("t", b"c")).entry == [None]
    found = raw.call(m.MultiGet("t", [b"c", b"a", b"b", b"a"]))
    assert [entry and entry[0] for entry in found.entries] == [None, 0, 2, 0]


def test_a_read_sees_the_write_before_it(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(300):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
        assert raw.call(m.Get("t", b"k")).entry[0][2] == b"%d" % n


def test_a_scan_pages_through_one_snapshot(raw: Raw) -> None:
    handle = raw.producer("t").handle
    raw.call(m.Batch(handle, 0, records(*((b"k%03d" % n, b"old") for n in range(100)))))
    page = raw.call(m.Scan("t", max_entries=30))
    raw.call(m.Batch(handle, 0, records(*((b"k%03d" % n, b"new") for n in range(120)))))
    entries = list(page.entries)
    while page.cursor is not None:
        page = raw.call(m.Scan(cursor=page.cursor, max_entries=30))
        entries += page.entries
    assert entries[0::2] == [b"k%03d" % n for n in range(100)]
    assert {entry[2] for entry in entries[1::2]} == {b"old"}
    assert page.offsets == [[0, 100]]


def test_a_scan_takes_a_prefix_or_a_range(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", 2))
    handle = raw.producer("t").handle
    for key in (b"a", b"a1", b"a2", b"b", b"b\xff", b"c", b"\xff\xff"):
        raw.call(m.Message(handle, b"v", key))
    raw.call(m.Message(handle, None, b"a2"))

    def keys(**what: Any) -> list[bytes]:
        return sorted(key for _, key, _ in scan(raw, topic="t", **what)[0])

    assert keys() == [b"a", b"a1", b"b", b"b\xff", b"c", b"\xff\xff"]
    assert keys(prefix=b"a") == [b"a", b"a1"]
    assert keys(prefix=b"a", tombstones=True) == [b"a", b"a1", b"a2"]
    assert keys(prefix=b"\xff") == [b"\xff\xff"]
    assert keys(start=b"a1", end=b"c") == [b"a1", b"b", b"b\xff"]
    assert keys(end=b"b") == [b"a", b"a1"]
    assert keys(prefix=b"zzz") == []
    assert sorted(scan(raw, topic="t", max_entries=1)[0]) == sorted(scan(raw, topic="t")[0])
    with pytest.raises(errors.InvalidRequest):
        keys(prefix=b"a", start=b"b")
    with pytest.raises(errors.UnknownHandle):
        raw.call(m.Scan(cursor=999))


def test_a_watch_has_no_gap_and_no_duplicate(broker: RunningBroker) -> None:
    """While a writer is busy: the snapshot and the changes together tell of every change of every key since the
    snapshot."""
    count = 3000
    with Raw(broker.address) as raw:
        raw.call(m.CreateTopic("t", 2))

        def write() -> None:
            with Raw(broker.address) as writer:
                handle = writer.producer("t").handle
                ids = []
                for n in range(count):
                    ids.append(writer.send(m.Message(handle, b"%d" % n, b"k%d" % (n % 50))))
                for id in ids:
                    writer.receive(id)

        thread = threading.Thread(target=write)
        thread.start()
        watch = raw.send(m.Watch("t"))
        exact: dict[int, int] = {}
        latest: dict[bytes, int] = {}
        seen: dict[int, list[int]] = {0: [], 1: []}
        expected = {b"k%d" % (n % 50): n for n in range(count)}
        while not exact or latest != expected:  # one partition may be ahead of the other
            answer = raw.receive(watch)
            pairs = list(zip(answer.entries[0::2], answer.entries[1::2], strict=True))
            if answer.event == "end_of_snapshot":
                exact = dict(answer.offsets)
            for key, entry in pairs:
                latest[key] = int(entry[2])
                if answer.event == "changes":
                    assert exact, "a change before the end of the snapshot"
                    seen[answer.partition].append(entry[0])
                else:
                    assert not exact, "a snapshot entry after its end"
        thread.join()
        raw.call(m.Unregister(answer.handle))
        for partition, offsets in seen.items():
            first = exact[partition]
            assert offsets == list(range(first, first + len(offsets)))
        assert raw.receive(watch).more is False


def test_a_watch_goes_on_to_partitions_that_come_later(broker: RunningBroker, raw: Raw) -> None:
    """Each event comes once, from the beginning of the new partitions on; also to a watcher that resumes and does not
    know them."""

    def publish(partition: int, *values: bytes) -> None:
        for value in values:
            writer.call(m.Message(handle, value, b"k" + value, partition=partition))

    def take(watch: int, count: int) -> list[tuple[int, bytes]]:
        found: list[tuple[int, bytes]] = []
        while len(found) < count:
            answer = raw.receive(watch)
            assert answer.event == "changes"
            found += [(answer.partition, entry[2]) for entry in answer.entries[1::2]]
            offsets[answer.partition] = answer.next_offset
        return found

    with Raw(broker.address) as writer:
        writer.call(m.CreateTopic("t", 1))
        handle = writer.producer("t").handle
        publish(0, b"0")
        watch, some = raw.send(m.Watch("t")), raw.send(m.Watch("t", partitions=[0]))
        offsets: dict[int, int] = {}
        while not offsets:
            answer = raw.receive(watch)
            offsets = dict(answer.offsets or ())
        assert offsets == {0: 1}
        writer.call(m.AlterTopic("t", partitions=3))
        publish(2, b"1", b"2")
        publish(0, b"3")
        publish(1, b"4")
        assert sorted(take(watch, 4)) == [(0, b"3"), (1, b"4"), (2, b"1"), (2, b"2")]
        assert offsets == {0: 2, 1: 1, 2: 2}
        raw.call(m.Unregister(answer.handle))
        assert raw.receive(watch).more is False
        publish(1, b"5")
        del offsets[2]
        watch = raw.send(m.Watch("t", offsets=list(offsets.items())))
        assert sorted(take(watch, 3)) == [(1, b"5"), (2, b"1"), (2, b"2")]
        publish(0, b"6")
        told = [raw.receive(some) for _ in range(4)]  # a snapshot, its end, and its own partition's changes
        assert {each.partition for each in told} == {0}
        with pytest.raises(errors.InvalidRequest):
            raw.call(m.Watch("t", offsets=[(0, 1)], partitions=[0, 1]))


@pytest.mark.parametrize("chosen", [[1], [2, 1]])
def test_a_watch_of_some_partitions_begins_with_an_empty_table(raw: Raw, chosen: list[int]) -> None:
    raw.call(m.CreateTopic("empty", 3))
    watched = raw.receive(raw.send(m.Watch("empty", partitions=chosen)))
    assert (watched.event, watched.partition, watched.entries) == ("end_of_snapshot", chosen[-1], [])
    assert sorted(index for index, _ in watched.offsets) == sorted(chosen)


def test_an_error_does_not_repeat_a_long_name(raw: Raw) -> None:
    with pytest.raises(errors.UnknownTopic) as caught:
        raw.call(m.Get("t" * 100_000, b"k"))
    assert len(caught.value.text) + len(str(caught.value.details)) < 5000


def test_a_key_that_takes_long_to_hash_is_refused_unless_its_partition_is_named(raw: Raw) -> None:
    """To hash such a key would hold up everybody."""
    raw.call(m.CreateTopic("hashed", 3))
    key = bytes(MOST_HASHED + 1)
    column = arrow_layout.binary([key])
    for request in (
        m.Get("hashed", key),
        m.History("hashed", key),
        m.GetColumns("hashed", column.offsets, column.data),
        m.Message(raw.producer("hashed").handle, b"v", key),
    ):
        with pytest.raises(errors.InvalidRequest, match="partition has to be named"):
            raw.call(request)
    assert raw.call(m.Get("hashed", key, partition=2)).entry == [None]
    raw.call(m.CreateTopic("whole", 1))
    assert raw.call(m.Get("whole", key)).entry == [None]


@pytest.mark.parametrize("offsets", [None, []])
def test_a_watch_of_no_partition_is_refused(raw: Raw, offsets: list[tuple[int, int]] | None) -> None:
    raw.producer("t")
    with pytest.raises(errors.InvalidRequest, match="`partitions` is empty"):
        raw.call(m.Watch("t", partitions=[], offsets=offsets))


def test_a_watch_tells_how_far_it_is_where_nothing_matches(raw: Raw) -> None:
    handle = raw.producer("t").handle
    watch = raw.send(m.Watch("t", prefix=b"other"))
    assert raw.receive(watch).event == "end_of_snapshot"
    for n in range(5):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
    reached = 0
    while reached < 5:
        answer = raw.receive(watch)
        assert (answer.event, answer.entries) == ("changes", [])
        assert answer.next_offset > reached
        reached = answer.next_offset
    assert reached == 5
    raw.call(m.Message(handle, b"5", b"other-key"))
    answer = raw.receive(watch)
    assert (answer.next_offset, answer.entries[0]) == (6, b"other-key")


def test_a_watch_goes_on_from_offsets(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(5):
        raw.call(m.Message(handle, b"%d" % n, b"k"))
    watch = raw.send(m.Watch("t", offsets=[(0, 3)]))
    first = raw.receive(watch)
    assert (first.event, first.next_offset, first.entries) == ("changes", 3, [])
    assert first.topic_id == raw.call(m.DescribeTopics(["t"])).topics[0]["id"]
    answer = raw.receive(watch)
    assert answer.topic_id is None
    assert (answer.event, answer.next_offset) == ("changes", 5)
    assert [entry[2] for entry in answer.entries[1::2]] == [b"3", b"4"]
    with pytest.raises(errors.InvalidRequest):
        raw.call(m.Watch("t", offsets=[(1, 3)]))


def test_history_is_every_event_of_a_key(raw: Raw) -> None:
    handle = raw.producer("t").handle
    for n in range(100):
        raw.call(m.Batch(handle, 0, records((b"k%d" % (n % 3), b"%d" % n), (None, b"k1"))))
    found = []
    offset: int | None = 0
    while offset is not None:
        page = raw.call(m.History("t", b"k1", offset=offset, max_records=10))
        assert len(page.entries) <= 10
        found += page.entries
        offset = page.next_offset
    assert [entry[2] for entry in found] == [b"%d" % n for n in range(1, 100, 3)]


def test_without_a_view_lookups_are_refused_and_the_log_works(raw: Raw) -> None:
    raw.call(m.CreateTopic("t", config={"view.enable": "false"}))
    handle = raw.producer("t").handle
    raw.call(m.Message(handle, b"v", b"k"))
    for request in (m.Get("t", b"k"), m.MultiGet("t", [b"k"]), m.Scan("t"), m.Watch("t")):
        with pytest.raises(errors.ViewDisabled):
            raw.call(request)
    assert len(read_all(raw, "t")) == 1
    raw.call(m.AlterTopic("t", {"view.enable": "true"}))
    assert raw.call(m.Get("t", b"k")).entry[0][2] == b"v"
    raw.call(m.AlterTopic("t", {"view.enable": "false"}))
    raw.call(m.Message(handle, b"w", b"k"))
    raw.call(m.AlterTopic("t", {"view.enable": None}))
    assert raw.call(m.Get("t", b"k")).entry[0][2] == b"w"


def test_a_watch_says_that_keys_are_scattered(raw: Raw) -> None:
    """Whoever begins it anew has to know that a key's tombstone may come from another partition than its value."""
    raw.call(m.CreateTopic("t", 1))
    handle = raw.producer("t").handle
    raw.call(m.Batch(handle, 0, records(*((b"k%d" % n, b"v") for n in range(20)))))
    for partitions in (1, 4):
        if partitions > 1:
            raw.call(m.AlterTopic("t", partitions=partitions))
        watch = raw.send(m.Watch("t"))
        page = raw.receive(watch)
        assert (page.event, page.scattered) == ("snapshot", partitions > 1)
        assert raw.receive(watch).event == "end_of_snapshot"
        raw.call(m.Unregister(page.handle))
        while raw.receive(watch).more:
            pass
