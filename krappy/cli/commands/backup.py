"""`krappy backup`: copies everything that a running broker, or a cluster, has stored."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, Protocol

import click

from krappy.cli import archive, backup_files, generations, output
from krappy.cli.errors import Failure
from krappy.cli.options import Quantity, Stopwatch, address_option, connect, json_option
from krappy.cli.progress import progress
from krappy.clients.admin import HeldBackup
from krappy.settings import units
from krappy.store.disk import OS_DISK, PRIVATE

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@click.command()
@click.argument("target")
@click.option("--incremental", is_flag=True, help="TARGET is a folder of backups that share unchanged files.")
@click.option("--keep", type=click.IntRange(1), metavar="N", help="With --incremental: delete all but the newest N.")
@click.option(
    "--max-rate",
    type=Quantity(units.BYTES, 1_000_000, 0.001),
    metavar="MB",
    help="Copy at most so many MB per second; 50, 500K, 1G.",
)
@click.option("--this-broker", is_flag=True, help="In a cluster: only the data folder of the broker at --address.")
@address_option
@json_option
def backup(
    target: str,
    incremental: bool,
    keep: int | None,
    max_rate: float | None,
    this_broker: bool,
    address: str,
    as_json: bool,
) -> None:
    """Copy everything that a running broker, or a cluster of brokers, has stored.

    TARGET is a new folder, a file that ends with .tar, or - for a tar archive on stdout. Run the command on the machine
    that has the broker's data folder. The broker makes hard links of its files, which takes moments, and goes on while
    they are copied. The copy is of one moment: it has all events that were acknowledged when the command began, with
    the views, groups and settings that fit them.

    Of a cluster it copies the topics, settings, users and ACLs, and each partition once, over the network: run it
    anywhere. It needs all registered brokers for a moment, and goes on if one dies while files are copied, as long as
    another replica was in sync. TARGET is a folder then. `krappy restore` makes a broker's data folder of it, from
    which a new cluster can grow.

    With --incremental each run makes a folder in TARGET, named by its time. Each of these is a whole backup, but only
    files that the latest one lacks are copied. Closed segments and files of tables never change; they become hard
    links.

    Use --max-rate to leave a busy broker more of the disk.

    A run that fails, or is stopped by Ctrl-C or SIGTERM, removes what it has written.

    \b
    Examples:
      krappy backup /backups/monday
      krappy backup /backups/krappy --incremental --keep 14
      krappy backup - | zstd > monday.tar.zst
      kubectl exec krappy-0 -- krappy backup - > monday.tar
      krappy backup /backups/monday --address broker1:7092,broker2:7092    # of a cluster
    """
    if keep is not None and not incremental:
        raise click.UsageError("--keep goes with --incremental")
    is_archive = target == "-" or target.endswith(".tar")
    if incremental and is_archive:
        raise click.UsageError("--incremental needs a folder")
    watch = Stopwatch()
    pace = (lambda count: None) if max_rate is None else _pace(max_rate * 1e6)
    with _until_terminated(), ExitStack() as stack:
        client = stack.enter_context(connect(address))
        cluster = None
        if not this_broker:
            from krappy.cli import cluster_backup

            cluster = stack.enter_context(cluster_backup.held_cluster(client, output.note))
        if cluster is not None and is_archive:
            raise Failure(
                "the backup of a cluster needs a folder: an archive is written in one go, and brokers may die"
            )
        earlier = _enter_folder(stack, Path(target)) if incremental else None
        source: _Source = (
            _BrokerSource(stack.enter_context(client.hold_backup()), earlier, pace)
            if cluster is None
            else cluster_backup.ClusterCopy(cluster, earlier, pace)
        )
        holding = watch.seconds
        facts: dict[str, Any] = {"target": target}
        with progress(source.size) as tell:
            done = _copy(source, target, incremental, facts, tell)
        if keep is not None:
            facts["removed"] = [each.name for each in generations.thin_out(Path(target), keep)]
    facts |= {
        "files": source.files,
        "bytes": done.copied + done.shared,
        "copied_bytes": done.copied,
        "shared_bytes": done.shared,
        "taken_ms": source.taken_ms,
        "hold_seconds": round(holding, 3),
        "seconds": round(watch.seconds, 3),
        **source.more,
    }
    if as_json and target != "-":
        output.emit_json(facts)
        return
    shared = f" ({done.shared:,} of them shared with the one before)" if done.shared else ""
    moment, total = output.when(source.taken_ms), done.copied + done.shared
    of = f"{len(cluster.ends)} partitions of {len(cluster.brokers)} brokers, " if cluster is not None else ""
    output.note(f"{of}{source.files} files, {total:,} bytes{shared}, as of {moment}, in {watch.seconds:.1f} s")


class _Source(Protocol):
    """What is copied. `size`: how many bytes it has; `copied`: how many of them no earlier backup has."""

    taken_ms: int

    @property
    def more(self) -> Mapping[str, Any]:
        """More facts for --json."""

    @property
    def files(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def copied(self) -> int: ...
    def write(self, sink: archive.Sink, place: Path, tell: archive.Tell) -> archive.Written: ...


class _BrokerSource:
    """The files of a broker on this machine."""

    more: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, held: HeldBackup, earlier: archive.Earlier | None, pace: Callable[[int], None]) -> None:
        self._folder, self._manifest = Path(held.folder), _manifest(held)
        self._earlier, self._pace = earlier, pace
        self.files, self.size = held.files, held.size
        self.taken_ms = self._manifest["taken_ms"]

    @property
    def copied(self) -> int:
        return archive.unshared(self._folder, self._manifest, self._earlier)

    def write(self, sink: archive.Sink, place: Path, tell: archive.Tell) -> archive.Written:
        return archive.write(sink, self._folder, self._manifest, tell, self._earlier, self._pace)


def _copy(
    source: _Source, target: str, incremental: bool, facts: dict[str, Any], tell: archive.Tell
) -> archive.Written:
    if target == "-":
        if sys.stdout.isatty():
            raise Failure("a backup can't be written to a terminal: redirect stdout")
        return source.write(archive.TarSink(sys.stdout.buffer), Path(), tell)
    place = Path(target)
    archive.check_room(place, source.copied)
    if incremental:
        unfinished = place / generations.UNFINISHED
        with _removed_if_cut_short(unfinished, remains=False):
            done = source.write(archive.FolderSink(unfinished), unfinished, tell)
            place = generations.finish(place, source.taken_ms)
    elif target.endswith(".tar"):
        with open(place, "xb", opener=_for_the_owner) as out, _removed_if_cut_short(place, remains=False):
            done = source.write(archive.TarSink(out), place, tell)
            OS_DISK.fsync_dir(place.absolute().parent)
    else:
        remains = place.exists()  # it may be a mount point
        sink = archive.FolderSink(place)
        with _removed_if_cut_short(place, remains=remains):
            done = source.write(sink, place, tell)
    facts["target"] = str(place)
    return done


def _pace(rate: float) -> Callable[[int], None]:
    """A function to call with the bytes copied: it waits, so that no more than `rate` bytes a second are copied."""
    began, done = time.monotonic(), 0

    def copied(count: int) -> None:
        nonlocal done
        done += count
        time.sleep(max(0.0, began + done / rate - time.monotonic()))

    return copied


def _enter_folder(stack: ExitStack, folder: Path) -> archive.Earlier | None:
    """Locks a folder of backups. Returns the latest one whose files can be shared; None: there is none."""
    stack.enter_context(generations.locked(folder))
    for each in reversed(generations.list_all(folder)):
        try:
            return archive.earlier(each)
        except Failure as error:
            output.note(f"files of {each.name} can't be shared: {error.message}")
    return None


def _manifest(held: HeldBackup) -> dict[str, Any]:
    folder = Path(held.folder)
    try:
        with backup_files.SourceFolder(folder) as opened, opened.open("manifest.json") as file:
            data = file.read(backup_files.MOST_TOLD + 1)
    except OSError as error:
        raise Failure(
            f"{folder}: {error.strerror}: run this where the broker's data is, as its user or as root"
        ) from None
    return backup_files.read_manifest(data)


def _for_the_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


@contextmanager
def _removed_if_cut_short(target: Path, *, remains: bool) -> Iterator[None]:
    """Removes the target if the block raises anything. Raises Failure for a full disk.

    `remains`: keeps the folder itself, empty as it was.
    """
    try:
        yield
    except BaseException as error:
        if target.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            if remains:
                target.mkdir(PRIVATE, exist_ok=True)
        else:
            target.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in FULL:
            raise Failure(f"{target}: {error.strerror}: what was written has been removed again") from None
        raise


@contextmanager
def _until_terminated() -> Iterator[None]:
    """Makes SIGTERM (a pod is deleted) and SIGHUP (the terminal is closed) end the block as Ctrl-C does, so that it
    cleans up. Under nohup SIGHUP stays ignored."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    taken = [signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        taken.append(signal.SIGHUP)
    before = {number: signal.signal(number, stop) for number in taken}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
