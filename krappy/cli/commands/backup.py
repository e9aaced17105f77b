"""`krappy backup`: copies everything that a running broker has stored."""

from __future__ import annotations

import errno
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click

from krappy.cli import archive, output
from krappy.cli.errors import Failure
from krappy.cli.options import Quantity, Stopwatch, address_option, connect, json_option
from krappy.cli.progress import progress
from krappy.clients.admin import HeldBackup
from krappy.settings import units
from krappy.store.disk import OS_DISK

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
@address_option
@json_option
def backup(
    target: str, incremental: bool, keep: int | None, max_rate: float | None, address: str, as_json: bool
) -> None:
    """Copy everything that a running broker has stored.

    TARGET is a new folder, a file that ends with .tar, or - for a tar archive on stdout. Run the command on the machine
    that has the broker's data folder. The broker makes hard links of its files, which takes moments, and goes on while
    they are copied. The copy is of one moment: it has all events that were acknowledged when the command began, with
    the views, groups and settings that fit them.

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
    """
    if keep is not None and not incremental:
        raise click.UsageError("--keep goes with --incremental")
    if incremental and (target == "-" or target.endswith(".tar")):
        raise click.UsageError("--incremental needs a folder")
    watch = Stopwatch()
    facts: dict[str, Any] = {}
    with _until_terminated(), ExitStack() as stack:
        client = stack.enter_context(connect(address))
        earlier = _enter_folder(stack, Path(target)) if incremental else None
        held = stack.enter_context(client.hold_backup())
        holding = watch.seconds
        folder, manifest = Path(held.folder), _manifest(held)
        copied = archive.unshared(folder, manifest, earlier)
        pace = (lambda count: None) if max_rate is None else _pace(max_rate * 1e6)
        with progress(held.size) as tell:
            if target == "-":
                if sys.stdout.isatty():
                    raise Failure("a backup can't be written to a terminal: redirect stdout")
                done = archive.write(archive.TarSink(sys.stdout.buffer), folder, manifest, tell, pace=pace)
            else:
                place = Path(target)
                archive.check_room(place, copied)
                if incremental:
                    from krappy.cli import generations

                    unfinished = place / generations.UNFINISHED
                    with _removed_if_cut_short(unfinished, remains=False):
                        done = archive.write(archive.FolderSink(unfinished), folder, manifest, tell, earlier, pace)
                        place = generations.finish(place, manifest["taken_ms"])
                elif target.endswith(".tar"):
                    with place.open("xb") as out, _removed_if_cut_short(place, remains=False):
                        done = archive.write(archive.TarSink(out), folder, manifest, tell, pace=pace)
                        OS_DISK.fsync_dir(place.absolute().parent)
                else:
                    remains = place.exists()  # it may be a mount point
                    sink = archive.FolderSink(place)
                    with _removed_if_cut_short(place, remains=remains):
                        done = archive.write(sink, folder, manifest, tell, pace=pace)
                facts["target"] = str(place)
        if keep is not None:
            facts["removed"] = [each.name for each in generations.thin_out(Path(target), keep)]
    facts = {
        "target": target,
        **facts,
        "files": held.files,
        "bytes": held.size,
        "copied_bytes": done.copied,
        "shared_bytes": done.shared,
        "taken_ms": manifest["taken_ms"],
        "hold_seconds": round(holding, 3),
        "seconds": round(watch.seconds, 3),
    }
    if as_json and target != "-":
        output.emit_json(facts)
        return
    shared = f" ({done.shared:,} of them shared with the one before)" if done.shared else ""
    moment = output.when(manifest["taken_ms"])
    output.note(f"{held.files} files, {held.size:,} bytes{shared}, as of {moment}, in {watch.seconds:.1f} s")


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
    from krappy.cli import generations

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
        found: dict[str, Any] = json.loads((folder / "manifest.json").read_bytes())
    except OSError as error:
        raise Failure(
            f"{folder}: {error.strerror}: run this where the broker's data is, as its user or as root"
        ) from None
    return found


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
                target.mkdir(exist_ok=True)
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
