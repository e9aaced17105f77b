"""What a broker of a cluster has imported once it takes requests. It is the same as in tests/test_start_imports.py, and
what a cluster needs."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.zookeeper import ZooKeeperServer
from tests.test_start_imports import UNUSED, imported_by, needless

NEEDED = {"krappy.cluster.zk"}


def test_it_has_not_imported_what_it_does_not_use(
    tmp_path: Path, shared_zookeeper: ZooKeeperServer, chroot: str
) -> None:
    place = ("--zookeeper-connect", f"127.0.0.1:{shared_zookeeper.port}{chroot}", "--broker-id", "1")
    imported = imported_by(str(tmp_path / "data"), *place)
    assert "krappy.cluster.zk.client" in imported
    found = {name: needless(imported, name) for name in UNUSED if name not in NEEDED}
    assert not any(found.values()), {name: (UNUSED[name], each) for name, each in found.items() if each}
