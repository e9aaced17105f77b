"""Holding still for a backup: the files of one moment are linked aside, to be copied while the broker goes on."""

from __future__ import annotations

import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from krappy.store import hold

if TYPE_CHECKING:
    from krappy.broker.broker import Broker

FOLDER = "backup"  # below the data folder: links need the same file system


class Hold:
    """Registration of a connection: the files stay until it is closed."""

    def __init__(self, broker: Broker, folder: Path, files: int, size: int) -> None:
        self.folder = folder
        self.files = files
        self.size = size  # bytes
        self._broker = broker
        self._closed = False

    def describe(self) -> dict[str, Any]:
        return {"kind": "backup", "topics": []}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._broker.spawn(_remove, self._broker, self.folder)


async def _remove(broker: Broker, folder: Path) -> None:
    await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True), limiter=broker.disk_limiter)


async def take(broker: Broker) -> Hold:
    """While no topic comes or goes and nothing is taken out of a log. Raises StorageError, having left nothing.

    The order is that of store/hold.py. Staged files outlive their job's publication meanwhile: the catalog that is held
    may be of a moment at which they were still needed.
    """
    folder = broker.config.data / FOLDER / secrets.token_hex(8)

    async def run(work: partial[None]) -> None:
        await trio.to_thread.run_sync(work, limiter=broker.disk_limiter)

    try:
        await run(partial(folder.mkdir, parents=True))
        await run(partial(broker.views.checkpoint, folder / "views"))
        with broker.staging.files.kept():
            await run(partial(broker.meta.checkpoint, folder / "meta"))
            await run(partial(hold.hold_staged, broker.staging.files, folder / "staging"))
        for topic in broker.topics.values():
            for partition in topic.partitions:
                into = folder / "topics" / f"{topic.name}-{partition.index}"
                await partition.reshape(partial(hold.hold_log, partition.log, into))
        facts = {"version": broker.version, "cluster": broker.cluster_id, "taken_ms": broker.now_ms()}
        files, size = await trio.to_thread.run_sync(partial(hold.finish, folder, facts), limiter=broker.disk_limiter)
    except BaseException:
        with trio.CancelScope(shield=True):
            await _remove(broker, folder)
        raise
    return Hold(broker, folder, files, size)
