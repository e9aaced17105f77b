"""The image: the cluster as the tree has it, an immutable value that is folded from the tree's znodes.

The image tells which topics and partitions there are, who leads them, and their settings. It does not tell what a
broker has of them on its disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from krappy.core.cluster import paths, znodes
from krappy.core.cluster.document import Document, numbers
from krappy.core.cluster.paths import KINDS, Kind
from krappy.core.cluster.state import FIELDS, PartitionState, state_of, write_state
from krappy.core.cluster.tree import Changes, Check, Operation, Put, Znode
from krappy.core.epochs import LAST
from krappy.core.security.acl import Acl
from krappy.types import id_of, text_id

NOTHING: Mapping[Any, Any] = MappingProxyType({})


def _nothing() -> Mapping[Any, Any]:
    return NOTHING


_TOPICS, _CONFIG = f"{paths.TOPICS}/", f"{paths.CONFIG}/"
_BROKERS, _EPOCHS, _DELETED = f"{paths.BROKERS}/", f"{paths.EPOCHS}/", f"{paths.DELETED}/"
_ACLS = f"{paths.ACLS}/"


class Registration(NamedTuple):
    """A broker that is registered. `epoch`: rises each time that it registers. `endpoints`: host and port by the
    listener's name. `since_ms`: when it registered (ms since the epoch), as it has told it. `features`: the highest
    level that it knows of each. `old_folder`: it lacks what was acknowledged since its data folder was copied.
    `spoiled`: which trouble (healing.LogTrouble) its replicas are in, by "topic-partition"."""

    id: int
    epoch: int
    endpoints: Mapping[str, tuple[str, int]]
    rack: str | None = None
    draining: bool = False
    since_ms: int | None = None
    features: Mapping[str, int] = NOTHING
    old_folder: bool = False
    spoiled: Mapping[str, str] = NOTHING


class DeletedTopic(NamedTuple):
    """A deleted topic. `replicas`: the brokers whose files of it may still exist; empty: any."""

    name: str
    replicas: tuple[int, ...] = ()


class PartitionImage(NamedTuple):
    """A partition in the image. `version`: the partition epoch, which each change of `state` raises; −1: no state
    yet. `adding`, `removing`: the replicas that a reassignment brings, and those that it takes away (reassign.py).
    `kept`: the state's znode, if it has fields that this version does not know."""

    replicas: tuple[int, ...]
    state: PartitionState = PartitionState()
    version: int = -1
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    kept: bytes = b""


@dataclass(frozen=True, slots=True)
class TopicImage:
    """A topic in the image. `id`: 16 bytes, never given to another topic. `partitions`: by index. `version`: of its
    znode. `kept`: the znode, if it has fields that this version does not know. `scattered`: True: keys may stand in
    other partitions than their own (strays). False: none does, and the topic is marked before the first one does, with
    a view or without. None: it has no mark because an earlier version made it, or a broker that was alone; these look
    at no keys of a topic without a view. `identified`: the topic has its `paths.identity`; topics of earlier versions
    get it from the controller. `restored_factor`: how many replicas it had in the cluster whose backup it comes from,
    until it has so many again; 0: it may stay as it is."""

    name: str
    id: bytes
    partitions: tuple[PartitionImage, ...]
    generation: int = 0
    deleted: bool = False
    version: int = 0
    kept: bytes = b""
    scattered: bool | None = None
    identified: bool = False
    restored_factor: int = 0

    def put_state(self, index: int, state: PartitionState) -> list[Operation]:
        """The operations that make this the state of a partition, if its state is still the image's. None, if the
        leader epoch is higher than the protocol can carry."""
        if state.leader_epoch > LAST:
            return []
        before = self.partitions[index]
        put = Put(paths.state(self.name, index), write_state(state, before.kept), before.version)
        return [*self.unless_deleted(), put]

    def put_replicas(self, partitions: Sequence[PartitionImage], *, scattered: bool = False, grows: bool = True) -> Put:
        """The operation that gives the topic the replicas of these partitions, if its znode is still the image's.
        `scattered`: it counts as scattered from then on. Without `grows` it has no `restored_factor` any more."""
        adding = {index: each.adding for index, each in enumerate(partitions)}
        removing = {index: each.removing for index, each in enumerate(partitions)}
        replicas = [each.replicas for each in partitions]
        marked = scattered or self.scattered
        kept = self.kept or b"{}"
        if self.restored_factor and not grows:
            kept = Document.of(kept).without(znodes.RESTORED_FACTOR)
        data = znodes.topic(self.id, replicas, self.generation, kept, adding, removing, marked)
        return Put(paths.topic(self.name), data, self.version)

    def unless_deleted(self) -> list[Operation]:
        """The check by which a write is refused if the topic was deleted: another topic of this name may have the same
        znodes by now, in the same versions."""
        return [Check(paths.identity(self.name, self.id))] if self.identified else []


