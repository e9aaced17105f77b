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


@pytest.mark.parametrize("instead", ["", "folder", "file", "loop"])
def test_events_are_refused_while_the_data_folder_is_away(tmp_path: Path, instead: str) -> None:
    """`instead`: what stands in its place: a mount point without a mount, …"""
    data, away = (tmp_path / name for name in ("data", "away"))
    with broker_process(data) as broker, Peer(broker.address) as peer:
        peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        handle = peer.producer("t").handle
        peer.ask(m.Message(handle, b"1", b"k"), m.MessageStored)
        data.rename(away)
        if instead == "folder":
            data.mkdir()
        elif instead == "file":
            data.touch()
        elif instead:
            data.symlink_to(data)
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
        if instead == "folder":
            data.rmdir()  # it is empty
        elif instead:
            data.unlink()
        away.rename(data)
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        peer.ask(m.Message(handle, b"2", b"k"), m.MessageStored)
        assert len(peer.read_log("t")[0]) == 2
        assert len(broker.events("data_folder_away")) == 1
        assert broker.stop() == 0
        assert not broker.events("housekeeping_failed")
        assert not broker.events("internal_error"), broker.last_words()


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("parts", [["topics"], ["meta", "views"]])
def test_a_broker_ends_once_another_folder_stands_in_place_of_its_own(
    tmp_path: Path, parts: list[str], stopped: bool
) -> None:
    """Else it would write there, and delete, and what it stored so would be missing in its own. `stopped`: by a signal
    before it has looked."""
    data, away = tmp_path / "data", tmp_path / "away"
    with broker_process(data) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
            handle = peer.producer("t").handle
            peer.ask(m.Message(handle, b"1", b"k"), m.MessageStored)
        data.rename(away)
        for part in parts:
            (data / part).mkdir(parents=True)
        assert (broker.stop() if stopped else broker.ended()) == 1
        assert broker.events("data_folder_replaced")
        assert sorted(each.name for each in data.rglob("*")) == sorted(parts)
        data.rename(tmp_path / "other")
        away.rename(data)
        broker.start()
        with Peer(broker.address) as peer:
            assert len(peer.read_log("t")[0]) == 1
