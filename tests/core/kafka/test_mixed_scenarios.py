"""Runs mixed_*.txt: members of both protocols in one group, which moves from one to the other. The commands:

topics t:4 u:2                          these topics are there, with so many partitions
join WHO [topics=t+u] [owns=t0+t1] [instance=NAME] [id=ID] [new] [protocols=range] [session=MS] [rebalance=MS] [user]
sync WHO [give=WHO:t0+t1,…]             the classic protocol; `user`: the assignments come with user data
beat|commit WHO [gen=N]
leave WHO
enter WHO [topics=t] [instance=NAME]    KIP-848's: the first heartbeat
step WHO [owns=t0|nothing]              and the next
quit WHO [epoch=-2]
time MS
restart                                 the broker comes back with what it has kept

WHO is the member id in KIP-848's protocol; in the classic one it stands for the id that it was told last.
"""

from __future__ import annotations

from pathlib import Path

import msgpack
import pytest

from krappy.core.kafka import mixed
from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import Join, Joined, Rules, SyncAnswer
from krappy.core.kafka.faults import Refused
from krappy.core.kafka.migration import downgrade, downgrade_for, only_classic, replaces_last, upgrade
from krappy.core.kafka.modern import KnownTopic, ModernGroup, ModernRules
from krappy.core.kafka.modern_member import LEAVING, Beat
from krappy.core.kafka.subscription import assignment, encode_assignment
from tests.core.kafka.test_modern_scenarios import read, show
from tests.core.scenarios import check

SCENARIOS = sorted(Path(__file__).parent.glob("mixed_*.txt"))
RULES, MODERN_RULES = Rules(0), ModernRules(45_000, 100)


def named(text: str) -> list[tuple[str, int]]:
    return [] if text in ("", "nothing") else [(each[0], int(each[1:])) for each in text.split("+")]


def subscribe(topics: str, owns: str) -> bytes:
    """A ConsumerProtocolSubscription of version 3."""
    names = [name.encode() for name in topics.split("+")]
    start = b"\0\3" + len(names).to_bytes(4, "big") + b"".join(len(n).to_bytes(2, "big") + n for n in names)
    owned = encode_assignment(named(owns))[2:-4]
    return start + b"\xff\xff\xff\xff" + owned + b"\xff\xff\xff\xff" + b"\0\2r1"


