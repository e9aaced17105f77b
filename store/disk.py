"""The interface to the file system: all that the log needs of a disk.

Tests use another Disk that fails, fills up and loses power. Errors are OSError; callers turn them into StorageError.
Content is on disk only after `File.fdatasync`, a name only after `Disk.fsync_dir` of its folder (fsync(2)).
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

from krappy.store.format import TEMPORARY

Buffer = bytes | bytearray | memoryview

READ_THROUGH = 1 << 20  # bytes
PRIVATE = 0o700  # mode of a folder that holds events
IOV_MAX = 1024 if not hasattr(os, "sysconf") else max(16, os.sysconf("SC_IOV_MAX"))
NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)
_datasync = getattr(os, "fdatasync", os.fsync)
NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)  # errors of an open: nothing was done; a later try may succeed
NOT_OPENED = (*NO_DESCRIPTOR, errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # the same, where the folder may be away, too
AWAY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ESTALE)  # errors of a look: it is not there
UNREADABLE = (errno.EIO, errno.ENODATA, 117)  # errors of a read: the disk has lost these bytes (117: EUCLEAN)
_NOT_SUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
_NOT_OURS = (errno.EACCES, errno.EPERM, errno.EROFS, *_NOT_SUPPORTED)  # errors of the sync of a parent that is not ours


class File:
    """An open file. It is closed with its last reference, so it stays open while a reader uses it."""

    __slots__ = ("fd", "nowait", "path")

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self.fd = fd
        self.nowait = NOWAIT is not None  # False once the file system refuses it

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes from `position`; fewer only at the end of the file."""
        data = os.pread(self.fd, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        held = len(data)
        while held < size and (data := os.pread(self.fd, size - held, position + held)):
            parts.append(data)
            held += len(data)
        return b"".join(parts) if len(parts) > 1 else parts[0]

    def pread_nowait(self, size: int, position: int) -> Buffer:
        """As `pread`, but only the first bytes that are in the page cache. Raises BlockingIOError if there are none.

        Where the system cannot tell (no RWF_NOWAIT, preadv2(2)), this is `pread`.
        """
        if self.nowait:
            data = bytearray(size)
            try:
                held = os.preadv(self.fd, [data], position, NOWAIT or 0)
            except BlockingIOError:
                raise
            except OSError as error:
                if error.errno not in _NOT_SUPPORTED:
                    raise
                self.nowait = False
            else:
                return data if held == size else memoryview(data)[:held]
        return self.pread(size, position)

    def proven(self, position: int, size: int, *, nowait: bool = False) -> int:
        """How many of these bytes, from the first on, are known to be intact and may be sent unchecked; here all.

        Raises OSError, BlockingIOError with `nowait`.
        """
        return size

    def write(self, buffers: Sequence[Buffer], position: int) -> None:
        """Writes all of `buffers` from `position` on. Raises OSError; then a part may be written."""
        if len(buffers) <= IOV_MAX:
            size = sum(map(len, buffers))
            written = os.pwritev(self.fd, buffers, position)
            if written == size:
                return
            buffers = _rest(buffers, written)
            position += written
        while buffers:
            written = os.pwritev(self.fd, buffers[:IOV_MAX], position)
            if not written:
                raise OSError(errno.EIO, "a write wrote nothing", str(self.path))
            buffers = _rest(buffers, written)
            position += written

    def truncate(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def fdatasync(self) -> None:
        _datasync(self.fd)

    def forget_cached(self) -> None:
        """Drops the file's pages from the page cache, so that later reads come from the disk.

        Cache and disk differ after a failed sync: the kernel gives up writing a page, but shows it as long as it is
        cached (fsyncgate, posix_fadvise(2)).
        """
        with contextlib.suppress(OSError):  # the sync may report the same failure again
            self.fdatasync()
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        with contextlib.suppress(OSError, AttributeError):
            self.close()


def _rest(buffers: Sequence[Buffer], written: int) -> Sequence[Buffer]:
    for number, buffer in enumerate(buffers):
        if written < len(buffer):
            return [memoryview(buffer)[written:], *buffers[number + 1 :]]
        written -= len(buffer)
    return []


class Disk:
    """The real disk. All methods raise OSError."""

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> File:
        """An existing file; with `create` also a new one, or the existing one emptied. Raises OSError, also for a
        folder, and for a pipe, whose opening would wait for its other end."""
        flags = os.O_RDWR if write or create else os.O_RDONLY
        if create:
            flags |= os.O_CREAT | os.O_TRUNC
        file = File(path, os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o644))
        mode = os.fstat(file.fd).st_mode
        if stat.S_ISDIR(mode) or stat.S_ISFIFO(mode):
            file.close()
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.ESPIPE
            raise OSError(number, "it is a folder or a pipe, and no file", str(path))
        return file

    def scratch(self, folder: Path) -> File:
        """A new file without a name, for writing and reading; it is gone once it is closed."""
        with tempfile.TemporaryFile(dir=folder) as made:
            return File(folder, os.dup(made.fileno()))

    def mkdir(self, folder: Path, mode: int = 0o777) -> None:
        """Makes the folder and its parents, durably. Does nothing if it exists. `mode`: of the folder, but not of
        parents; the umask takes from it."""
        if folder.is_dir():
            return
        self.mkdir(folder.parent)
        folder.mkdir(mode, exist_ok=True)
        try:
            self.fsync_dir(folder.parent)
        except OSError:
            with contextlib.suppress(OSError):
                folder.rmdir()  # else the next call takes it for durable
            raise

    def settle(self, folder: Path, mode: int = 0o777) -> None:
        """As `mkdir`, then syncs the folder and all its parents. An existing folder may not be durable: the process
        that made it may have died before its sync."""
        self.mkdir(folder, mode)
        held = folder.resolve()
        for each in (held, *held.parents):
            try:
                self.fsync_dir(each)
            except OSError as error:
                if error.errno not in _NOT_OURS:
                    raise

    def names(self, folder: Path) -> dict[str, tuple[int, int]]:
        """The files in the folder: name -> (size in bytes, time of the last change in ms)."""
        found = {}
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_file():
                    about = entry.stat()
                    found[entry.name] = (about.st_size, about.st_mtime_ns // 1_000_000)
        return found

    def page_cache(self, folder: Path) -> str:
        """An id of the page cache that this folder's files are written through: it changes when the machine is
        restarted, and for a copy of the folder. Empty where it is not known."""
        try:
            boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
            found = os.stat(folder)
        except (OSError, ValueError):
            return ""
        return f"{boot} {found.st_dev} {found.st_ino}"

    def is_at(self, path: Path, file: File) -> bool:
        """Whether the path leads to this open file; or nobody knows, because the disk does not tell."""
        try:
            return os.path.samestat(os.fstat(file.fd), os.stat(path))
        except OSError as error:
            return error.errno not in AWAY

    def rename(self, old: Path, new: Path) -> None:
        os.replace(old, new)

    def unlink(self, path: Path) -> None:
        """Removes a file. Does nothing if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def fsync_dir(self, folder: Path) -> None:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def remove_folder(self, folder: Path) -> None:
        """Removes a folder with all its content. Does nothing if it is missing."""
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(folder)

    def read_file(self, path: Path) -> bytes:
        file = self.open(path)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def read_derived(self, path: Path) -> bytes:
        """As `read_file`, for a file that can be made anew from others: one whose bytes the disk has lost counts as
        missing. Raises OSError."""
        try:
            return self.read_file(path)
        except OSError as error:
            if error.errno in UNREADABLE:
                raise FileNotFoundError(errno.ENOENT, f"it can't be read: {error.strerror}", str(path)) from error
            raise

    def read_through(self, path: Path) -> None:
        """Reads all of a file, to see whether it can be read. Raises OSError."""
        file = self.open(path)
        try:
            for position in range(0, file.size(), READ_THROUGH):
                file.pread(READ_THROUGH, position)
        finally:
            file.close()

    def write_file(self, path: Path, data: Buffer, *, sync: bool = True) -> None:
        """Writes the whole content of a file, durable with `sync`; its name is durable only after `fsync_dir`."""
        file = self.open(path, create=True)
        try:
            file.write([data], 0)
            if sync:
                file.fdatasync()
        finally:
            file.close()

    def open_or_make(self, path: Path, *, sync: bool = True) -> tuple[File, bytes]:
        """A file that is overwritten in place, and what it has. An empty one is made if it is missing or can't be read,
        durably with `sync`. Raises OSError."""
        try:
            data = self.read_file(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, *UNREADABLE):
                raise
            data = b""
            self.write_file(path, data, sync=sync)
            if sync:
                self.fsync_dir(path.parent)
        return self.open(path, write=True), data

    def replace_file(self, path: Path, data: Buffer) -> None:
        """As `write_file`, but a new file takes the place of the old one, which a backup may hold. Raises OSError: then
        the old one is still there."""
        temporary = path.with_name(f"{path.name}.{threading.get_ident()}{TEMPORARY}")
        try:
            self.write_file(temporary, data)
            self.rename(temporary, path)
        except OSError:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise


OS_DISK = Disk()
