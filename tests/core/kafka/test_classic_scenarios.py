"""Runs classic_*.txt: what members of one classic group do, and what came of it. The commands:

group delay=3000 max=3                 begins anew
join WHO [topics=a,b] [id=ID] [instance=NAME] [session=MS] [rebalance=MS] [protocols=range:a,roundrobin:a]
         [type=consumer] [skip]        no id: it is told one first, unless `old` or an instance is there
sync WHO [gen=N] [give=WHO:TEXT,…]     WHO stands for the member id that it was told last
beat|commit WHO [gen=N] [id=ID]        commit: may it?
leave WHO | leave instance=NAME
time MS                                passes, step by step as things fall due
restart                                the broker comes back with what it has kept
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgpack
import pytest

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import Join, Joined, Rules
from krappy.core.kafka.faults import Refused
from tests.core.scenarios import check

SCENARIOS = sorted(Path(__file__).parent.glob("classic_*.txt"))


def subscription(topics: str) -> bytes:
    names = [name.encode() for name in topics.split("+") if name]
    return (
        b"\0\1" + len(names).to_bytes(4, "big") + b"".join(len(n).to_bytes(2, "big") + n for n in names) + b"\0\0\0\0"
    )


class Player:
    def __init__(self) -> None:
        self.run_group([], {})

    def run_group(self, words: list[str], options: dict[str, str]) -> list[str]:
        self.now = 0
        self.rules = Rules(
            int(options.get("delay", 0)), int(options.get("max", 1000)), int(options.get("bytes", 10**6))
        )
        self.group = ClassicGroup(self.rules)
        self.ids: dict[str, str] = {}  # who -> its current member id
        self.generations: dict[str, int] = {}
        self.count = 0
        return []

    def run_join(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        self.count += 1
        instance = options.get("instance")
        member_id = options.get("id", "" if instance or "new" in words else self.ids.get(who, ""))
        protocols = options.get("protocols", f"range:{options.get('topics', 't')}")
        ask = Join(
            member_id,
            instance,
            options.get("type", "consumer"),
            tuple((name, subscription(topics)) for name, topics in (each.split(":") for each in protocols.split(","))),
            int(options.get("session", 10_000)),
            int(options.get("rebalance", 60_000)),
            fresh_id=f"{who}-{self.count}",
            id_first="old" not in words,
            may_skip="skip" in words,
        )
        self.group.join(self.now, who, ask)
        return self._said()

    def run_sync(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        given = {}
        for each in filter(None, options.get("give", "").split(",")):
            name, _, text = each.partition(":")
            given[self.ids[name]] = text.encode()
        self.group.sync(
            self.now,
            who,
            options.get("id", self.ids.get(who, who)),
            int(options.get("gen", self.generations.get(who, -1))),
            options.get("instance"),
            options.get("type"),
            options.get("protocol"),
            given,
        )
        return self._said()

    def run_beat(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        generation = int(options.get("gen", self.generations.get(who, -1)))
        fault = self.group.heartbeat(
            self.now, options.get("id", self.ids.get(who, who)), generation, options.get("instance")
        )
        return [f"{who}: {fault.name}", *self._said()]

    def run_commit(self, words: list[str], options: dict[str, str]) -> list[str]:
        who = words[0]
        generation = int(options.get("gen", self.generations.get(who, -1)))
        try:
            self.group.check_commit(
                self.now, options.get("id", self.ids.get(who, "")), generation, options.get("instance")
            )
        except Refused as refusal:
            return [f"{who}: {refusal.fault.name}"]
        return [f"{who}: may commit"]

    def run_leave(self, words: list[str], options: dict[str, str]) -> list[str]:
        leaving = [(self.ids.get(who, who), None) for who in words]
        if "instance" in options:
            leaving = [(options.get("id", ""), options["instance"])]  # type: ignore[list-item]
        faults = self.group.leave(self.now, leaving)
        return [" ".join(["left:", *(fault.name for fault in faults)]), *self._said()]

    def run_time(self, words: list[str], options: dict[str, str]) -> list[str]:
        end = self.now + int(words[0])
        said = []
        while self.group.wake is not None and self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            self.group.tick(self.now)
            said += [f"at {self.now} {line}" for line in self._said()]
        self.now = end
        return said

    def run_restart(self, words: list[str], options: dict[str, str]) -> list[str]:
        state: Any = msgpack.unpackb(msgpack.packb(self.group.dump()))
        self.group = ClassicGroup.load(state, self.rules, self.now)
        return []

    def _said(self) -> list[str]:
        lines = []
        for who, answer in self.group.out:
            if answer.fault:
                lines.append(f"{who} < {answer.fault.name}")
                if isinstance(answer, Joined) and answer.fault.name == "MEMBER_ID_REQUIRED":
                    self.ids[who] = answer.member_id
                    lines[-1] += f" {answer.member_id}"
            elif isinstance(answer, Joined):
                self.ids[who], self.generations[who] = answer.member_id, answer.generation
                line = f"{who} < joined generation {answer.generation} as {answer.member_id} by {answer.protocol}"
                if answer.leader == answer.member_id:
                    line += f", leads {' '.join(each[0] for each in answer.members)}"
                lines.append(line + (", skips the assignment" if answer.skip_assignment else ""))
            else:
                lines.append(f"{who} < synced '{answer.assignment.decode()}'")
        self.group.out.clear()
        return lines

    def state(self) -> list[str]:
        group = self.group
        lines = [f"{self.now} ms: {group.state}, generation {group.generation}, leader {group.leader}"]
        for member in group.members.values():
            parked = " joining" * (member.join is not None) + " syncing" * (member.sync is not None)
            expires = "" if member.expires is None else f" until {member.expires}"
            static = f" ({member.instance_id})" if member.instance_id else ""
            lines.append(f"  {member.id}{static}{parked}{expires} '{member.assignment.decode()}'")
        return lines


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Player())


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 8
