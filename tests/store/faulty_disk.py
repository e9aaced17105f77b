"""A disk in memory that loses power, fills up and fails, in the manner of LevelDB's `fault_injection_test.cc`.

What a program wrote can be read at once. After `crash()` a file has what it had at its last `fdatasync`, and of the
writes since then what `keep` decides. A folder has the names that it had at its last `fsync_dir`, and of the renames,
creations and removals since then what `keep` decides (POSIX promises no order).
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random

from krappy.store.disk import Buffer, Disk, File

PAGE = 512


class Inode:
    def __init__(self) -> None:
        self.data = bytearray()
        self.synced = b""
        self.changed_ms = 1
        self.given_up = False  # after a failed sync the kernel reads the data from its cache, and never writes it

    def written(self) -> list[int]:
        """The pages that differ from what is synced."""
        pages = range(0, max(len(self.data), len(self.synced)), PAGE)
        return [at for at in pages if self.data[at : at + PAGE] != self.synced[at : at + PAGE]]


class Keep:
    """What a crash leaves of what was not synced. This class: nothing."""

    def name(self) -> bool:
        """Whether a folder operation since the last sync of the folder survives."""
        return False

    def size(self, synced: int, written: int) -> int:
        """The length of a file after a crash, if `written` bytes, more or fewer, had been written than were synced."""
        return synced

    def page(self) -> bool:
        """Whether a page that was written and not synced survives. Else it is as it was before, or has zeros."""
        return False


class Everything(Keep):
    """The process was killed, and the power was not lost: the kernel still has everything."""

    def name(self) -> bool:
        return True

    def size(self, synced: int, written: int) -> int:
        return written

    def page(self) -> bool:
        return True


class Chance(Keep):
    """Keeps what chance decides."""

    def __init__(self, seed: int) -> None:
        self._chance = Random(seed)

    def name(self) -> bool:
        return self._chance.random() < 0.5

    def size(self, synced: int, written: int) -> int:
        return self._chance.randint(min(synced, written), max(synced, written))

    def page(self) -> bool:
        return self._chance.random() < 0.5


class FaultyFile(File):
    __slots__ = ("disk", "inode")

    def __init__(self, disk: FaultyDisk, path: Path, inode: Inode) -> None:
        super().__init__(path, -1)
        self.disk = disk
        self.inode = inode

    def pread(self, size: int, position: int) -> bytes:
        self.disk.alive()
        return bytes(self.inode.data[position : position + size])

    def pread_nowait(self, size: int, position: int) -> Buffer:
        self.disk.alive()
        cached = self.disk.cached(size)
        if not cached:
            raise BlockingIOError(errno.EAGAIN, "not in the cache")
        return memoryview(self.inode.data[position : position + cached])

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        data = b"".join(buffers)
        room = self.disk.room
        some = data if room is None else data[: max(0, room)]
        self.disk.operation(f"write {self.path.name}")
        if room is not None:
            self.disk.room = room - len(some)
        self.inode.changed_ms = self.disk.clock_ms
        held = self.inode.data
        if len(held) < position:
            held += bytes(position - len(held))
        held[position : position + len(some)] = some
        if len(some) < len(data):
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path))

    def truncate(self, size: int) -> None:
        self.disk.operation(f"truncate {self.path.name}")
        data = self.inode.data
        if self.disk.room is not None and size < len(data):
            self.disk.room += len(data) - size
        del data[size:]
        data += bytes(size - len(data))

    def size(self) -> int:
        return len(self.inode.data)

    def fdatasync(self) -> None:
        self.disk.operation(f"fdatasync {self.path.name}")
        if self.disk.sync_fails:
            self.inode.given_up = True
            raise OSError(errno.EIO, "Input/output error", str(self.path))
        if not self.inode.given_up:
            self.inode.synced = bytes(self.inode.data)

    def forget_cached(self) -> None:
        inode = self.inode
        if inode.given_up:  # the length is known still
            size = len(inode.data)
            inode.data, inode.given_up = bytearray(inode.synced[:size].ljust(size, b"\0")), False
        else:
            with suppress(OSError):
                self.fdatasync()

    def close(self) -> None:
        pass


class PowerLoss(BaseException):
    """The machine is off: whoever gets this error does not exist any more. No handler for errors may catch it."""


class FaultyDisk(Disk):
    def __init__(self) -> None:
        self.names_now: dict[Path, Inode] = {}
        self.names_synced: dict[Path, Inode] = {}
        self.journal: list[Callable[[dict[Path, Inode]], object]] = []
        self.room: int | None = None  # bytes until the disk is full
        self.sync_fails = False
        self.refuses: Callable[[str], bool] = lambda name: False  # whether an operation raises EIO
        self.cached: Callable[[int], int] = lambda size: size  # how many bytes of a read the page cache has
        self.operations = 0
        self.dies_at: int | None = None  # the number of the operation at which the power goes
        self.log: list[str] = []
        self.clock_ms = 1  # the current time: files note when they were changed
        self.off = False
        self.boots = 0

    # ---------------------------------------------------------------- faults

    def alive(self) -> None:
        if self.off:
            raise PowerLoss

    def operation(self, name: str) -> None:
        """Every operation that changes the disk comes through here first."""
        self.alive()
        self.log.append(name)
        if self.dies_at is not None and self.operations >= self.dies_at:
            self.off = True
            raise PowerLoss
        self.operations += 1
        if self.refuses(name):
            raise OSError(errno.EIO, "Input/output error", name)

    def crash(self, keep: Keep | None = None) -> None:
        """Turns the power off and on. With `Everything` it is a kill: a loss of power after it may take what was not
        synced."""
        keep = keep or Keep()
        if type(keep) is Everything:
            self.off, self.dies_at, self.operations, self.log = False, None, 0, []
            return
        self.boots += 1
        names = dict(self.names_synced)
        for change in self.journal:
            if keep.name():
                change(names)
        inodes = {id(inode): inode for inode in names.values()}
        for inode in inodes.values():
            _lose(inode, keep)
        self.names_now, self.names_synced, self.journal = dict(names), dict(names), []
        self.off, self.dies_at, self.operations, self.log = False, None, 0, []

    def copy(self) -> FaultyDisk:
        """Another disk with the same files, all of them synced."""
        other = FaultyDisk()
        other.boots = self.boots
        for path, inode in self.names_now.items():
            other.put(path, inode.data)
        return other

    def put(self, path: Path, data: Buffer) -> None:
        """Puts a file as somebody else left it, synced."""
        inode = Inode()
        inode.data, inode.synced = bytearray(data), bytes(data)
        self.names_now[path] = self.names_synced[path] = inode

    # ---------------------------------------------------------------- Disk

    def _change(self, change: Callable[[dict[Path, Inode]], object]) -> None:
        change(self.names_now)
        self.journal.append(change)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> FaultyFile:
        self.alive()
        inode = self.names_now.get(path)
        if create:
            self.operation(f"create {path.name}")
            if inode is None:
                if self.room == 0:
                    raise OSError(errno.ENOSPC, "No space left on device", str(path))
                made = inode = Inode()
                self._change(lambda names: names.__setitem__(path, made))
            elif self.room is not None:
                self.room += len(inode.data)
            inode.data.clear()
        elif inode is None:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return FaultyFile(self, path, inode)

    def mkdir(self, folder: Path, mode: int = 0o777) -> None:
        self.alive()

    def names(self, folder: Path) -> dict[str, tuple[int, int]]:
        self.alive()
        return {
            path.name: (len(inode.data), inode.changed_ms)
            for path, inode in self.names_now.items()
            if path.parent == folder
        }

    def page_cache(self, folder: Path) -> str:
        return f"boot {self.boots}"

    def rename(self, old: Path, new: Path) -> None:
        self.operation(f"rename {old.name} {new.name}")
        if old not in self.names_now:
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(old))

        def change(names: dict[Path, Inode]) -> None:
            if old in names:
                names[new] = names.pop(old)

        self._change(change)

    def unlink(self, path: Path) -> None:
        if path in self.names_now:
            self.operation(f"unlink {path.name}")
            self._change(lambda names: names.pop(path, None))

    def fsync_dir(self, folder: Path) -> None:
        self.operation("fsync_dir")
        if self.sync_fails:
            raise OSError(errno.EIO, "Input/output error", str(folder))
        self.names_synced = dict(self.names_now)
        self.journal = []

    def remove_folder(self, folder: Path) -> None:
        for path in [path for path in self.names_now if path.parent == folder]:
            self.unlink(path)


def _lose(inode: Inode, keep: Keep) -> None:
    pages = inode.written()
    size = keep.size(len(inode.synced), len(inode.data)) if len(inode.data) != len(inode.synced) else len(inode.data)
    left = bytearray(inode.synced[:size])
    left += bytes(size - len(left))  # the length was written before the pages, which read as zeros
    for at in pages:
        if at < size and keep.page():
            some = inode.data[at : min(at + PAGE, size)]
            left[at : at + len(some)] = some
    inode.data = left
    inode.synced = bytes(left)
