"""Views, compared with a dict: random histories with tombstones, drops, flushes, reopenings and snapshots that are held
meanwhile."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from krappy.entries.entry import entry_offset, is_tombstone, pack_columns, unpack_entry
from krappy.store.views import Views, ViewSnapshot
from tests.store.view_model import Model, living, read_all

NUMBERS = (1, 2, 257)
keys = st.sampled_from([b"", b"a", b"ab", b"b", b"\0", b"\xff", b"\xff\xff"]) | st.binary(max_size=3)
records = st.lists(st.tuples(st.none() | keys, st.none() | st.binary(max_size=40)), max_size=12)
bounds = st.none() | keys


class ViewHistory(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="krappy-views-"))
        self.models: dict[int, Model] = {number: {} for number in NUMBERS}
        self.applied = dict.fromkeys(NUMBERS, 0)
        self.end = dict.fromkeys(NUMBERS, 0)
        self.maybe: set[tuple[int, bytes]] = set()
        self.snapshots: list[tuple[ViewSnapshot, dict[int, Model], dict[int, int]]] = []

    @initialize()
    def opened(self) -> None:
        self.views = Views(self.folder / "views", cache_bytes=1 << 20, memtable_bytes=256 << 10)

    @rule(number=st.sampled_from(NUMBERS), records=records)
    def apply(self, number: int, records: list[tuple[bytes | None, bytes | None]]) -> None:
        first = self.end[number]
        offsets = range(first, first + len(records))
        packed = pack_columns(offsets, [7] * len(records), [key for key, _ in records], [held for _, held in records])
        self.views.apply(number, packed, offsets.stop)
        self.end[number] = self.applied[number] = offsets.stop
        for offset, (key, value) in zip(offsets, records, strict=True):
            if key is not None:
                # The plain fold, one record at a time. It is unpacked again, so that both sides have the same form.
                assert unpack_entry(packed[key])[0] >= offset
                if entry_offset(packed[key]) == offset:
                    assert unpack_entry(packed[key]) == (offset, 7, value, ())
                    self.models[number][key] = packed[key]

    @rule(number=st.sampled_from(NUMBERS), gone=st.lists(keys, max_size=3))
    def take_out(self, number: int, gone: list[bytes]) -> None:
        """Takes keys out as housekeeping does with expired tombstones."""
        gone = [key for key in gone if key not in self.models[number] or is_tombstone(self.models[number][key])]
        self.views.apply(number, {}, self.applied[number], gone)
        for key in gone:
            entry = self.models[number].pop(key, None)
            for _, models, _ in self.snapshots:
                if number in models and entry is not None and models[number].get(key) == entry:
                    self.maybe.add((number, key))  # a snapshot may show it or not

    @rule(number=st.sampled_from(NUMBERS), reclaim=st.booleans())
    def drop(self, number: int, reclaim: bool) -> None:
        self.views.drop(number)
        if reclaim:
            self.views.reclaim(number)
        self.models[number] = {}
        self.applied[number] = 0
        for _, models, _ in self.snapshots:
            models.pop(number, None)

    @rule()
    def write(self) -> None:
        self.views.write()

    @rule()
    def flush(self) -> None:
        self.views.flush()

    @rule()
    def reopen(self) -> None:
        self.views.close()
        self.snapshots.clear()
        self.opened()

    @rule()
    def snapshot(self) -> None:
        if len(self.snapshots) < 3:
            models = {number: dict(model) for number, model in self.models.items()}
            self.snapshots.append((self.views.snapshot(), models, dict(self.applied)))

    @rule(
        number=st.sampled_from(NUMBERS),
        start=bounds,
        end=bounds,
        prefix=bounds,
        tombstones=st.booleans(),
        log_start=st.integers(0, 20),
        page=st.integers(1, 5),
        room=st.sampled_from([1, 60, 1 << 20]),
    )
    def scan(
        self,
        number: int,
        start: bytes | None,
        end: bytes | None,
        prefix: bytes | None,
        tombstones: bool,
        log_start: int,
        page: int,
        room: int,
    ) -> None:
        for snapshot, models, _ in [*self.snapshots, (self.views.snapshot(), self.models, self.applied)]:
            if number not in models:
                continue
            model = models[number] if tombstones else living(models[number])
            wanted = {
                key: entry
                for key, entry in model.items()
                if (start is None or key >= start)
                and (end is None or key < end)
                and key.startswith(prefix or b"")
                and entry_offset(entry) >= log_start
            }
            chosen = {"start": start, "end": end, "prefix": prefix, "tombstones": tombstones, "log_start": log_start}
            found = read_all(snapshot, number, page, max_bytes=room, **chosen)
            for key in wanted.keys() - found.keys():
                assert (number, key) in self.maybe
                del wanted[key]
            assert found == wanted

    @invariant()
    def lookups_agree(self) -> None:
        if not hasattr(self, "views"):
            return
        for number, model in self.models.items():
            assert self.views.applied(number) == self.applied[number]
            asked = [*model, b"never a key"]
            assert self.views.get_many(number, asked) == [*model.values(), None]
            assert [self.views.get(number, key) for key in asked] == [*model.values(), None]
        for snapshot, models, applied in self.snapshots:
            for number, model in models.items():
                assert snapshot.applied(number) == applied[number]
                assert [snapshot.get(number, key) for key in model] == list(model.values())

    def teardown(self) -> None:
        if hasattr(self, "views"):
            self.views.close()
        shutil.rmtree(self.folder)


ViewHistory.TestCase.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)
TestViewHistory = ViewHistory.TestCase
