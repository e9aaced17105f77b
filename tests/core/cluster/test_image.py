"""The image that is kept up to date equals the one that is made from the whole tree, whatever changes."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from krappy.core.cluster import image as image_module
from krappy.core.cluster import paths, registration, znodes
from krappy.core.cluster.document import Document
from krappy.core.cluster.image import Image, PartitionImage, Registration, TopicImage
from krappy.core.cluster.state import PartitionState, elected, normalise, read_state, write_state
from krappy.core.cluster.tree import Changes, Create, Delete, Operation, Put, Tree, Znode
from krappy.core.epochs import FAR, LAST
from krappy.types import text_id


def document(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def topic(number: int, partitions: int, **more: Any) -> bytes:
    assigned = {str(index): [1, 2, 3][: 1 + index % 3] for index in range(partitions)}
    return document(version=3, topic_id=text_id(number.to_bytes(16, "big")), partitions=assigned, **more)


def rooted() -> Tree:
    tree = Tree()
    tree.apply(tree.plan([Create(path) for path in paths.ROOTS]))
    return tree


class Life:
    """Random changes of a cluster, some of which write what nobody can read."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.tree = rooted()
        self.image = Image().after(dict(self.tree.under("/")))
        self.number = 0
        self.ids: dict[str, int] = {}

    def broker(self) -> list[Operation]:
        id = self.random.randint(1, 3)
        ends = self.random.choice([["PLAINTEXT://h:9092", "IN://[::1]:1"], ["nowhere"], []])
        data = document(endpoints=ends, broker_epoch=self.random.randint(0, 9), rack=self.random.choice([None, "r", 7]))
        return self.either(paths.broker(id), data)

    def config(self) -> list[Operation]:
        kind = self.random.choice(paths.KINDS)
        name = self.random.choice(["a", "a/b %", "."])
        return self.either(paths.config(kind, name), self.random.choice([document(config={"x": "1"}), b"{", b"[]"]))

    def topic(self) -> list[Operation]:
        name = self.random.choice("abc")
        path = paths.topic(name)
        below = [path for path, _ in self.tree.under(path)]
        if not below or self.random.random() < 0.2:
            self.number += 1
            self.ids[name] = self.number
            made = [Create(path, topic(self.number, self.random.randint(1, 4))), Create(paths.partitions(name))]
            named = [Create(self.identity(name))] if self.random.random() < 0.7 else []
            return [*(Delete(each) for each in reversed(below)), *made, *named]
        if self.random.random() < 0.1:
            return self.either(self.identity(name), b"")
        if self.random.random() < 0.3:
            data = topic(self.ids[name], self.random.randint(1, 5)) if self.random.random() < 0.8 else b"no topic"
            return [Put(path, data)]
        index = str(self.random.randint(0, 5))
        at = paths.partition(name, int(index))
        parents = [] if self.tree.get(at) else [Create(at)]
        state = write_state(PartitionState(1, self.random.randint(0, 9), isr=(1, 2)))
        return [*parents, *self.either(f"{at}/state", state if self.random.random() < 0.8 else b"{}")]

    def identity(self, name: str) -> str:
        return paths.identity(name, self.ids[name].to_bytes(16, "big"))

    def either(self, path: str, data: bytes) -> list[Operation]:
        if self.tree.get(path) is None:
            return [Create(path, data)]
        return [Delete(path)] if self.random.random() < 0.3 else [Put(path, data)]

    def step(self) -> None:
        made = [self.random.choice([self.broker, self.config, self.topic, self.topic])()]
        changes = self.tree.plan([operation for each in made for operation in each])
        self.tree.apply(changes)
        self.image = self.image.after(changes)


@pytest.mark.parametrize("seed", range(60))
def test_it_is_the_image_of_the_whole_tree(seed: int) -> None:
    life = Life(seed)
    for _ in range(60):
        before, was = life.image, repr(life.image)
        life.step()
        assert repr(before) == was  # an image that somebody has does not change
        if not life.image.unreadable:
            assert life.image == Image().after(dict(life.tree.under("/")))


