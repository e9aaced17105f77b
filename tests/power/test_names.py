"""If a killed broker has made a folder, the next broker syncs the folder's name before it uses the folder.

The first broker may have been killed before that sync, and the next one can't know that. Events that it acknowledges in
the folder would be lost together with the name.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

from krappy.blocking import connect
from tests.power.disk import Disk
from tests.power.record import Entry, Kind, Record
from tests.process import BrokerProcess, Launcher

VALUES = [b"%d" % number for number in range(50)]


class Killed(Disk):
    """A disk that ignores syncs of `folders` before the moment `killed_at`, as if the process was killed before
    them."""

    def __init__(self, root: int) -> None:
        super().__init__(root)
        self.killed_at = 0  # a moment of the record
        self.folders: set[int] = set()  # inodes

    def play(self, entry: Entry) -> None:
        if entry.kind is not Kind.SYNCED or entry.end > self.killed_at or entry.inode not in self.folders:
            super().play(entry)


def test_names_that_a_killed_broker_did_not_sync_are_synced_by_the_next(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    with Record(root) as record, Launcher(record.environ()) as launch:
        data = root / "data"
        with BrokerProcess(data, launch=launch, log=tmp_path / "log") as broker:
            with connect(broker.address) as client:
                client.create_topic("t")
            broker.kill()
            disk = Killed.of(root)
            disk.killed_at = record.moment()
            disk.folders = {each.stat().st_ino for each in (root, data, data / "topics")}
            broker.start()
            with connect(broker.address) as client:
                with client.producer("t") as producer:
                    producer.send_columns(VALUES, VALUES)
                with client.stage("t", job="j", task=0, attempt=0) as stage:
                    stage.send("staged", key="s")
                    token = stage.seal()
            broker.kill()
        for entry in record.entries():
            disk.play(entry)
    disk.write(tmp_path / "left", 0, Random(0))
    with BrokerProcess(tmp_path / "left" / "data", log=tmp_path / "log") as broker, connect(broker.address) as client:
        assert [topic.name for topic in client.topics()] == ["t"]
        with client.consumer("t", start="earliest", end="now") as consumer:
            assert [event.value for event in consumer] == VALUES
        assert client.commit_staged("j", [token]).records == 1
