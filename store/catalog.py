"""The catalog in a data folder: the tree of a broker that is alone, and the numbers of its partitions' views.

The tree (local_tree.py) holds all that a cluster would agree on, the numbers (view_numbers.py) what only this broker
uses. A catalog of an older format is converted when it is opened.

A topic keeps the defaults of the version that it was created under (`topic_table.GENERATIONS`): its znode has the
number of their generation.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from krappy.core.cluster import paths, znodes
from krappy.core.cluster.image import Image
from krappy.core.cluster.tree import Create
from krappy.errors import StorageError
from krappy.settings.topic_table import GENERATIONS
from krappy.store import format_2
from krappy.store.format import DATA_FORMAT
from krappy.store.local_tree import LocalTree, records
from krappy.store.meta import Meta
from krappy.store.refusals import reading
from krappy.store.view_numbers import ViewNumbers
from krappy.types import text_id

FORMAT = b"c/format"
STEP = 1_000  # after so many converted records of an older format, progress is told


@dataclass(frozen=True, slots=True)
class StoredTopic:
    """A topic in the catalog. `id`: 16 bytes, never given to another topic. `config`: only the settings that were
    given, by Kafka's names. `numbers`: for each partition the number of its view; of a cluster's topic that another
    broker has made, or given more partitions, some are missing until this broker follows. `generation`: which defaults
    the topic was created under."""

    name: str
    id: bytes
    config: dict[str, str]
    numbers: list[int]
    generation: int = 0

    @property
    def defaults(self) -> Mapping[str, str]:
        """Its generation's defaults that differ from those of a topic created now."""
        return GENERATIONS[self.generation]


class StoredTopics:
    """The topics of the image, with their numbers."""

    def __init__(self, image: Callable[[], Image], numbers: ViewNumbers) -> None:
        self._image = image
        self.numbers = numbers

    def list(self) -> Sequence[StoredTopic]:
        """Every topic of a broker that is alone, sorted by name. Raises StorageError for a topic that lacks numbers:
        such a broker gives them before the topic is in its tree."""
        image = self._image()
        found = [self._topic(image, name) for name in sorted(image.topics)]
        for topic in found:
            count = len(image.topics[topic.name].partitions)
            if len(topic.numbers) != count:
                raise StorageError(
                    f"the catalog is damaged: the topic '{topic.name}' has {count} partitions, but view numbers for "
                    f"{len(topic.numbers)}. Restore a backup"
                )
        return found

    def get(self, name: str) -> StoredTopic | None:
        """The topic of this name, if there is one."""
        image = self._image()
        return self._topic(image, name) if name in image.topics else None

    def __contains__(self, name: object) -> bool:
        return name in self._image().topics

    def deleting(self) -> Sequence[StoredTopic]:
        """Deleted topics whose folders or views may still exist, by id, without their settings."""
        found = sorted(self._image().deleted.items())
        return [StoredTopic(gone.name, id, {}, self.numbers.of(id)) for id, gone in found]

    def _topic(self, image: Image, name: str) -> StoredTopic:
        found = image.topics[name]
        numbers = self.numbers.of(found.id)[: len(found.partitions)]
        return StoredTopic(name, found.id, dict(image.config("topics", name)), numbers, found.generation)


class LocalCatalog(StoredTopics):
    """The catalog, as it was when it was opened and as `tree` and `numbers` change it."""

    def __init__(self, meta: Meta, *, change: bool = True, tell: Callable[[int], None] = lambda records: None) -> None:
        """Reads the catalog, and gives a new one its cluster id. A catalog of an older format is converted first;
        `tell` is called now and then with the number of converted records. Raises StorageError for a record that can't
        be read.

        `change` False: nothing is written.
        """
        self.meta = meta
        self._check_format()
        if change:
            self._note_format()
            self._migrate(tell)
            self.tree = LocalTree(meta)
            self.numbers = ViewNumbers(meta)
        else:
            steps = list(format_2.steps(meta))
            self.tree = LocalTree(meta, {path: data for step in steps for path, data in step.znodes.items()})
            self.numbers = ViewNumbers(meta, {key: value for step in steps for key, value in step.puts.items()})
        super().__init__(lambda: self.tree.image, self.numbers)
        self.list()  # raises for what is damaged
        self.cluster_id = text_id(self._cluster_id() or self._found_cluster(change=change))

    def _cluster_id(self) -> bytes | None:
        found = self.tree.get(paths.CLUSTER_ID)
        with reading(paths.CLUSTER_ID):
            return None if found is None else znodes.cluster_id(found.data)

    def _found_cluster(self, *, change: bool) -> bytes:
        id = new_id()
        if change:
            self.tree.commit([Create(paths.CLUSTER_ID, znodes.cluster(id))])
        return id

    def _migrate(self, tell: Callable[[int], None]) -> None:
        done = 0
        for done, step in enumerate(format_2.steps(self.meta), 1):
            self.meta.write({**records(step.znodes), **step.puts}, step.deletes)
            if done % STEP == 0:
                tell(done)
        if done:
            self.meta.sync()
        if done % STEP:
            tell(done)

    def _check_format(self) -> None:
        """Raises StorageError for data of a newer version, which this one may misread."""
        found = self._format()
        if found > DATA_FORMAT:
            raise StorageError(
                f"{self.meta.folder.parent} was written by a newer version of Krappy (its format is {found}, and this "
                f"version knows {DATA_FORMAT}): run that version again, or restore a backup that this one has made"
            )

    def _note_format(self) -> None:
        """Raises the stored format to this version's, before anything is written that an older version can't read."""
        if self._format() < DATA_FORMAT:
            self.meta.put(FORMAT, DATA_FORMAT.to_bytes(4, "big"))
            self.meta.sync()

    def _format(self) -> int:
        return int.from_bytes(self.meta.get(FORMAT) or b"", "big")


def new_id() -> bytes:
    """16 random bytes for a topic or a cluster. Its text (`text_id`) never begins with a dash, for that would look like
    an option on a command line (Kafka's Uuid avoids that too)."""
    while True:
        found = uuid.uuid4().bytes
        if not text_id(found).startswith("-"):
            return found