@dataclass(frozen=True, slots=True)
class Image:
    """`names`: topic id -> name. `deleted`: by id, the deleted topics whose files may still exist. `configs`: the
    stored settings, by kind and name. `controller`: a broker's id. `producer_ids`: the first producer id that no broker
    has reserved. `acls`: by id; None: this version can't read it. `unreadable`: paths of znodes that this version can't
    read; for these the image keeps what it had before."""

    brokers: Mapping[int, Registration] = field(default_factory=_nothing)
    epochs: Mapping[int, int] = field(default_factory=_nothing)
    topics: Mapping[str, TopicImage] = field(default_factory=_nothing)
    names: Mapping[bytes, str] = field(default_factory=_nothing)
    deleted: Mapping[bytes, DeletedTopic] = field(default_factory=_nothing)
    configs: Mapping[Kind, Mapping[str, Mapping[str, str]]] = field(default_factory=_nothing)
    controller: int | None = None
    producer_ids: int = 0
    acls: Mapping[str, Acl | None] = field(default_factory=_nothing)
    unreadable: frozenset[str] = frozenset()

    @property
    def controlled(self) -> bool:
        """Whether one of the brokers is the controller."""
        return self.controller in self.brokers

    def config(self, kind: Kind, name: str) -> Mapping[str, str]:
        found = self.configs.get(kind)
        return NOTHING if found is None else found.get(name, NOTHING)

    def level(self, feature: str) -> int:
        """The highest level of a feature that all registered brokers know; 0: some do not know it."""
        return min((each.features.get(feature, 0) for each in self.brokers.values()), default=0)

    def trouble(self, broker: int, topic: str, index: int) -> str:
        """Which trouble (healing.LogTrouble) a broker's replica is in, as it has told; empty: none that is known."""
        found = self.brokers.get(broker)
        return "" if found is None else found.spoiled.get(f"{topic}-{index}", "")

    def after(self, changes: Changes) -> Image:
        """The image of the tree with these changes, in their order."""
        return _Fold(self).of(changes)


