"""The users in the data folder of a broker that is stopped, or was never started, and is alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from krappy.broker.tree_changes import config_change
from krappy.clients.admin import UserInfo
from krappy.core.cluster import paths
from krappy.core.security.scram import HASHES, ScramCredential
from krappy.errors import UnknownUser
from krappy.store.catalog import LocalCatalog
from krappy.store.hold import check_whole
from krappy.store.local_tree import LocalTree
from krappy.store.lock import FolderLock
from krappy.store.meta import Meta


class StoredUsers:
    """Methods raise StorageError while a broker uses the folder."""

    def __init__(self, data: Path) -> None:
        self._data = data

    def users(self) -> list[UserInfo]:
        with self._tree() as tree:
            held = tree.image.configs.get(paths.USER_CONFIG, {})
        return [UserInfo(name, iterations(texts)) for name, texts in sorted(held.items())]

    def change(self, name: str, credentials: Mapping[str, str]) -> None:
        """Sets credentials (texts of `ScramCredential.text` by mechanism). The user's other credentials stay."""
        with self._tree() as tree:
            self._write(tree, name, {**tree.image.config(paths.USER_CONFIG, name), **credentials})

    def delete(self, name: str) -> None:
        """Raises UnknownUser."""
        with self._tree() as tree:
            if not tree.image.config(paths.USER_CONFIG, name):
                raise UnknownUser(f"there is no user '{name}'", user=name)
            self._write(tree, name, {})

    @staticmethod
    def _write(tree: LocalTree, name: str, texts: Mapping[str, str]) -> None:
        path = paths.config(paths.USER_CONFIG, name)
        tree.commit(config_change(path, tree.get(path), texts))

    @contextmanager
    def _tree(self) -> Iterator[LocalTree]:
        lock = FolderLock(self._data)
        try:
            check_whole(self._data)
            meta = Meta(self._data / "meta")
            try:
                yield LocalCatalog(meta).tree
            finally:
                meta.close()
        finally:
            lock.release()


def iterations(texts: Mapping[str, str]) -> dict[str, int]:
    """The iterations of each credential, by its mechanism."""
    return {each: ScramCredential.read(each, texts[each]).iterations for each in HASHES if each in texts}
