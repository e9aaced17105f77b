"""`krappy doctor`: is a stopped broker's data as it should be?"""

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
@data_option("The folder that the broker was given.")
@click.option("--backup", metavar="SOURCE", help="Check a backup instead: a folder, a tar archive, - for stdin.")
@click.option("--repair", is_flag=True, help="Rebuild indexes and views that are wrong, from the logs.")
@json_option
def doctor(data: Path, backup: str | None, repair: bool, as_json: bool) -> None:
    """Check everything that a stopped broker has stored.

    Every checksum and the structure of every record batch, every index entry, that offsets run on, that groups and
    catalog can be read, and that each view equals the fold of its log. A log is opened as the broker would: a tail
    that a crash tore is cut, and told. --repair makes indexes and views anew; a damaged batch in a log can't be
    repaired, and is named with its file and position.

    With --backup every file of what `krappy backup` has made is read and compared with the checksum that it was written
    with; of a folder of several, every one. That it is sound inside is known once it is restored, and looked at there.

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
    """Whether all of it is as it was written."""
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
        output.write_lines(f"{row['source']}: {line}" for line in row["problems"] or [well])
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
        "view_behind": partition.behind,
        "problems": partition.problems,
        "repaired": partition.repaired,
        "notes": partition.notes,
    }


def _print(found: Findings) -> None:
    output.table(
        ["topic", "partition", "first offset", "next offset", "size", "keys", "view behind", "state"],
        [
            [
                each.topic,
                each.index,
                each.start,
                each.end,
                output.size(each.size),
                each.entries,
                each.behind,
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
    output.write_lines(["", *lines])