def test_what_it_tells() -> None:
    tree = rooted()
    state = write_state(PartitionState(2, 7, 3, (2, 1), (3,), (), 2, 1))
    tree.apply(
        tree.plan(
            [
                Create(paths.broker(2), document(endpoints=["IN://h:1"], broker_epoch=3, rack="r"), owner=9),
                Create(paths.topic("t"), topic(5, 2)),
                Create(paths.identity("t", (5).to_bytes(16, "big"))),
                Create(paths.partitions("t")),
                Create(paths.partition("t", 1)),
                Create(paths.state("t", 1), state),
                Put(paths.topic("t"), topic(5, 2, adding_replicas={"1": [4]})),
                Create(paths.config("groups", "a/ä"), document(version=1, config={"x": "y"})),
                Create(paths.CONTROLLER, document(version=2, brokerid=2)),
            ]
        )
    )
    image = Image().after(dict(tree.under("/")))
    assert image.brokers == {2: Registration(2, 3, {"IN": ("h", 1)}, "r")}
    assert image.controller == 2
    assert image.config("groups", "a/ä") == {"x": "y"}
    assert image.config("topics", "t") == {}
    found = image.topics["t"]
    assert (found.id, image.names[found.id], found.version) == ((5).to_bytes(16, "big"), "t", 1)
    assert found.identified
    assert found.partitions[0] == PartitionImage((1,))
    assert found.partitions[1] == PartitionImage((1, 2), read_state(state), 0, adding=(4,))