class _Fold:
    """Folds changes into an image: only the maps that a change touches are copied."""

    def __init__(self, image: Image) -> None:
        self._image = image
        self._made: dict[str, dict[Any, Any]] = {}  # by the field's name
        self._configs: dict[str, dict[str, Mapping[str, str]]] = {}  # by kind: a copy, made once
        self._states: dict[str, dict[int, Znode | None]] = {}  # by topic: the changed states
        self._identities: dict[str, dict[str, bool]] = {}  # by topic: which have come (True) and gone
        self._unreadable = set(image.unreadable)

    def of(self, changes: Changes) -> Image:
        controller, producer_ids = self._image.controller, self._image.producer_ids
        for path, znode in changes.items():
            if not path.startswith(_TOPICS):
                self._unreadable.discard(path)
            try:
                if path.startswith(_TOPICS):
                    self._topic_path(path, znode)
                elif path.startswith(_CONFIG):
                    self._config_path(path, znode)
                elif path.startswith(_BROKERS):
                    self._broker(int(path[len(_BROKERS) :]), znode)
                elif path.startswith(_EPOCHS):
                    _set(self._map("epochs"), int(path[len(_EPOCHS) :]), None if znode is None else znode.version)
                elif path.startswith(_DELETED):
                    id = id_of(path[len(_DELETED) :])
                    _set(self._map("deleted"), id, None if znode is None else _deleted(Document.of(znode.data)))
                elif path.startswith(_ACLS):
                    self._acl(path[len(_ACLS) :], znode)
                elif path == paths.CONTROLLER:
                    controller = None if znode is None else znodes.controlled_by(znode.data)
                elif path == paths.PRODUCER_IDS and znode is not None:
                    producer_ids = max(producer_ids, znodes.producer_ids_following(znode.data))
            except ValueError:
                self._unreadable.add(path)
        for name in self._states:
            self._take_states(name)
        for name, found in self._identities.items():
            self._identify(name, found)
        return replace(
            self._image,
            **self._made,
            controller=controller,
            producer_ids=producer_ids,
            unreadable=frozenset(self._unreadable),
        )

    def _map(self, name: str) -> dict[Any, Any]:
        """A copy of this map of the image, made once."""
        if name not in self._made:
            self._made[name] = dict(getattr(self._image, name))
        return self._made[name]

    def _acl(self, id: str, znode: Znode | None) -> None:
        acls = self._map("acls")
        acls.pop(id, None)
        if znode is not None:
            acls[id] = None  # unless it can be read
            acls[id] = znodes.acl_of(znode.data)

    def _broker(self, id: int, znode: Znode | None) -> None:
        _set(self._map("brokers"), id, None if znode is None else _registration(id, Document.of(znode.data)))

    def _config_path(self, path: str, znode: Znode | None) -> None:
        kind, _, name = path[len(_CONFIG) :].partition("/")
        if not name or kind not in KINDS:
            return
        settings = None if znode is None else znodes.settings(znode.data)
        configs = self._map("configs")
        if kind not in self._configs:
            self._configs[kind] = dict(configs.get(kind, {}))
        found = self._configs[kind]
        _set(found, paths.unquoted(name), settings)
        _set(configs, kind, found or None)

    def _topic_path(self, path: str, znode: Znode | None) -> None:
        name, *below = path[len(_TOPICS) :].split("/")
        if not below:
            self._unreadable.discard(path)
            self._topic(name, znode)
        elif len(below) == 3 and below[2] == "state":  # partitions/P/state
            self._states.setdefault(name, {})[int(below[1])] = znode
        elif len(below) == 1 and below[0] != "partitions":
            self._identities.setdefault(name, {})[below[0]] = znode is not None

    def _identify(self, name: str, found: Mapping[str, bool]) -> None:
        topics: dict[str, TopicImage] = self._map("topics")
        topic = topics.get(name)
        if topic is not None:
            topics[name] = replace(topic, identified=found.get(text_id(topic.id), topic.identified))

    def _topic(self, name: str, znode: Znode | None) -> None:
        topics: dict[str, TopicImage] = self._map("topics")
        before = topics.get(name)
        if znode is None:
            if before is not None:
                del topics[name]
                self._map("names").pop(before.id, None)
            self._states.pop(name, None)
            self._identities.pop(name, None)
            self._unreadable = {each for each in self._unreadable if not each.startswith(f"{paths.topic(name)}/")}
            return
        made = _topic(name, znode, before)
        if before is not None and before.id != made.id:
            self._map("names").pop(before.id, None)
        topics[name] = made
        self._map("names")[made.id] = name

    def _take_states(self, name: str) -> None:
        topics: dict[str, TopicImage] = self._map("topics")
        topic = topics.get(name)
        if topic is None:
            return
        partitions = list(topic.partitions)
        for index, znode in self._states[name].items():
            path = paths.state(name, index)
            self._unreadable.discard(path)
            if not 0 <= index < len(partitions):
                continue
            try:
                found = Document({}) if znode is None else Document.of(znode.data)
                state, version = (PartitionState(), -1) if znode is None else (state_of(found), znode.version)
            except ValueError:
                self._unreadable.add(path)
            else:
                kept = found.more_than(FIELDS)
                partitions[index] = partitions[index]._replace(state=state, version=version, kept=kept)
        topics[name] = replace(topic, partitions=tuple(partitions))


def _set(found: dict[Any, Any], key: Any, value: Any) -> None:
    if value is None:
        found.pop(key, None)
    else:
        found[key] = value


def _deleted(found: Document) -> DeletedTopic:
    return DeletedTopic(found.text("topic") or "", found.numbers("replicas"))


def _registration(id: int, found: Document) -> Registration:
    endpoints, rack = znodes.endpoints_of(found), found.text("rack", None)
    draining = bool(found.fields.get("draining", False))
    since_ms, features = znodes.registered_ms(found), znodes.features_of(found)
    old, spoiled = bool(found.fields.get("old_folder", False)), found.texts("spoiled")
    return Registration(id, found.number("broker_epoch"), endpoints, rack, draining, since_ms, features, old, spoiled)


def _topic(name: str, znode: Znode, before: TopicImage | None) -> TopicImage:
    found = Document.of(znode.data)
    id = id_of(found.text("topic_id") or "")
    assigned, adding, removing = (
        {int(index): numbers(index, ids) for index, ids in found.mapping(kind).items()}
        for kind in ("partitions", "adding_replicas", "removing_replicas")
    )
    if sorted(assigned) != list(range(len(assigned))):
        raise ValueError("its partitions are not those from 0 on")
    same = before is not None and before.id == id
    was: Iterable[PartitionImage] = before.partitions if before is not None and same else ()
    states = dict(enumerate(was))
    return TopicImage(
        name,
        id,
        tuple(
            states.get(index, PartitionImage(()))._replace(
                replicas=assigned[index], adding=adding.get(index, ()), removing=removing.get(index, ())
            )
            for index in range(len(assigned))
        ),
        found.number("generation", 0),
        bool(found.fields.get("deleted", False)),
        znode.version,
        found.more_than(znodes.TOPIC_FIELDS),
        bool(found.fields["scattered"]) if "scattered" in found.fields else None,
        before is not None and same and before.identified,
        max(0, found.number(znodes.RESTORED_FACTOR, 0)),
    )