class Player:
    def __init__(self) -> None:
        self.now = 0
        self.group: ClassicGroup | ModernGroup = ClassicGroup(RULES)
        self.topics: dict[str, KnownTopic] = {}
        self.ids: dict[str, str] = {}
        self.epochs: dict[str, int] = {}
        self.count = 0

    def run_topics(self, words: list[str], options: dict[str, str]) -> list[str]:
        parts = [word.split(":") for word in words]
        self.topics = {name: KnownTopic(name[0].encode() * 16, int(count)) for name, count in parts}
        return []

    # --- the classic protocol

    def run_join(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        self.count += 1
        metadata = subscribe(options.get("topics", "t"), options.get("owns", ""))
        ask = Join(
            options.get("id", "" if "new" in words else self.ids.get(who, "")),
            options.get("instance"),
            "consumer",
            tuple((name, metadata) for name in options.get("protocols", "range").split(",")),
            int(options.get("session", 10_000)),
            int(options.get("rebalance", 60_000)),
            fresh_id=f"{who}-{self.count}",
            may_skip=True,
        )
        group = self.group
        if isinstance(group, ModernGroup) and group.members:
            if not replaces_last(group, ask):
                try:
                    return self._said(who, mixed.join(group, self.now, ask, self.topics))
                except Refused as refusal:
                    return [f"{who} < {refusal.fault.name}"]
            group = downgrade_for(group, ask, RULES, self.now, self.topics)
        elif isinstance(group, ModernGroup):
            epoch, group = group.epoch, ClassicGroup(RULES)
            group.generation = epoch
        assert isinstance(group, ClassicGroup)
        self.group = group
        group.join(self.now, who, ask)
        return self._said()

    def run_sync(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        given = {}
        for each in filter(None, options.get("give", "").split(",")):
            name, _, text = each.partition(":")
            data = encode_assignment(named(text))
            given[self.ids[name]] = data[:-4] + b"\0\0\0\4user" if "user" in words else data
        member, generation = self.ids.get(who, who), int(options.get("gen", self.epochs.get(who, -1)))
        instance = options.get("instance")
        if isinstance(self.group, ClassicGroup):
            self.group.sync(self.now, who, member, generation, instance, assignments=given)
            return self._said()
        try:
            return self._said(
                who, mixed.sync(self.group, self.now, (member, instance, generation), None, None, self.topics)
            )
        except Refused as refusal:
            return [f"{who} < {refusal.fault.name}"]

    def run_beat(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        member, generation = self.ids.get(who, who), int(options.get("gen", self.epochs.get(who, -1)))
        instance = options.get("instance")
        if isinstance(self.group, ClassicGroup):
            return [f"{who}: {self.group.heartbeat(self.now, member, generation, instance).name}", *self._said()]
        try:
            fault = mixed.heartbeat(self.group, self.now, member, instance, generation, self.topics)
        except Refused as refusal:
            fault = refusal.fault
        return [f"{who}: {fault.name}"]

    def run_commit(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        member, epoch = self.ids.get(who, who), int(options.get("gen", self.epochs.get(who, -1)))
        try:
            if isinstance(self.group, ClassicGroup):
                self.group.check_commit(self.now, member, epoch, None)
            else:
                self.group.check_commit(member, epoch)
        except Refused as refusal:
            return [f"{who}: {refusal.fault.name}"]
        return [f"{who}: may commit"]

    def run_leave(self, words: list[str], options: dict[str, str]) -> list[str]:
        member = self.ids.get(words[0], words[0])
        if isinstance(self.group, ClassicGroup):
            (fault,) = self.group.leave(self.now, [(member, None)])
        else:
            fault = self.group.remove(member, None)
        return [f"left: {fault.name}", *self._after()]

    # --- KIP-848's

    def run_enter(self, words: list[str], options: dict[str, str]) -> list[str]:
        topics = tuple(options.get("topics", "t").split("+"))
        beat = Beat(words[0], 0, options.get("instance"), rebalance_ms=60_000, topics=topics)
        before: list[str] = []
        if isinstance(self.group, ClassicGroup):
            if self.group.empty:
                generation, self.group = self.group.generation, ModernGroup(MODERN_RULES)
                self.group.epoch = self.group.target_epoch = generation
            else:
                classic = self.group
                try:
                    self.group = upgrade(classic, MODERN_RULES, self.now, self.topics)
                except Refused as refusal:
                    return [f"{words[0]} < {refusal.fault.name}: {refusal}"]
                before = [f"{reply.token} < {reply.answer.fault.name}" for reply in classic.out]
        return before + self._beat(words[0], beat)

    def run_step(self, words: list[str], options: dict[str, str]) -> list[str]:
        owned = read(options["owns"]) if "owns" in options else None
        return self._beat(words[0], Beat(words[0], self.epochs[words[0]], options.get("instance"), owned=owned))

    def run_quit(self, words: list[str], options: dict[str, str]) -> list[str]:
        epoch = int(options.get("epoch", LEAVING))
        return self._beat(words[0], Beat(words[0], epoch, options.get("instance"))) + self._after()

    def _beat(self, who: str, beat: Beat) -> list[str]:
        if not isinstance(self.group, ModernGroup):
            return [f"{who} < GROUP_ID_NOT_FOUND"]
        try:
            beaten = self.group.beat(self.now, beat, self.topics)
        except Refused as refusal:
            return [f"{who} < {refusal.fault.name}"]
        self.epochs[who] = beaten.epoch
        told = "" if beaten.assignment is None else f", has {show(beaten.assignment)}"
        return [f"{who} < epoch {beaten.epoch}{told}"]

    # --- time

    def run_time(self, words: list[str], options: dict[str, str]) -> list[str]:
        end = self.now + int(words[0])
        said = []
        while self.group.wake is not None and self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            self.group.tick(self.now)
            said += self._after()
        self.now = end
        return said

    def run_restart(self, words: list[str], options: dict[str, str]) -> list[str]:
        state = msgpack.unpackb(msgpack.packb(self.group.dump()))
        if isinstance(self.group, ClassicGroup):
            self.group = ClassicGroup.load(state, RULES, self.now)
        else:
            members = [msgpack.unpackb(msgpack.packb(each.dump())) for each in self.group.members.values()]
            self.group = ModernGroup.load(state, members, MODERN_RULES, self.now)
        return []

    def _after(self) -> list[str]:
        """What the broker does after each command."""
        if isinstance(self.group, ModernGroup) and only_classic(self.group):
            self.group = downgrade(self.group, RULES, self.now, self.topics)
        return self._said()

    def _said(self, who: str = "", answer: Joined | SyncAnswer | None = None) -> list[str]:
        answers = [] if answer is None else [(who, answer)]
        if isinstance(self.group, ClassicGroup):
            answers += [(reply.token, reply.answer) for reply in self.group.out]
            self.group.out.clear()
        lines = []
        for who, answer in answers:
            if answer.fault:
                lines.append(f"{who} < {answer.fault.name}")
            elif isinstance(answer, Joined):
                self.ids[who], self.epochs[who] = answer.member_id, answer.generation
                leads = f", leads {' '.join(each[0] for each in answer.members)}" if answer.members else ""
                leads += ", skips the assignment" if answer.skip_assignment else ""
                lines.append(f"{who} < joined generation {answer.generation} as {answer.member_id}{leads}")
            else:
                lines.append(f"{who} < synced {_show(answer.assignment)}")
        return lines

    def state(self) -> list[str]:
        group = self.group
        if isinstance(group, ClassicGroup):
            lines = [f"{self.now} ms: classic, {group.state}, generation {group.generation}"]
            for each in group.members.values():
                parked = " joining" * (each.join is not None) + " syncing" * (each.sync is not None)
                lines.append(f"  {each.id}{parked} {_show(each.assignment)}")
            return lines
        lines = [f"{self.now} ms: consumer, {group.state}, epoch {group.epoch}"]
        for member in group.members.values():
            kind = "classic " * (member.classic is not None)
            revoking = f", gives up {show(member.revoking)}" if member.revoking else ""
            due = "" if member.revoke_by is None else f" by {member.revoke_by}"
            what = f"{show(member.assigned)}{revoking}; to have {show(group.target.get(member.id, frozenset()))}"
            lines.append(f"  {kind}{member.id} epoch {member.epoch} {member.step}{due}: {what}")
        return lines


def _show(data: bytes) -> str:
    found = assignment(data)
    assert found is not None
    return " ".join(f"{topic}{index}" for topic, index in sorted(found.partitions)) or "nothing"


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Player())


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 4
