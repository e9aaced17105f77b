"""Computes which files a loss of power may leave, from the record of all changes.

The rules are the least that POSIX promises, not the promises of one file system. ext4 (whatever its `data=`), XFS,
Btrfs and others all promise more by default. So whatever survives here also survives there:

- A file's fsync or fdatasync keeps all that was done to the file before the call, but no name, and no other file.
- A folder's fsync keeps its names and which files they name, but not the contents of these files.
- Later changes of names may each be kept or lost, in any order. A rename within a folder is one step: both names
  change, or neither. A rename from one folder to another is two steps, each kept by its own folder's fsync.
- There is one exception. If a file was renamed to RocksDB's CURRENT and this change is kept, all earlier changes of
  names in that folder are kept, too. While RocksDB recovers, it makes a table of its WAL, names the table in a new
  manifest, and syncs the folder only after it has renamed CURRENT. File systems with a journal keep that order.
- Later writes to a file may be kept or lost sector by sector. A lost sector is as it was, or zeros if the file was
  shorter. The file's length is any between the old and the new one. A sector of 512 bytes is written as a whole.

Not modelled: a disk that claims falsely to have written, damages bytes that it did not write, or returns the old
contents of other files (ext4's `data=writeback` may). File systems without a journal, such as ext2, may lose more."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Self

from tests.power.record import Entry, Kind

SECTOR = 512
Change = dict[str, "File | Folder | None"]  # by name in one folder: the file that it names now; None: no file


MOODS = (0.0, 0.1, 0.5, 0.9, 1.0)


class File:
    def __init__(self, data: bytes = b"") -> None:
        self.synced = bytearray(data)
        self.since: list[Entry] = []  # the entries WRITTEN and TRUNCATED since the last sync

    def do(self, entry: Entry) -> None:
        self.since.append(entry)

    def sync(self, before: int) -> None:
        """Puts on disk all that was done before that moment of the record."""
        done = 0
        while done < len(self.since) and self.since[done].end <= before:
            _apply(self.synced, self.since[done])
            done += 1
        del self.since[:done]

    def now(self) -> bytearray:
        """The contents that programs read now."""
        data = bytearray(self.synced)
        for entry in self.since:
            _apply(data, entry)
        return data

    def after(self, mood: float, random: Random) -> bytes | bytearray:
        if not self.since or mood == 0:
            return self.synced
        if mood == 1:
            return self.now()
        way = random.choice(["all or nothing", "first ones", "any"])
        if way == "all or nothing":
            return self.now() if random.random() < mood else self.synced
        data = bytearray(self.synced)
        if way == "first ones":  # keep the first changes, and of the last of them only a part
            kept = random.randint(0, len(self.since))
            for entry in self.since[:kept]:
                _apply(data, entry)
            if kept < len(self.since) and self.since[kept].kind is Kind.WRITTEN:
                entry = self.since[kept]
                cut = (entry.other + random.randint(0, len(entry.data))) // SECTOR * SECTOR - entry.other
                _apply(data, entry._replace(data=entry.data[: max(0, cut)]))
            return data
        return _mix(data, self.now(), mood, random)


def _apply(data: bytearray, entry: Entry) -> None:
    if entry.kind is Kind.TRUNCATED:
        del data[entry.other :]
        data.extend(bytes(entry.other - len(data)))
    elif entry.data:
        data.extend(bytes(max(0, entry.other - len(data))))
        data[entry.other : entry.other + len(entry.data)] = entry.data


def _mix(old: bytearray, new: bytearray, mood: float, random: Random) -> bytearray:
    """A random mix of old and new sectors. `mood`: the chance of each sector to be new."""
    size = random.choice([len(new), random.randint(min(len(old), len(new)), max(len(old), len(new)))])
    data = old[:size] + bytes(max(0, size - len(old)))
    for at in range(0, size, SECTOR):
        some = new[at : min(at + SECTOR, size)]
        if some != data[at : at + len(some)] and random.random() < mood:
            data[at : at + len(some)] = some
    return data


class Folder:
    def __init__(self) -> None:
        self.synced: dict[str, File | Folder] = {}
        self.since: list[tuple[int, Change]] = []  # (moment, change) since the last sync
        self.now: dict[str, File | Folder] = {}  # the names that programs see now

    def do(self, moment: int, change: Change) -> None:
        self.since.append((moment, change))
        _rename(self.now, change)

    def sync(self, before: int) -> None:
        done = 0
        while done < len(self.since) and self.since[done][0] <= before:
            _rename(self.synced, self.since[done][1])
            done += 1
        del self.since[:done]

    def after(self, mood: float, random: Random) -> dict[str, File | Folder]:
        names = dict(self.synced)
        ordered = 0 < mood < 1 and random.random() < 0.5  # keep only the first changes, as a journal does
        kept = random.randint(0, len(self.since))
        there = [number < kept if ordered else random.random() < mood for number in range(len(self.since))]
        current = [number for number, (_, change) in enumerate(self.since) if there[number] and change.get("CURRENT")]
        for number, (_, change) in enumerate(self.since):
            if there[number] or number < max(current, default=0):
                _rename(names, change)
        return names


def _rename(names: dict[str, File | Folder], change: Change) -> None:
    for name, what in change.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


class Disk:
    """The files below a folder, at some moment of a record. It begins empty, even if the folder has files now.

    `root`: the inode of the folder. `played`: the entries so far, from which an equal disk can be made.
    """

    def __init__(self, root: int) -> None:
        self._known: dict[int, File | Folder] = {}
        self.root = self._known[root] = Folder()
        self.inode = root
        self.played: list[Entry] = []

    @classmethod
    def of(cls, root: Path) -> Self:
        return cls(root.stat().st_ino)

    def load(self, path: Path) -> None:
        """Takes the files that are in the folder now as synced, before the record begins."""
        inode = path.stat().st_ino
        for each in path.iterdir():
            its, name = each.stat().st_ino, each.name.encode()
            if its in self._known:  # a file may have several names
                self.play(Entry(0, Kind.LINKED, inode, its, name))
            elif each.is_dir():
                self.play(Entry(0, Kind.MADE_FOLDER, inode, its, name))
                self.load(each)
            else:
                self.play(Entry(0, Kind.MADE_FILE, inode, its, name))
                self.play(Entry(0, Kind.WRITTEN, its, 0, each.read_bytes()))
                self.play(Entry(0, Kind.SYNCED, its, 0, b""))
        self.play(Entry(0, Kind.SYNCED, inode, 0, b""))

    def play(self, entry: Entry) -> None:
        """Applies an entry of the record; skips entries of other folders. Raises NotImplementedError for changes
        without a rule."""
        known = self._known.get(entry.inode)
        if known is None:
            return
        self.played.append(entry)
        if entry.kind is Kind.UNKNOWN:
            raise NotImplementedError(f"a way to change files that the model has no rule for: {entry.data.decode()}")
        if entry.kind is Kind.SYNCED:
            known.sync(entry.other)
        elif isinstance(known, File):
            known.do(entry)
        elif entry.kind is Kind.RENAMED and entry.other != entry.inode:
            self._move(known, entry)
        else:
            known.do(entry.end, self._change(known, entry))

    def _move(self, source: Folder, entry: Entry) -> None:
        old, _, new = entry.data.decode().partition("/")
        target = self._known.get(entry.other)
        if not isinstance(target, Folder):
            raise NotImplementedError(f"a rename of {old} to a folder that is not followed")
        target.do(entry.end, {new: source.now[old]})
        source.do(entry.end, {old: None})

    def _change(self, folder: Folder, entry: Entry) -> Change:
        name = entry.data.decode()
        if entry.kind is Kind.REMOVED:
            return {name: None}
        if entry.kind is Kind.RENAMED:
            old, _, new = name.partition("/")
            return {old: None, new: folder.now[old]}
        if entry.kind is Kind.LINKED:
            return {name: self._known[entry.other]}
        made = self._known[entry.other] = File() if entry.kind is Kind.MADE_FILE else Folder()
        return {name: made}

    def write(self, place: Path, mood: float, random: Random) -> None:
        """Makes the new folder `place` as a loss of power at this moment may leave it.

        `mood`: the chance that an unsynced change is kept. 0: none is; 1: all are, so it is what programs see now.
        """
        written: dict[int, Path] = {}
        folders = [(place, self.root)]
        while folders:
            path, folder = folders.pop()
            path.mkdir()
            for name, what in sorted(folder.after(mood, random).items()):
                if isinstance(what, Folder):
                    folders.append((path / name, what))
                elif id(what) in written:
                    os.link(written[id(what)], path / name)
                else:
                    (path / name).write_bytes(what.after(mood, random))
                    written[id(what)] = path / name
