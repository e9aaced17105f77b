"""Takes a backup: links all files of one moment into a folder, to be copied from there while the broker goes on."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import trio

from krappy.broker.name_locks import NameLocks, everything
from krappy.errors import InvalidRequest, KrappyError, Overloaded
from krappy.ports import RegistrationFacts
from krappy.store import hold
from krappy.store.hold import HeldFile
from krappy.store.refusals import refusals

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.store.staging import StagedFiles

FOLDER = "backup"  # below the data folder: links need the same file system
MOST_HELD = 4  # backups that are taken or held at a time: each links every file
AT_ONCE = 16  # logs that are linked at a time
MOST_READ = 4 << 20  # bytes that one request reads


class Hold:
    """A backup that a connection has registered: its files stay until it is closed."""

    def __init__(self, runtime: Runtime, folder: Path, files: list[HeldFile]) -> None:
        self.folder = folder
        self.files = len(files)
        self.size = sum(each.size for each in files)  # bytes
        self._names = {hold.MANIFEST, *(each.name for each in files)}
        self._runtime = runtime
        self._closed = False

    def describe(self) -> RegistrationFacts:
        return {"kind": "backup", "topics": []}

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._runtime.spawn(_release, self._runtime, self.folder)

    async def read(self, name: str, offset: int, size: int) -> bytes:
        """Some bytes of one of its files; none behind its end. Raises InvalidRequest, StorageError."""
        if name not in self._names or self._closed:
            raise InvalidRequest(f"the backup has no file '{name:.200}'")
        read = partial(hold.read, self.folder / name, offset, min(size, MOST_READ))
        return await self._runtime.in_thread(read)


async def _release(runtime: Runtime, folder: Path) -> None:
    try:
        await _remove(runtime, folder)
    finally:
        runtime.decisions.holds -= 1


async def _remove(runtime: Runtime, folder: Path) -> None:
    await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True), limiter=runtime.disk_limiter)


async def take(runtime: Runtime, locks: NameLocks, staged: StagedFiles) -> Hold:
    """Links all files. Raises StorageError (then nothing is left of it), ShuttingDown, and Overloaded while `MOST_HELD`
    are held.

    No topic is created or deleted meanwhile, and nothing is removed from a log. The order is that of store/hold.py.
    Staged files are kept meanwhile, though their job may be published: the backup's catalog may still need them. No
    transaction is decided meanwhile: the ends of the logs are noted one after another, so otherwise the backup might
    have half of a transaction that its catalog has open. A transaction that was decided before is completed after a
    restore. No transaction begins meanwhile: that completion would also end the same producer's next transaction.
    """
    # In this order: a compaction under way may take minutes, and topics can be created while this waits for it.
    async with everything(runtime.shrinking, locks):
        runtime.check_taking()
        async with _new_folder(runtime) as folder:
            await _run(runtime, partial(runtime.views.checkpoint, folder / "views"))
            with runtime.decisions.closed():
                with staged.kept():
                    await _run(runtime, partial(runtime.meta.checkpoint, folder / "meta"))
                    await _run(runtime, partial(hold.hold_staged, staged, folder / "staging"))
                return await _hold(runtime, folder, {})


async def take_logs(runtime: Runtime, facts: Mapping[str, Any], files: Mapping[str, bytes]) -> Hold:
    """Links the files of all logs. `facts`: more facts for the manifest. `files`: files that are added, by name. As for
    `take`, no topic may be created or deleted meanwhile, and nothing may be removed from a log. Raises StorageError,
    Overloaded."""
    async with _new_folder(runtime) as folder:
        for name, data in files.items():
            await _run(runtime, partial(hold.write, folder / name, data))
        return await _hold(runtime, folder, facts)


async def _hold(runtime: Runtime, folder: Path, more: Mapping[str, Any]) -> Hold:
    await _hold_logs(runtime, folder / "topics")
    facts = {"version": runtime.version, "cluster": runtime.cluster_id, "taken_ms": runtime.now_ms(), **more}
    finish = partial(hold.finish, folder, facts)  # it notes the end of each log
    files = await trio.to_thread.run_sync(finish, limiter=runtime.disk_limiter)
    return Hold(runtime, folder, files)


async def _run(runtime: Runtime, work: partial[None]) -> None:
    await trio.to_thread.run_sync(work, limiter=runtime.disk_limiter)


@asynccontextmanager
async def _new_folder(runtime: Runtime) -> AsyncIterator[Path]:
    """A folder to link files to, which is removed again if the block fails."""
    if runtime.decisions.holds >= MOST_HELD:
        raise Overloaded(f"{MOST_HELD} backups are held already; end one of them first")
    runtime.decisions.holds += 1
    folder = runtime.config.data / FOLDER / secrets.token_hex(8)
    try:
        await _run(runtime, partial(_make, folder))
        yield folder
    except BaseException:
        with trio.CancelScope(shield=True):
            await _release(runtime, folder)
        raise


def _make(folder: Path) -> None:
    with refusals(folder):
        folder.mkdir(parents=True)


async def _hold_logs(runtime: Runtime, folder: Path) -> None:
    """Links the files of all logs, `AT_ONCE` logs at a time. Raises the first StorageError."""
    partitions = iter([partition for topic in runtime.topics.values() for partition in topic.local.values()])
    failed: list[KrappyError] = []

    async def hold_some() -> None:
        for partition in partitions:
            if failed:
                return
            into = folder / f"{partition.topic}-{partition.index}"
            try:
                as_they_are = partial(hold.hold_files, partition.log.folder, into)
                if partition.offline:  # nothing changes its files
                    await trio.to_thread.run_sync(as_they_are, limiter=runtime.disk_limiter)
                elif partition.log_failed:  # nothing changes them any more
                    await partition.reshape(as_they_are)
                else:
                    await partition.reshape(partial(hold.hold_log, partition.log, into))
            except KrappyError as error:
                failed.append(error)

    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(hold_some)
    if failed:
        raise failed[0]
