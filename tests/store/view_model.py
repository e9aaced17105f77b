"""A view as a plain dict, and steps of a history that are applied to a view and to the dict."""

from __future__ import annotations

import random

from krappy.entries.entry import is_tombstone, pack_entry
from krappy.store.views import ViewSnapshot

Model = dict[bytes, bytes]  # record key -> packed entry


def read_all(snapshot: ViewSnapshot, number: int, page: int = 7, **chosen: object) -> dict[bytes, bytes]:
    """Every entry of a scan, a page at a time; checks what must hold for every page."""
    found: dict[bytes, bytes] = {}
    chosen = dict(chosen)
    while True:
        got = snapshot.rows(number, max_entries=page, **chosen)  # type: ignore[arg-type]
        assert len(got.keys) == len(got.entries) <= page
        assert [*found, *got.keys] == sorted({*found, *got.keys})
        found.update(zip(got.keys, got.entries, strict=True))
        if got.following is None:
            return found
        assert not got.keys or got.keys[-1] < got.following
        chosen["start"] = got.following


def living(model: Model) -> Model:
    return {key: entry for key, entry in model.items() if not is_tombstone(entry)}


def step(seed: int, offset: int, records: int, keys: int, value: int) -> Model:
    """The entries of one apply. The arguments alone determine them; about one in eight is a tombstone."""
    chance = random.Random(f"{seed} {offset}")
    found: Model = {}
    for index in range(records):
        key = b"key-%d" % chance.randrange(keys)
        held = None if chance.random() < 0.125 else chance.randbytes(chance.randrange(value))
        found[key] = pack_entry(offset + index, 1_700_000_000_000 + offset, held)
    return found
