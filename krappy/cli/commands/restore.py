"""`krappy restore`: restores a backup to a new data folder."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import click

from krappy.cli import archive, backup_files, output
from krappy.cli.errors import Failure
from krappy.cli.options import Stopwatch, data_option, json_option
from krappy.cli.progress import progress
from krappy.store.disk import OS_DISK, PRIVATE

PRODUCER_IDS = 1_000_000  # ids to skip: the broker may have given them after its catalog was copied


@click.command()
@click.argument("source")
@data_option("The folder to restore to: new or empty. Start a broker on it afterwards.")
@json_option
def restore(source: str, data: Path, as_json: bool) -> None:
    """Restore a backup to a new data folder.

    SOURCE is a backup of `krappy backup`: a folder, a tar archive (compressed or not), - for an archive on stdin, or a
    folder of backups, of which the latest is restored. Every file is checked against its checksum. A twentieth of the
    disk, or 1 GiB of a large one, stays free. A restore that fails removes what it has written. Run `krappy doctor`
    afterwards to check the data inside.

    \b
    Examples:
      krappy restore /backups/monday --data /var/lib/krappy
      krappy restore /backups/krappy --data ./data         # of `krappy backup --incremental`, the latest
      zstd -d < monday.tar.zst | krappy restore - --data ./data
    """
    try:
        import trio

        from krappy.broker.topics.catalog import skip_ahead
        from krappy.store.hold import RESTORING
        from krappy.store.lock import FolderLock
        from krappy.store.meta import Meta
        from krappy.store.transactions import TransactionStore
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("krappy"):
            raise
        raise Failure(f"restore needs {error.name}, which is not installed: pip install 'krappy[broker]'") from None
    source = _latest(source)
    backup_files.make_folder(data)
    lock = FolderLock(data)
    try:
        partial = data / RESTORING
        if partial.exists():
            # An interrupted restore left it. No broker starts on such a folder, so its parts are all of that restore.
            _remove(data, but=partial)
        strange = [path.name for path in data.iterdir() if path.name not in ("lock", "lost+found", RESTORING)]
        if strange:
            whole = (
                f". If a restore to it was interrupted, it was at its end: `krappy doctor --data {data}` checks that"
            )
            text = f"{data} is not empty ('{strange[0]}' is there): restore to a new folder"
            raise Failure(text + (whole if (data / "meta").exists() else ""))
        size = archive.size_of(source)
        archive.check_room(data, size, reserve=True)
        watch = Stopwatch()
        restored = None
        with _marked(partial):
            with progress(size) as tell:
                listing = archive.unpack(archive.files_of(source), partial, tell)
            if listing["format"] == archive.CLUSTER_FORMAT:
                from krappy.cli import cluster_restore

                restored = cluster_restore.build(partial, listing)
            meta = Meta(partial / "meta")
            try:
                if restored is None:
                    TransactionStore(meta).fence_all(int(time.time() * 1000))
                trio.run(skip_ahead, meta, PRODUCER_IDS)
            finally:
                meta.close()
            for part in sorted(partial.iterdir()):
                part.rename(data / part.name)
            OS_DISK.fsync_dir(data)
        partial.rmdir()  # from here on a broker may start on the folder
        OS_DISK.fsync_dir(data)
        OS_DISK.fsync_dir(data.absolute().parent)
    finally:
        lock.release()
    if as_json:
        facts = {"source": source, "data": str(data), "files": len(listing["files"])}
        facts["bytes"] = sum(size for _, size, _ in listing["files"])
        facts |= {"taken_ms": listing["taken_ms"], "seconds": round(watch.seconds, 3)}
        output.emit_json(facts if restored is None else facts | restored._asdict())
    else:
        for line in restored.notes if restored is not None else ():
            output.note(line)
        output.note(f"{data}: as of {output.when(listing['taken_ms'])}; `krappy doctor --data {data}` checks it")


@contextmanager
def _marked(partial: Path) -> Iterator[None]:
    """Creates the folder that marks an unfinished restore, and syncs it. If the block fails, the folder is removed with
    all that was restored."""
    data = partial.parent
    partial.mkdir(PRIVATE, exist_ok=True)
    OS_DISK.fsync_dir(data)
    try:
        yield
    except BaseException:
        with suppress(OSError):
            _remove(data, but=partial)
            OS_DISK.fsync_dir(data)  # else a loss of power could leave some of it without the mark
            shutil.rmtree(partial)
        raise


def _remove(data: Path, *, but: Path) -> None:
    """Removes what was restored, whether it was in its place or not yet, but not the folder that marks the restore."""
    for part in (*(data / name for name in backup_files.PARTS), *but.iterdir()):
        shutil.rmtree(part, ignore_errors=True)


def _latest(source: str) -> str:
    """The latest backup if `source` is a folder of backups; else `source` itself."""
    if source == "-" or not Path(source).is_dir() or (Path(source) / archive.LISTING).exists():
        return source
    from krappy.cli import generations

    found = generations.list_all(Path(source))
    if not found:
        return source
    output.note(f"the latest of {len(found)}: {found[-1]}")
    return str(found[-1])
