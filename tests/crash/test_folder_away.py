"""The data folder is moved away under a running broker, as by unmounting: one alarm, and nothing is taken that would be
lost with it. Once it is back all goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from krappy.errors import StorageError
from krappy.wire import messages as m
from tests.peer import Peer
from tests.process import broker_process, wait_until


@pytest.mark.parametrize("another", [False, True])
def test_events_are_refused_while_the_data_folder_is_away(tmp_path: Path, another: bool) -> None:
    """`another`: a folder like it stands in its place."""
    data, away, other = (tmp_path / name for name in ("data", "away", "other"))
    with broker_process(data) as broker, Peer(broker.address) as peer:
        peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        handle = peer.producer("t").handle
        peer.ask(m.Message(handle, b"1", b"k"), m.MessageStored)
        data.rename(away)
        if another:
            (data / "topics").mkdir(parents=True)
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is told")
        asked: list[tuple[Any, Any]] = [
            (m.Message(handle, b"lost", b"k"), m.MessageStored),
            (m.CreateTopic("lost", 1), m.TopicCreated),
            (m.AlterTopic("t", {}, 2), m.TopicAltered),
            (m.DeleteTopic("t"), m.TopicDeleted),
        ]
        for each in asked:
            with pytest.raises(StorageError, match="was moved, removed or unmounted"):
                peer.ask(*each)
        if another:
            assert [each.name for each in data.rglob("*")] == ["topics"]
            data.rename(other)
        away.rename(data)
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        peer.ask(m.Message(handle, b"2", b"k"), m.MessageStored)
        assert len(peer.read_log("t")[0]) == 2
        assert len(broker.events("data_folder_away")) == 1
        assert broker.stop() == 0
        assert not broker.events("housekeeping_failed")
        assert not broker.events("internal_error"), broker.last_words()
