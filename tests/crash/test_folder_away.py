"""The data folder of a running broker is moved away, as unmounting does. The broker gives one alarm, and refuses
requests whose effects would be lost. Once the folder is back, everything goes on."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import trio

from krappy.broker.upkeep.room import Room
from krappy.errors import StorageError
from krappy.settings.server import ServerConfig
from krappy.wire import messages as m
from tests.peer import Peer
from tests.process import broker_process, wait_until


@pytest.mark.parametrize("instead", ["", "folder", "file", "loop"])
def test_events_are_refused_while_the_data_folder_is_away(tmp_path: Path, instead: str) -> None:
    """`instead`: what stands in the folder's place: nothing, an empty folder (such as a mount point without a mount), a
    file, or a link to itself."""
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
    """Otherwise the broker would write and delete in the wrong folder, and what it stored there would be missing in its
    own. `stopped`: a signal stops the broker before it has looked at the folder."""
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


@pytest.mark.parametrize("where", ["data", ""])
def test_the_folder_of_the_logs_alone_is_away(tmp_path: Path, where: str) -> None:
    """`where`: the folder to which the logs are moved: the data folder itself, or the one above it. Nothing stands in
    the old place."""
    data, away = tmp_path / "data", tmp_path / where / "away"
    with broker_process(data) as broker, Peer(broker.address) as peer:
        peer.ask(m.CreateTopic("t", 1), m.TopicCreated)
        handle = peer.producer("t").handle
        (data / "topics").rename(away)
        wait_until(lambda: bool(broker.events("data_folder_away")), "it is told")
        away.rename(data / "topics")
        wait_until(lambda: bool(broker.events("events_taken_again")), "it is back")
        peer.ask(m.Message(handle, b"1", b"k"), m.MessageStored)
        assert broker.stop() == 0


@pytest.mark.parametrize("how", ["moved", "removed", "replaced by a copy"])
def test_a_log_whose_folder_alone_is_away_takes_no_more_events(tmp_path: Path, how: str) -> None:
    """Its open file would take them, and nobody would find them there after the next start."""
    data, away = tmp_path / "data", tmp_path / "away"
    folder = data / "topics" / "t-0"
    with broker_process(data) as broker:
        with Peer(broker.address) as peer:
            peer.ask(m.CreateTopic("t", 2), m.TopicCreated)
            handle = peer.producer("t").handle
            peer.ask(m.Message(handle, b"1", b"k", partition=0), m.MessageStored)
            stored = [b"1"]
            folder.rename(away)
            if how == "replaced by a copy":
                shutil.copytree(away, folder)
            elif how == "removed":
                shutil.rmtree(away)
            with contextlib.suppress(StorageError):  # the broker may have looked already
                peer.ask(m.Message(handle, b"2", b"k", partition=0), m.MessageStored)
                stored.append(b"2")
            wait_until(lambda: bool(broker.events("log_failed")), "it is told")
            with pytest.raises(StorageError, match="was moved, removed or replaced"):
                peer.ask(m.Message(handle, b"lost", b"k", partition=0), m.MessageStored)
            peer.ask(m.Message(handle, b"elsewhere", b"k", partition=1), m.MessageStored)
            if how == "moved":
                away.rename(folder)
        assert broker.stop() == 0
        assert len(broker.events("log_failed")) == 1
        assert not broker.events("internal_error"), broker.last_words()
        if how == "moved":
            broker.start()
            with Peer(broker.address) as peer:
                handle = peer.producer("t").handle
                peer.ask(m.Message(handle, b"3", b"k", partition=0), m.MessageStored)
                assert [each.value for each in peer.read_log("t")[0]] == [*stored, b"3"]


class BackAtOnce(Room):
    """Moves the data folder back just after a look has not found it."""

    def _is_away(self) -> bool:
        found = super()._is_away()
        away = self._runtime.config.data.with_name("away")
        if found and away.exists():
            away.rename(self._runtime.config.data)
        return found


class Lender:
    def __init__(self, config: ServerConfig) -> None:
        self.config = config
        self.told: list[str] = []

    def report(self, event: str, **facts: Any) -> None:
        self.told.append(event)


def test_a_folder_that_comes_back_during_a_look_is_no_other_one(tmp_path: Path) -> None:
    data = tmp_path / "data"
    for part in ("topics", "meta", "views"):
        (data / part).mkdir(parents=True)
    lender = Lender(ServerConfig(data=data, ballast_bytes=0))
    aborted: list[bool] = []

    async def looks() -> None:
        room = BackAtOnce(lender, lambda: None)
        room.abort = lambda: aborted.append(True)
        await room.look()
        data.rename(data.with_name("away"))
        with pytest.raises(StorageError):
            await room.look()
        await room.look()

    trio.run(looks)
    assert not aborted
    assert lender.told == ["data_folder_away", "events_taken_again"]
