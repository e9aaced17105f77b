"""The disk refuses the tables' files, although it is not full. RocksDB then takes no more writes, and the broker opens
it again. The tests limit the size of each file, and only the tables' files reach the limit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from krappy.errors import RequestTimeout, StorageError
from krappy.wire import messages as m
from tests.crash.ledger import fold
from tests.peer import Peer
from tests.process import broker_process, wait_until


def test_tables_go_on_once_the_disk_takes_their_files(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"view_memtable_bytes": 64 << 10, "view_cache_bytes": 1 << 20}
    with broker_process(tmp_path / "data", **settings) as broker, Peer(broker.address) as peer:
        peer.ask(m.CreateTopic("t", 1, {"segment.bytes": 20_000}), m.TopicCreated)
        handle = peer.producer("t").handle
        stored = 0

        def publish() -> None:
            nonlocal stored
            asked = [m.Message(handle, bytes(60), b"key%06d" % (stored + each)) for each in range(100)]
            for id in peer.send(*asked):
                try:
                    peer.answer(id, m.MessageStored)
                    stored += 1
                except StorageError:
                    continue

        for _ in range(20):
            publish()
        broker.limit_file_size(25_000)

        def refused() -> bool:
            publish()
            return any("File too large" in str(event["error"]) for event in broker.events("view_waits"))

        wait_until(refused, "the disk refuses a file of the tables")
        publish()
        broker.limit_file_size(None)

        def answered() -> bool:
            try:
                return peer.get("t", b"key%06d" % (stored - 1)) is not None
            except (StorageError, RequestTimeout):
                return False

        wait_until(answered, "lookups are answered again")
        wait_until(lambda: bool(broker.events("views_reopened")), "it is told")
        log, _, _ = peer.read_log("t")
        table = {key: entry[0] for key, entry in peer.scan("t").items()}
        assert table == {key: event.offset for key, event in fold(log).items()}
        assert broker.stop() == 0
        broker.start()
        with Peer(broker.address) as again:
            assert {key: entry[0] for key, entry in again.scan("t").items()} == table
        assert not broker.events("internal_error"), broker.last_words()
