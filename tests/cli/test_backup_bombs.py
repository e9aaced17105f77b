"""Archives that unpack to more than they seem to have, at `krappy restore` and `krappy doctor --backup`."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import subprocess
import tarfile
import tracemalloc
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, cast

import pytest

from krappy.cli import archive, backup_files, cluster_restore, main, tar_stream
from krappy.cli.errors import Failure
from krappy.records import batch as batches
from tests.cli.test_cluster_restore import Made

MB = 1_000_000
NONE: Mapping[str, str] = {}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lambda data: lzma.compress(data, preset=0),
    "lzma": lambda data: lzma.compress(data, lzma.FORMAT_ALONE, filters=[{"id": lzma.FILTER_LZMA1, "preset": 6}]),
}


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """An archive of these members. Each has its data behind its header, whatever size the header tells."""
    packed = b""
    for info, data in members:
        packed += info.tobuf(tarfile.PAX_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)
    return packed + bytes(2 * tarfile.BLOCKSIZE)


def member(
    name: str = "meta/x", size: int = 0, type: bytes = tarfile.REGTYPE, pax: Mapping[str, str] = NONE
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.size, info.type, info.pax_headers = size, type, dict(pax)
    return info


Refused = Callable[..., str]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Refused:
    """Restores an archive, which must be refused and leave nothing; returns the error."""

    def restore(packed: bytes, folder: Path = tmp_path) -> str:
        (tmp_path / "packed").write_bytes(packed)
        data = folder / "data"
        assert main.run(["restore", str(tmp_path / "packed"), "--data", str(data)]) == 1
        assert {each.name for each in data.iterdir()} <= {"lock"}
        return capsys.readouterr().err

    return restore


SPARSE_1_0 = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "1000000000000"}


@pytest.mark.parametrize(
    ("info", "data"),
    [
        (member(type=tarfile.GNUTYPE_SPARSE), b""),
        (member(size=512, pax=SPARSE_1_0), b"1\n0\n0\n"),
        (member(pax={"GNU.sparse.map": "0,0", "GNU.sparse.size": "1000000000000"}), b""),
    ],
)
def test_a_sparse_file_is_refused(refused: Refused, info: tarfile.TarInfo, data: bytes) -> None:
    assert "is a sparse file: pack the backup without" in refused(tar_of((info, data)))


def test_a_file_that_tells_of_more_than_the_disk_has_is_refused(refused: Refused) -> None:
    told = refused(tar_of((member(size=1 << 60), b"x")))
    assert "bytes free" in told
    assert "what was written is removed again" in told


def test_a_file_that_tells_of_more_than_the_archive_has_is_refused(refused: Refused) -> None:
    assert "not a whole backup" in refused(tar_of((member(size=MB), b"x")))


def test_a_file_of_less_than_no_bytes_is_refused(refused: Refused) -> None:
    assert "a size below 0" in refused(tar_of((member(pax={"size": "-4096"}), b"")))


@pytest.mark.parametrize("type", [tarfile.LNKTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, b"?"])
def test_what_is_no_file_is_refused(refused: Refused, type: bytes) -> None:
    info = member(type=type)
    info.linkname = "/etc/hostname"
    assert "no file and no folder" in refused(tar_of((info, b"")))


class Endless(io.RawIOBase):
    """Gives some bytes, and then others for ever."""

    def __init__(self, head: bytes, more: bytes) -> None:
        self._head, self._more = head, more
        self.given = 0

    def read(self, size: int = -1) -> bytes:
        assert self.given < 10 * MB, "it reads on and on"
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
        else:
            data = (self._more * (size // len(self._more) + 1))[:size]
        self.given += len(data)
        return data


def head_of(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    ("head", "more"),
    [
        (head_of(member(size=1 << 33, type=tarfile.GNUTYPE_LONGNAME)), b"x"),
        (head_of(member(size=1 << 33, type=tarfile.XHDTYPE)), b"x"),
        (head_of(member(size=1 << 33, type=tarfile.XGLTYPE)), b"x"),
        (b"", head_of(member(size=100, type=tarfile.GNUTYPE_LONGNAME)) + bytes(512)),  # one long name after the other
        (b"", tar_of((member(size=0, type=tarfile.XGLTYPE), b""))[:512]),
    ],
)
def test_headers_without_end_are_refused(head: bytes, more: bytes) -> None:
    with pytest.raises(Failure, match=r"no backup|not a whole backup"):
        list(tar_stream.files(cast("IO[bytes]", Endless(head, more))))


@pytest.mark.parametrize(
    "records",
    [
        b"1" * 600,  # tarfile looks for the end of the number at each digit anew
        b"02 " * 200 + b"=",  # and takes all that follows for the name, in each record anew
        b"9" * 600 + b" a=b\n",
        b"8 path=x",
        b"9 path=xyz\n",
        b"7 path\n",
        b"-3 a=b\n",
        b" a=b\n",
    ],
)
def test_invalid_records_are_refused(records: bytes) -> None:
    head = head_of(member(size=len(records), type=tarfile.XHDTYPE))
    packed = head + records + bytes(-len(records) % tarfile.BLOCKSIZE) + tar_of((member(), b""))
    with pytest.raises(Failure, match="not a whole backup: the archive has a header that can't be read"):
        list(tar_stream.files(io.BytesIO(packed)))


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_archives_of_others_are_read(form: int) -> None:
    """Their headers may tell whatever they want beside the name and the size."""
    contents = {f"./topics/{'t' * 60}/{'x' * 60}": b"a" * 700, "meta/y": b"", "views/z": bytes(512)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, pax_headers={"comment": "=\n= 1"}) as tar:
        tar.addfile(member("topics", type=tarfile.DIRTYPE))
        for name, data in contents.items():
            info = member(name, len(data), pax={"SCHILY.xattr.user.x": "1\n2=3", "mtime": "1.5"})
            tar.addfile(info, io.BytesIO(data))
    out.seek(0)
    found = {name: (size, file.read()) for name, size, file in tar_stream.files(out)}
    assert found == {name: (len(data), data) for name, data in contents.items()}


@pytest.mark.parametrize("form", PACKED)
def test_memory_is_bounded_whatever_a_file_unpacks_to(form: str) -> None:
    packed = PACKED[form](tar_of((member(size=48 * MB), bytes(48 * MB)), (member("meta/y", 1), b"y")))
    tracemalloc.start()
    try:
        with pytest.raises(Failure, match=r"has no backup\.json"):
            archive.check(tar_stream.files(io.BytesIO(packed)), lambda name, count: None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * MB


def test_memory_is_bounded_whatever_an_archive_asks_for() -> None:
    packed = bytearray(lzma.compress(tar_of((member(size=1), b"x"))))
    end = 12 + 4 * packed[12]  # the end of the header of the first block: see The .xz File Format
    packed[16] = 40  # 4 GiB of earlier data are needed
    packed[end : end + 4] = zlib.crc32(packed[12:end]).to_bytes(4, "little")
    with pytest.raises(Failure, match="Memory usage limit exceeded"):
        list(tar_stream.files(io.BytesIO(bytes(packed))))


@pytest.mark.parametrize(("limit", "told"), [("MOST_TOLD", b" "), ("MOST_VALUES", b"[],")])
def test_a_listing_that_would_fill_the_memory_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, told: bytes
) -> None:
    monkeypatch.setattr(backup_files, limit, 1_000)
    text = b'{"format": 1, "taken_ms": 1, "files": [], "x": [%b 1]}' % (told * 1_001)
    with pytest.raises(Failure, match="can't be read"):
        archive.check(tar_stream.files(io.BytesIO(tar_of((member("backup.json", len(text)), text)))), print)


def test_files_without_end_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backup_files, "MOST_FILES", 2)
    packed = tar_of(*((member(f"meta/{number}"), b"") for number in range(3)))
    with pytest.raises(Failure, match="more than 2 files"):
        archive.check(tar_stream.files(io.BytesIO(packed)), print)


def test_a_name_that_is_there_twice_is_refused() -> None:
    packed = tar_of((member(size=1), b"x"), (member("./meta/x", 1), b"y"))
    with pytest.raises(Failure, match="it has meta/x twice"):
        archive.check(tar_stream.files(io.BytesIO(packed)), print)


def test_a_bomb_leaves_some_of_the_disk_free_and_nothing_behind(tmp_path: Path, refused: Refused) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", str(small)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs can be mounted here")
    try:
        packed = gzip.compress(tar_of(*((member(f"meta/{n}", 3 * MB), bytes(3 * MB)) for n in range(10))))
        assert len(packed) < MB
        told = refused(packed, small)
        assert "of them stay free, but 3,000,000 are needed" in told
    finally:
        subprocess.run(["umount", "-l", str(small)], check=True)


def test_what_groups_keep_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(tmp_path)
    data = batches.encode([b"k%d" % n for n in range(100)], [bytes(1_000)] * 100, timestamps=1, codec=1)
    made.topic("__share_group_state", data, data)
    monkeypatch.setattr(cluster_restore, "MOST_KEPT", 100_000)
    with pytest.raises(Failure, match="__share_group_state has more than 100,000 bytes"):
        made.build()
