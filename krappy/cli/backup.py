"""`krappy backup` and `krappy restore`."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import click

from krappy.cli import archive, output
from krappy.cli.errors import Failure
from krappy.cli.options import address_option, connect, data_option, json_option
from krappy.cli.progress import progress

PRODUCER_IDS = 1_000_000  # that the broker may have given after its catalog was copied


@click.command()
@click.argument("target")
@address_option
@json_option
def backup(target: str, address: str, as_json: bool) -> None:
    """Copy everything that a running broker has stored.

    The broker links its files aside, which takes moments, and goes on; then they are copied at leisure. The copy is of
    one moment: every log up to an offset that includes all that was acknowledged when the command began, and views,
    groups and settings that fit it. TARGET is a new folder, a file that ends with .tar, or - for a tar archive on
    stdout. Run it where the broker's data folder is.

    \b
    Examples:
      krappy backup /backups/monday
      krappy backup - | zstd > monday.tar.zst
      kubectl exec krappy-0 -- krappy backup - > monday.tar
    """
    with connect(address) as client, client.hold_backup() as held:
        folder = Path(held.folder)
        try:
            manifest = json.loads((folder / "manifest.json").read_bytes())
        except OSError as error:
            raise Failure(
                f"{folder}: {error.strerror}: run this where the broker's data is, as its user or as root"
            ) from None
        with progress(held.size) as tell:
            if target == "-":
                if sys.stdout.isatty():
                    raise Failure("a backup is no text for a terminal: redirect stdout")
                archive.write(archive.TarSink(sys.stdout.buffer), folder, manifest, tell)
            elif target.endswith(".tar"):
                with Path(target).open("xb") as out:
                    archive.write(archive.TarSink(out), folder, manifest, tell)
            else:
                archive.write(archive.FolderSink(Path(target)), folder, manifest, tell)
    facts = {"target": target, "files": held.files, "bytes": held.size, "taken_ms": manifest["taken_ms"]}
    if as_json and target != "-":
        output.emit_json(facts)
    else:
        output.note(f"{held.files} files, {held.size:,} bytes, as of {output.when(manifest['taken_ms'])}")


@click.command()
@click.argument("source")
@data_option("The folder to restore to, which a broker is then given: new or empty.")
@json_option
def restore(source: str, data: Path, as_json: bool) -> None:
    """Bring a backup back, into a folder that no broker has used yet.

    Every file is checked against the checksum that it was written with. SOURCE is what `krappy backup` has made: a
    folder, a tar archive (compressed or not), or - for one on stdin. `krappy doctor` then checks all that is in it.

    \b
    Examples:
      krappy restore /backups/monday --data /var/lib/krappy
      zstd -d < monday.tar.zst | krappy restore - --data ./data
    """
    try:
        from krappy.store.catalog import Catalog
        from krappy.store.hold import RESTORING
        from krappy.store.lock import FolderLock
        from krappy.store.meta import Meta
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("krappy"):
            raise
        raise Failure(f"restore needs {error.name}, which is not installed: pip install 'krappy[broker]'") from None
    data.mkdir(parents=True, exist_ok=True)
    lock = FolderLock(data)
    try:
        partial = data / RESTORING
        if partial.exists():  # an attempt was cut short; no broker has started beside it, so all of this is its
            for name in archive.PARTS:
                shutil.rmtree(data / name, ignore_errors=True)
            shutil.rmtree(partial)
        strange = [path.name for path in data.iterdir() if path.name not in ("lock", "lost+found")]
        if strange:
            raise Failure(f"{data} is not empty ('{strange[0]}' is there): restore to a folder of its own")
        with progress(_size(source)) as tell:
            listing = archive.unpack(_files(source), partial, tell)
        meta = Meta(partial / "meta")
        try:
            Catalog(meta).skip_producer_ids(PRODUCER_IDS)
        finally:
            meta.close()
        for part in sorted(partial.iterdir()):
            part.rename(data / part.name)
        archive.sync_folder(data)
        partial.rmdir()  # from here on a broker starts
        archive.sync_folder(data)
        archive.sync_folder(data.absolute().parent)
    finally:
        lock.release()
    if as_json:
        output.emit_json({"data": str(data), "files": len(listing["files"]), "taken_ms": listing["taken_ms"]})
    else:
        output.note(f"{data}: as of {output.when(listing['taken_ms'])}; `krappy doctor --data {data}` checks it")


def _files(source: str) -> archive.Files:
    if source == "-":
        return archive.read_tar(sys.stdin.buffer)
    path = Path(source)
    if path.is_dir():
        return archive.read_folder(path)
    if not path.is_file():
        raise Failure(f"there is no backup {source}")
    return archive.read_tar(path.open("rb"))


def _size(source: str) -> int:
    path = Path(source)
    if path.is_dir():
        return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    return path.stat().st_size if path.is_file() else 0