def test_many_settings_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start takes in the settings of all topics at once."""
    copied: list[Any] = []

    def copy(*given: Any) -> dict[Any, Any]:
        copied.append(given)
        return dict(*given)

    before = Image().after({paths.config("topics", "0"): Znode(document(config={"x": "y"}))})
    data = document(config={"x": "z"})
    changes: Changes = {paths.config("topics", str(name)): Znode(data) for name in range(50)}
    monkeypatch.setattr(image_module, "dict", copy, raising=False)
    image = before.after(changes)
    assert len(copied) == 2  # the settings of all kinds, and those of topics
    assert len(image.configs["topics"]) == 50
    assert before.config("topics", "0") == {"x": "y"}
    gone = image.after(dict.fromkeys(changes))
    assert not gone.configs
    again = gone.after({paths.config("topics", "1"): None, paths.config("topics", "2"): Znode(data)})
    assert again.configs == {"topics": {"2": {"x": "z"}}}


def test_what_nobody_can_read_counts_as_it_was() -> None:
    tree = rooted()
    tree.apply(tree.plan([Create(paths.topic("t"), topic(5, 2))]))
    image = Image().after(dict(tree.under("/")))
    changes = tree.plan([Put(paths.topic("t"), b"\xff")])
    broken = image.after(changes)
    assert broken.unreadable == {paths.topic("t")}
    assert broken.topics == image.topics
    tree.apply(changes)
    assert not broken.after(tree.plan([Put(paths.topic("t"), topic(5, 3))])).unreadable
    assert not broken.after(tree.plan([Delete(paths.topic("t"))])).unreadable


def partition_in(epoch: int) -> Image:
    """The image of a topic whose partition is in this leader epoch."""
    tree = rooted()
    state = write_state(PartitionState(1, epoch, 0, (1,)))
    path = paths.partition("t", 0)
    made = [Create(paths.topic("t"), topic(5, 1)), Create(f"{paths.topic('t')}/partitions"), Create(path)]
    tree.apply(tree.plan([*made, Create(f"{path}/state", state)]))
    return Image().after(dict(tree.under("/")))


def test_no_leader_epoch_is_beyond_what_can_be_told() -> None:
    """If somebody has written such an epoch, only its partition is not known; and Krappy never writes one."""
    image = partition_in(LAST)
    assert image.topics["t"].partitions[0].state.leader_epoch == LAST
    state = image.topics["t"].partitions[0].state
    assert image.topics["t"].put_state(0, state)
    assert image.topics["t"].put_state(0, state._replace(leader_epoch=LAST + 1)) == []
    image = partition_in(LAST + 1)
    assert image.unreadable == {paths.state("t", 0)}
    assert image.topics["t"].partitions[0].version == -1


@pytest.mark.parametrize(
    ("known", "seen", "after"),
    [(3, 3, 3), (3, 4, 5), (3, 3 + FAR - 1, 3 + FAR), (3, 3 + FAR, 3), (3, LAST, 3), (LAST - 1, LAST, LAST - 1)],
)
def test_only_a_leader_epoch_that_can_be_is_passed(known: int, seen: int, after: int) -> None:
    found = partition_in(known).topics["t"]
    puts = [each for each in registration.pass_epoch(found, 0, seen) if isinstance(each, Put)]
    assert [read_state(put.data).leader_epoch for put in puts] == ([] if after == known else [after])


@pytest.mark.parametrize("name", ["a", ".", "..", "...", "a/b", "%2F", "ä\0", "a b", "x" * 300])
def test_any_name_is_a_part_of_a_path(name: str) -> None:
    tree = rooted()
    path = paths.config("groups", name)
    tree.apply(tree.plan([Create(path)]))
    [part] = tree.children("/config/groups")
    assert paths.unquoted(part) == name


def test_fields_of_others_stay() -> None:
    before = document(version=1, leader=1, leader_epoch=2, theirs={"a": [1]})
    after = json.loads(write_state(PartitionState(3, 4), before))
    assert (after["leader"], after["leader_epoch"], after["theirs"]) == (3, 4, {"a": [1]})


@pytest.mark.parametrize("before", [None, False, True])
def test_a_topic_that_may_have_strays_is_known_as_that(before: bool | None) -> None:
    """Brokers of earlier versions, and brokers that are alone, drop `false`: they do not look at keys
    without a view."""

    def image_of(data: bytes) -> TopicImage:
        return Image().after({paths.topic("t"): Znode(data)}).topics["t"]

    made = znodes.topic(b"t" * 16, [(1,), (2,)], 0, b'{"theirs": 7}', scattered=before)
    found = image_of(made)
    assert found.scattered is before
    assert image_of(found.put_replicas(found.partitions).data).scattered is before
    assert image_of(found.put_replicas(found.partitions, scattered=True).data).scattered is True
    assert image_of(znodes.topic(b"t" * 16, [(1,), (1,)], 0, made)).scattered is (before or None)


@pytest.mark.parametrize(
    ("state", "alive", "expected"),
    [
        (PartitionState(isr=(3, 2)), {2, 3}, (2, (3, 2), ())),  # the order of the replicas decides
        (PartitionState(elr=(2, 3)), {2, 3}, (2, (2,), (3,))),  # the others stay candidates
        (PartitionState(isr=(1,), elr=(2, 3)), {2, 3}, (-1, (1,), (2, 3))),  # a broker in the ISR may hold a read lease
        (PartitionState(isr=(), elr=(2,)), {3}, (-1, (), (2,))),
        (PartitionState(isr=(1,)), {2, 3}, (-1, (1,), ())),
    ],
)
def test_who_is_elected(
    state: PartitionState, alive: set[int], expected: tuple[int, tuple[int, ...], tuple[int, ...]]
) -> None:
    leader, after = elected(state, (1, 2, 3), alive)
    after = normalise(after, (1, 2, 3), min_insync=2)
    assert (leader, after.isr, after.elr) == expected


def test_who_is_elected_alone_may_acknowledge_events_at_once() -> None:
    """Then the others lack some of them for long."""
    _, after = elected(PartitionState(elr=(1, 2, 3)), (1, 2, 3), {2, 3})
    assert normalise(after, (1, 2, 3), min_insync=1).elr == ()


def test_an_elr_is_of_an_isr_that_is_too_small() -> None:
    small = PartitionState(isr=(1,), elr=(1, 2, 9))
    assert normalise(small, (1, 2, 3), 2) == PartitionState(isr=(1,), elr=(2,), min_isr=2)
    assert normalise(small, (1, 2, 3), 1) == PartitionState(isr=(1,), min_isr=1)
    assert normalise(small, (1,), 5).min_isr == 1


@pytest.mark.parametrize("told", [None, [], "f", {"f": None}, {"f": 1}, {"f": {}}, {"f": {"max_version": "1"}}])
def test_a_feature_counts_when_all_brokers_know_it(told: Any) -> None:
    knows = znodes.registration(1, {"IN": ("h", 1)}, None)
    other = Document.of(knows).with_fields({"features": told})
    feature = znodes.OFFSET_RECORDS
    image = Image()
    assert image.level(feature) == 0
    image = image.after({"/brokers/ids/1": Znode(knows), "/brokers/ids/2": Znode(knows)})
    assert image.level(feature) == znodes.FEATURES[feature] == 1
    image = image.after({"/brokers/ids/3": Znode(other)})
    assert (len(image.brokers), image.level(feature)) == (3, 0)
    assert image.after({"/brokers/ids/3": Znode(knows)}).level(feature) == 1
    assert image.after({"/brokers/ids/3": None}).level(feature) == 1
