"""Runs modern_*.txt: heartbeats of the members of one KIP-848 group, and what came of them. The commands:

    group session=45000 max=3              begins anew
    topics t:4 u:2                         these topics are there, with so many partitions
    join WHO [topics=t+u | regex=R] [instance=NAME] [rebalance=MS] [assignor=NAME] [id=ID]
    beat WHO [owns=t0+t1|nothing] [epoch=N] [topics=…] [instance=NAME] [id=ID] [full]
    leave WHO [epoch=-2] [instance=NAME]
    commit WHO [epoch=N]                   may it?
    time MS                                passes
    restart                                the broker comes back with what it has kept

Partitions are written t0: topic t, partition 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from krappy.core.kafka.assignors import Partition
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.modern import KnownTopic, ModernGroup, ModernRules
from krappy.core.kafka.modern_member import JOINING, LEAVING, Beat
from tests.core.scenarios import check

SCENARIOS = sorted(Path(__file__).parent.glob("modern_*.txt"))


def read(text: str) -> frozenset[Partition]:
    return (
        frozenset((each[0].encode() * 16, int(each[1:])) for each in text.split("+"))
        if text != "nothing"
        else frozenset()
    )


def show(partitions: frozenset[Partition]) -> str:
    return " ".join(f"{chr(topic[0])}{index}" for topic, index in sorted(partitions)) or "nothing"


class Player:
    def __init__(self) -> None:
        self.run_group([], {})

    def run_group(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.now = 0
        self.rules = ModernRules(int(options.get("session", 45_000)), int(options.get("max", 1000)))
        self.group = ModernGroup(self.rules)
        self.kept: dict[str, Any] = {}
        self.topics: dict[str, KnownTopic] = {}
        self.epochs: dict[str, int] = {}
        return []

    def run_topics(self, words: list[str], options: dict[str, str]) -> list[str]:
        parts = [word.split(":") for word in words]
        self.topics = {name: KnownTopic(name[0].encode() * 16, int(count)) for name, count in parts}
        return []

    def run_join(self, words: list[str], options: dict[str, str]) -> list[str]:
        topics = options.get("topics", None if "regex" in options else "t")
        return self._beat(words[0], JOINING, topics, options, rebalance=int(options.get("rebalance", 10_000)))

    def run_beat(self, words: list[str], options: dict[str, str]) -> list[str]:
        epoch = int(options.get("epoch", self.epochs.get(words[0], 1)))
        return self._beat(words[0], epoch, options.get("topics"), options)

    def run_leave(self, words: list[str], options: dict[str, str]) -> list[str]:
        return self._beat(words[0], int(options.get("epoch", LEAVING)), None, options)

    def _beat(
        self, who: str, epoch: int, topics: str | None, options: dict[str, str], rebalance: int = -1
    ) -> list[str]:
        beat = Beat(
            options.get("id", who),
            epoch,
            options.get("instance"),
            rebalance_ms=rebalance,
            topics=None if topics is None else tuple(topics.split("+")),
            regex=options.get("regex"),
            assignor=options.get("assignor"),
            owned=read(options["owns"]) if "owns" in options else None,
        )
        try:
            beaten = self.group.beat(self.now, beat, self.topics)
        except Refused as refusal:
            return [f"{who} < {refusal.fault.name}: {refusal}"]
        finally:
            self._keep()
        self.epochs[who] = beaten.epoch
        told = "" if beaten.assignment is None else f", has {show(beaten.assignment)}"
        return [f"{who} < epoch {beaten.epoch}{told}"]

    def run_commit(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        try:
            self.group.check_commit(who, int(options.get("epoch", self.epochs.get(who, -1))))
        except Refused as refusal:
            return [f"{who}: {refusal.fault.name}"]
        return [f"{who}: may commit"]

    def run_time(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.now += int(words[0])
        if self.group.wake is not None and self.group.wake <= self.now:
            self.group.tick(self.now)
            self._keep()
        return []

    def run_restart(self, words: list[str], options: dict[str, str]) -> list[str]:
        members = [msgpack.unpackb(packed) for who, packed in self.kept.items() if who]
        self.group = ModernGroup.load(msgpack.unpackb(self.kept[""]), members, self.rules, self.now)
        return []

    def _keep(self) -> None:
        """Keeps the records as the broker does."""
        if not self.group.saved:
            self.kept[""] = msgpack.packb(self.group.dump())
            self.group.saved = True
        for who in self.group.dirty:
            state = self.group.dump_member(who)
            if state is None:
                self.kept.pop(who, None)
            else:
                self.kept[who] = msgpack.packb(state)
        self.group.dirty = set()

    def state(self) -> list[str]:
        group = self.group
        lines = [f"{self.now} ms: {group.state}, epoch {group.epoch}, target of epoch {group.target_epoch}"]
        for member in group.members.values():
            target = show(group.target.get(member.id, frozenset()))
            static = f" ({member.instance_id})" if member.instance_id else ""
            revoking = f", gives up {show(member.revoking)}" if member.revoking else ""
            who = f"  {member.id}{static} epoch {member.epoch} {member.step}"
            lines.append(f"{who}: {show(member.assigned)}{revoking}; to have {target}")
        return lines


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Player())


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 6
