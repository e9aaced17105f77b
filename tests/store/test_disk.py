"""What the real disk promises."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from krappy.store import disk as disks
from krappy.store.disk import IOV_MAX, OS_DISK, File


def test_what_is_written_is_read(tmp_path: Path) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    file.write([b"one", memoryview(b"two"), bytearray(b"three")], 0)
    file.write([b"TWO"], 3)
    assert file.pread(100, 0) == b"oneTWOthree"
    assert file.pread(3, 3) == b"TWO"
    assert file.pread(5, 11) == b""
    assert file.size() == 11
    file.truncate(4)
    assert file.pread(100, 0) == b"oneT"
    file.fdatasync()


def test_more_buffers_than_one_call_takes(tmp_path: Path) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    parts = [b"%06d" % number for number in range(2 * IOV_MAX + 7)]
    file.write(parts, 5)
    assert file.pread(10**6, 5) == b"".join(parts)


def test_writes_that_come_up_short_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    whole = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, buffers, at: whole(fd, [b"".join(buffers)[:7]], at))
    file.write([b"abcde", b"fghij", b"", b"klmnopqrstuvwxyz"], 0)
    assert file.pread(100, 0) == b"abcdefghijklmnopqrstuvwxyz"


def test_nowait_reads_what_is_cached(tmp_path: Path) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    file.write([b"abc"], 0)
    assert file.pread_nowait(2, 1) == b"bc"
    assert file.pread_nowait(100, 1) == b"bc"
    assert file.pread_nowait(100, 3) == b""


@pytest.mark.parametrize("number", [errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS])
def test_nowait_where_the_file_system_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    file.write([b"abc"], 0)

    def refuse(*_: object) -> int:
        raise OSError(number, "not here")

    monkeypatch.setattr(os, "preadv", refuse)
    assert file.pread_nowait(2, 1) == b"bc"
    assert not file.nowait
    monkeypatch.setattr(disks, "NOWAIT", None)
    assert not File(tmp_path, -1).nowait


def test_nowait_says_when_it_would_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)

    def again(*_: object) -> int:
        raise BlockingIOError(errno.EAGAIN, "would wait")

    monkeypatch.setattr(os, "preadv", again)
    with pytest.raises(BlockingIOError):
        file.pread_nowait(2, 1)


def test_a_file_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    file = OS_DISK.open(tmp_path / "a", create=True)
    fd = file.fd
    os.fstat(fd)
    del file
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def test_folders_and_names(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    OS_DISK.mkdir(deep)
    OS_DISK.mkdir(deep)
    OS_DISK.write_file(deep / "x", b"123")
    OS_DISK.mkdir(deep / "folder")
    assert {name: size for name, (size, _) in OS_DISK.names(deep).items()} == {"x": 3}
    OS_DISK.rename(deep / "x", deep / "y")
    OS_DISK.fsync_dir(deep)
    assert OS_DISK.read_file(deep / "y") == b"123"
    OS_DISK.unlink(deep / "y")
    OS_DISK.unlink(deep / "y")
    OS_DISK.remove_folder(deep)
    OS_DISK.remove_folder(deep)
    assert not deep.exists()


def test_a_folder_that_is_not_durable_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "refused")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        with pytest.raises(OSError, match="refused"):
            OS_DISK.mkdir(tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.EINVAL])
def test_what_others_have_made_need_not_be_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    asked = []

    def refuse(folder: Path) -> None:
        asked.append(folder)
        raise OSError(number, "not yours")

    monkeypatch.setattr(OS_DISK, "fsync_dir", refuse)
    OS_DISK.settle(tmp_path)
    assert asked == [tmp_path.resolve(), *tmp_path.resolve().parents]
