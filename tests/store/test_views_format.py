"""VIEWS.md, compared with the database: its example, byte by byte, and its table of the catalog's keys."""

from __future__ import annotations

import re
from pathlib import Path

import trio

from krappy.broker import tree_changes
from krappy.broker.overrides import STATIC
from krappy.core.cluster import paths, znodes
from krappy.core.cluster.tree import Create, Operation
from krappy.core.staging import Job, JobState, StagedTask
from krappy.core.transactions import Transaction
from krappy.entries.entry import pack_entry
from krappy.store import group_offsets, groups, rocks, staging, transactions
from krappy.store.meta import Meta
from krappy.store.synced import ACCEPT
from krappy.store.views import Views
from tests.broker.catalogs import SyncCatalog

DOCUMENT = (Path(__file__).parent.parent.parent / "store" / "VIEWS.md").read_text()


def test_the_example_is_what_is_stored(tmp_path: Path) -> None:
    lines = re.findall(r"^    (key|value) +([0-9a-f ]+)$", DOCUMENT, re.MULTILINE)
    found = [bytes.fromhex(text) for _, text in lines]
    documented = dict(zip(found[::2], found[1::2], strict=True))
    assert len(documented) == 2
    views = Views(tmp_path / "views")
    views.apply(7, {b"u1": pack_entry(258, 1_700_000_000_000, b"Ada")}, 259)
    views.close()
    db = rocks.open_db(tmp_path / "views", cache_bytes=1 << 20, memtable_bytes=1 << 20)
    assert dict(db.items()) == documented
    db.close()


def test_the_keys_of_the_catalog_are_in_the_table(tmp_path: Path) -> None:
    (tmp_path / "meta").mkdir()
    (tmp_path / "meta" / ACCEPT).touch()
    meta = Meta(tmp_path / "meta")
    made = SyncCatalog(meta)
    made.register(5)
    made.create("a", 1, {"segment.ms": 5})
    made.create("b", 1)
    made.delete("b")
    made.next_producer_id()
    groups.GroupStore(meta).put("g", b"", {("t", 0): b""})
    offset = group_offsets.Offset(1, -1, "", 0)
    change = group_offsets.GroupChange("k", b"", {"m": b""}, {("t", 0): offset}, {(1, "t", 0): offset})
    group_offsets.GroupOffsets(meta).write(change)
    transactions.TransactionStore(meta).put(Transaction("id", 1, 0, 1_000))
    jobs = staging.StagingStore(meta)
    jobs.put(Job("j"), StagedTask("id", "a", b"", "task", "attempt"))
    jobs.end(Job("k", JobState.COMMITTED, touched_ms=1_000), [])
    trio.run(made.overrides(paths.BROKER_CONFIG).save, STATIC, {}, {"num.partitions": "3"})
    trio.run(made.overrides(paths.BROKER_CONFIG).save, "5", {}, {"num.partitions": "4"})
    trio.run(made.overrides(paths.GROUP_CONFIG).save, "k/2", {}, {"consumer.heartbeat.interval.ms": "5000"})
    trio.run(made.overrides(paths.QUOTA_CONFIG).save, "user=ada", {}, {"producer_byte_rate": "1.0"})

    async def secret() -> list[Operation]:
        return [Create(paths.USERS_SECRET, znodes.users_secret(b"s"))]

    trio.run(tree_changes.change, made.store, secret)
    keys = [key for key, _ in meta.items(b"")]
    holding = [path for path, znode in made.tree.under("/") if znode.data and not znode.owner]
    meta.close()
    told = [
        re.sub(r"\b(?:[A-Z]|ID)\b", "[^/]+", path) for path in re.findall(r"^\| `(/[^`]+)`", DOCUMENT, re.MULTILINE)
    ]
    found = {next((each for each in told if re.fullmatch(each, path)), path) for path in holding}
    assert found == set(told)
    documented = [text.encode() for text in re.findall(r"^\| `([a-z]+/[a-z-]*)`", DOCUMENT, re.MULTILINE)]
    assert len(documented) == 17
    met = [next((prefix for prefix in documented if key.startswith(prefix)), key) for key in keys]
    assert set(met) == set(documented)
