"""What a loss of power may leave of the files that a record tells of.

The rules are the least that POSIX has, not those of one file system, so that what holds here holds on ext4 (whatever
its `data=`), XFS, Btrfs and others with their defaults, which all promise more:

- What a file's fsync or fdatasync covers (all that was done to it before the call) is there. It vouches for no name,
  and for no other file.
- What a folder's fsync covers are its names: which there are, and of which files. Not what is in those.
- Of names since then any may be there, and any may not, whatever their order. A rename is one step: both or neither.
- Of a file's writes since then any sector may be there, and any may not: it is as it was, or zeros where the file was
  shorter. Its length is any between the two. A sector of 512 bytes is written as a whole.

Left out: a disk that lies about having written, that damages what it did not write, or gives back what other files
held before (ext4's `data=writeback` may). File systems without a journal, such as ext2, may lose more.
"""

from __future__ import annotations

import os
from pathlib import Path
from random import Random

from tests.power.record import Entry, Kind

SECTOR = 512
Change = dict[str, "File | Folder | None"]  # names in one folder and what they are from now on; None: nothing


MOODS = (0.0, 0.1, 0.5, 0.9, 1.0)


class File:
    def __init__(self, data: bytes = b"") -> None:
        self.synced = bytearray(data)
        self.since: list[Entry] = []  # WRITTEN and TRUNCATED

    def do(self, entry: Entry) -> None:
        self.since.append(entry)

    def sync(self, before: int) -> None:
        """All that was done before that moment of the record is on disk."""
        done = 0
        while done < len(self.since) and self.since[done].end <= before:
            _apply(self.synced, self.since[done])
            done += 1
        del self.since[:done]

    def now(self) -> bytearray:
        """What a program reads."""
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
        if way == "first ones":  # as they came, the last one torn
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
    """Any sectors of the one and of the other."""
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
        self.since: list[tuple[int, Change]] = []  # when, and what
        self.now: dict[str, File | Folder] = {}  # what a program sees

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
        ordered = 0 < mood < 1 and random.random() < 0.5  # the first ones, as a journal keeps them
        kept = random.randint(0, len(self.since))
        for number, (_, change) in enumerate(self.since):
            if number < kept if ordered else random.random() < mood:
                _rename(names, change)
        return names


def _rename(names: dict[str, File | Folder], change: Change) -> None:
    for name, what in change.items():
        if what is None:
            names.pop(name, None)
        else:
            names[name] = what


class Disk:
    """The files below a folder, at some moment of a record.

    `empty`: it begins with nothing, though there may be something now. Else with what is there now.
    """

    def __init__(self, root: Path, *, empty: bool = True) -> None:
        self._known: dict[int, File | Folder] = {}
        self.root = self._known[root.stat().st_ino] = Folder()
        if not empty:
            self._load(root, self.root)

    def _load(self, path: Path, folder: Folder) -> None:
        for each in path.iterdir():
            inode = each.stat().st_ino
            what = self._known.get(inode)  # one file may have several names
            if what is None and each.is_dir():
                what = self._known[inode] = found = Folder()
                self._load(each, found)
            elif what is None:
                what = self._known[inode] = File(each.read_bytes())
            folder.synced[each.name] = folder.now[each.name] = what

    def play(self, entry: Entry) -> None:
        """What the entry tells happens. Those of other folders are passed over."""
        known = self._known.get(entry.inode)
        if known is None:
            return
        if entry.kind is Kind.UNKNOWN:
            raise NotImplementedError(f"a way to change files that the model has no rule for: {entry.data.decode()}")
        if entry.kind is Kind.SYNCED:
            known.sync(entry.other)
        elif isinstance(known, File):
            known.do(entry)
        else:
            known.do(entry.end, self._change(known, entry))

    def _change(self, folder: Folder, entry: Entry) -> Change:
        name = entry.data.decode()
        if entry.kind is Kind.REMOVED:
            return {name: None}
        if entry.kind is Kind.RENAMED:
            if entry.other != entry.inode:
                raise NotImplementedError(f"a rename from one folder to another, of {name}")
            old, _, new = name.partition("/")
            return {old: None, new: folder.now[old]}
        if entry.kind is Kind.LINKED:
            return {name: self._known[entry.other]}
        made = self._known[entry.other] = File() if entry.kind is Kind.MADE_FILE else Folder()
        return {name: made}

    def write(self, place: Path, mood: float, random: Random) -> None:
        """Makes the new folder `place` as a loss of power at this moment may leave it.

        `mood`: the chance that what was not synced is there. 0: none of it; 1: all, which is what programs see now.
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
