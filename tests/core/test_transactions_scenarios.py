"""Runs tests/scenarios/transactions_*.txt: each is a script of what producers ask of transactional ids, and what came
of it. Written to be read in review.

After a change of behaviour: KRAPPY_REWRITE_SCENARIOS=1 pytest tests/core/test_transactions_scenarios.py, then read
the diff.

A scenario is blocks of command lines, `----`, and what they said and left behind. A producer is ID/EPOCH, as it was
told by `init`. The commands:

    init NAME [timeout=MS] [as=PRODUCER]      a producer takes the transactional id over, or goes on as who it was
    add NAME PRODUCER t-0 t-1                 partitions
    group NAME PRODUCER GROUP                 a group whose offsets will be staged
    stage NAME PRODUCER GROUP                 may offsets be staged now?
    write PRODUCER t-0                        may a batch be appended now?
    commit|abort NAME PRODUCER [bumps=yes]    with bumps the end raises the epoch
    complete NAME                             all markers are written
    time MS                                   passes; what is overdue is fenced
    forget MS                                 ids that nobody used for so long
    worn NAME                                 the id's epoch is the last but one
"""

from __future__ import annotations

from pathlib import Path

import pytest

from krappy.core import transactions as core
from krappy.core.transactions import Transaction
from krappy.errors import KrappyError
from krappy.types import TopicPartition
from tests.core.scenarios import check, obey

SCENARIOS = sorted((Path(__file__).parent.parent / "scenarios").glob("transactions_*.txt"))
MAXIMUM_MS = 900_000


class Coordinator:
    """Takes every transition at once, as if it were on disk."""

    def __init__(self) -> None:
        self.now = 0
        self.next_id = 100
        self.all: dict[str, Transaction] = {}

    def run_init(self, words: list[str], options: dict[str, str]) -> str:
        name, timeout = words[0], int(options.get("timeout", 60_000))
        core.check_timeout(timeout, MAXIMUM_MS)
        expected_id, expected_epoch = producer(options["as"]) if "as" in options else (-1, -1)
        found = self.all.get(name)
        new_id = -1
        if core.needs_new_id(found, expected_epoch):
            new_id, self.next_id = self.next_id, self.next_id + 1
        begun = core.begin(
            found, name, timeout, self.now, new_id=new_id, expected_id=expected_id, expected_epoch=expected_epoch
        )
        self.all[name] = begun
        return "ask again" if begun.prepared else f"{begun.producer_id}/{begun.epoch}"

    def run_add(self, words: list[str], options: dict[str, str]) -> str:
        partitions = [TopicPartition(at.rpartition("-")[0], int(at.rpartition("-")[2])) for at in words[2:]]
        return self._keep(words[0], core.add(self.all.get(words[0]), *producer(words[1]), self.now, partitions))

    def run_group(self, words: list[str], options: dict[str, str]) -> str:
        return self._keep(words[0], core.add(self.all.get(words[0]), *producer(words[1]), self.now, groups=words[2:]))

    def run_stage(self, words: list[str], options: dict[str, str]) -> str:
        core.check_offsets(self.all.get(words[0]), *producer(words[1]), words[2])
        return "yes"

    def run_write(self, words: list[str], options: dict[str, str]) -> str:
        number, epoch = producer(words[0])
        found = next((each for each in self.all.values() if each.producer_id == number), None)
        topic, _, index = words[1].rpartition("-")
        core.check_write(found, epoch, TopicPartition(topic, int(index)))
        return "yes"

    def run_commit(self, words: list[str], options: dict[str, str]) -> str:
        return self._end(words, options, commit=True)

    def run_abort(self, words: list[str], options: dict[str, str]) -> str:
        return self._end(words, options, commit=False)

    def _end(self, words: list[str], options: dict[str, str], commit: bool) -> str:
        found, who = self.all.get(words[0]), producer(words[1])
        bumps, new_id = options.get("bumps") == "yes", -1
        if bumps and core.needs_id_to_end(found, who[1]):
            new_id, self.next_id = self.next_id, self.next_id + 1
        ended = core.end(found, *who, self.now, commit=commit, bumps=bumps, new_id=new_id)
        told = self._keep(words[0], ended)
        if not bumps:
            return told
        id, epoch = core.after_end(ended)
        return f"{told}, and it is {id}/{epoch}"

    def run_complete(self, words: list[str], options: dict[str, str]) -> str:
        return self._keep(words[0], core.complete(self.all[words[0]], self.now))

    def run_time(self, words: list[str], options: dict[str, str]) -> str:
        self.now += int(words[0])
        late = [each for each in self.all.values() if core.overdue(each, self.now)]
        for each in late:
            self.all[each.name] = core.fence(each, self.now)
        return f"late: {', '.join(each.name for each in late) or 'none'}"

    def run_forget(self, words: list[str], options: dict[str, str]) -> str:
        old = [each.name for each in self.all.values() if core.expired(each, self.now, int(words[0]))]
        for name in old:
            del self.all[name]
        return f"dead: {', '.join(old) or 'none'}"

    def run_worn(self, words: list[str], options: dict[str, str]) -> str:
        return self._keep(words[0], self.all[words[0]]._replace(epoch=core.MAX_EPOCH))

    def _keep(self, name: str, changed: Transaction) -> str:
        same = self.all.get(name) is changed
        self.all[name] = changed
        return "as it was" if same else "done"

    def state(self) -> list[str]:
        lines = [f"{self.now} ms"]
        for each in self.all.values():
            line = f"  {each.name}: {each.stage} {each.producer_id}/{each.epoch}"
            if each.last_epoch != core.NO_EPOCH:
                line += f" before {each.last_id}/{each.last_epoch}"
            if each.partitions or each.groups:
                line += f" with {' '.join([*map(str, sorted(each.partitions)), *sorted(each.groups)])}"
            if each.due_ms is not None:
                line += f" until {each.due_ms}"
            lines.append(line)
        return lines


def producer(word: str) -> tuple[int, int]:
    number, _, epoch = word.partition("/")
    return int(number), int(epoch)


def say(coordinator: Coordinator, line: str) -> list[str]:
    """The command with its answer, or with the error that refused it."""
    try:
        return [f"{line}: {obey(coordinator, line)}"]
    except KrappyError as error:
        return [f"{line}: {error.name}"]


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    check(path, Coordinator(), say)


def test_there_are_scenarios() -> None:
    assert len(SCENARIOS) >= 5
