"""`krappy doctor`: checks the data of a stopped broker, or a backup."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.options import data_option, json_option
from krappy.cli.progress import progress

if TYPE_CHECKING:
    from krappy.cli.checkup import CheckedPartition, Findings


@click.command()
@data_option("The broker's data folder.")
@click.option("--backup", metavar="SOURCE", help="Check a backup instead: a folder, a tar archive, - for stdin.")
@click.option("--repair", is_flag=True, help="Rebuild indexes and views that are wrong, from the logs.")
@json_option
def doctor(data: Path, backup: str | None, repair: bool, as_json: bool) -> None:
    """Check everything that a stopped broker has stored.

    It checks every record batch and its checksum, every index entry, that offsets have no gaps, that the catalog and
    groups can be read, and that each view equals the fold of its log. It opens a log as the broker does: a torn tail
    that a crash left is cut off and reported. --repair rebuilds indexes and views. A damaged batch in a log can't be
    repaired, nor can events that are known to be lost; they are reported with file and position.

    With --backup it reads every file of a backup, or of all backups in a folder, and compares it with the checksum that
    `krappy backup` wrote. To check the data inside, restore the backup and run `krappy doctor` on it.

    \b
    Exit status: 0 when all is well (or was repaired), 1 when something is wrong.

    \b
    Examples:
      krappy doctor --data /var/lib/krappy
      krappy doctor --data ./data --repair
      krappy doctor --data ./data --json | jq .sound
      krappy doctor --backup /backups/krappy
    """
    if backup is not None:
        if repair:
            raise click.UsageError("a backup can't be repaired")
        raise click.exceptions.Exit(0 if _check_backup(backup, as_json) else 1)
    try:
        from krappy.cli import checkup
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("krappy"):
            raise
        raise Failure(f"doctor needs {error.name}, which is not installed: pip install 'krappy[broker]'") from None
    with progress(2 * checkup.data_size(data)) as tell:
        found = checkup.check(data, repair, tell)
    if as_json:
        _print_json(found)
    else:
        _print(found)
    raise click.exceptions.Exit(0 if found.sound else 1)


def _check_backup(source: str, as_json: bool) -> bool:
    """Checks and prints a backup, or all backups in a folder. Returns whether they are as they were written."""
    from krappy.cli import archive, generations

    several = generations.list_all(Path(source)) if source != "-" else []
    sources = [str(each) for each in several] or [source]
    rows: list[dict[str, Any]] = []
    with progress(sum(map(archive.size_of, sources))) as tell:
        for each in sources:
            row: dict[str, Any] = {"source": each, "taken_ms": None, "files": 0}
            try:
                listing, wrong = archive.check(archive.files_of(each), tell)
            except Failure as error:
                rows.append({**row, "problems": [error.message]})
            else:
                row |= {"taken_ms": listing["taken_ms"], "files": len(listing["files"])}
                rows.append({**row, "problems": [f"{name} is not as it was written" for name in wrong]})
    sound = not any(row["problems"] for row in rows)
    if as_json:
        output.emit_json({"sound": sound, "backups": rows})
        return sound
    for row in rows:
        well = f"{row['files']} files, as of {output.when(row['taken_ms'] or 0)}: as they were written"
        output.write_lines(output.visible(f"{row['source']}: {line}") for line in row["problems"] or [well])
    output.write_lines(["all is well" if sound else "something is wrong"])
    return sound


def _print_json(found: Findings) -> None:
    output.emit_json(
        {
            "sound": found.sound,
            "problems": found.problems,
            "repaired": found.repaired,
            "partitions": [_facts(each) for each in found.partitions],
        }
    )


def _facts(partition: CheckedPartition) -> dict[str, Any]:
    return {
        "topic": partition.topic,
        "partition": partition.index,
        "start": partition.start,
        "end": partition.end,
        "size": partition.size,
        "entries": partition.entries,
        "view_lag": partition.view_lag,
        "problems": partition.problems,
        "repaired": partition.repaired,
        "notes": partition.notes,
    }


def _print(found: Findings) -> None:
    output.table(
        ["topic", "partition", "first offset", "next offset", "size", "keys", "view lag", "state"],
        [
            [
                each.topic,
                each.index,
                each.start,
                each.end,
                output.ByteCount(each.size),
                each.entries,
                output.Lag(each.view_lag),
                f"{len(each.problems)} wrong" if each.problems else "repaired" if each.repaired else "sound",
            ]
            for each in found.partitions
        ],
    )
    lines = [f"wrong: {text}" for text in found.problems] + [f"repaired: {text}" for text in found.repaired]
    for each in found.partitions:
        lines += [f"{each.name}: wrong: {text}" for text in each.problems]
        lines += [f"{each.name}: repaired: {text}" for text in each.repaired]
        lines += [f"{each.name}: {text}" for text in each.notes]
    lines.append("all is well" if found.sound else "something is wrong")
    output.write_lines(["", *map(output.visible, lines)])
