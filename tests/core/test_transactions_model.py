"""Random requests from several producers on one transactional id, some of whom lose their answers, compared with what
must hold for any coordinator: one owner at a time, one outcome for each transaction, and no outcome but the one that
was told."""

from __future__ import annotations

from collections import Counter
from random import Random

from krappy.core import transactions as core
from krappy.core.transactions import Transaction, TxnStage
from krappy.errors import InvalidTransaction, KrappyError, TransactionFenced, TransactionPending
from krappy.types import TopicPartition

AT = TopicPartition("t", 0)
OTHER = TopicPartition("t", 1)
MARKS = {TxnStage.PREPARE_COMMIT: True, TxnStage.PREPARE_ABORT: False}


class Client:
    """What one producer believes: its own id and epoch, and whether a transaction of its own is open. `bumps`: it knows
    that each end raises its epoch."""

    def __init__(self, bumps: bool) -> None:
        self.bumps = bumps
        self.id = self.epoch = -1
        self.asked: bool | None = None  # the end that it has asked for, until it is told what came of it


class Coordinated:
    def __init__(self) -> None:
        self.now = 0
        self.state: Transaction | None = None
        self.next_id = 100
        self.clients = [Client(bumps) for bumps in (True, True, False)]
        self.number = 0  # the number of the transaction that is open, or was open last
        self.outcomes: dict[int, bool] = {}  # by number: whether it was committed
        self.highest: dict[int, int] = {}  # producer id -> epoch

    def owns(self, client: Client) -> bool:
        return self.state is not None and (client.id, client.epoch) == (self.state.producer_id, self.state.epoch)

    def take(self, state: Transaction) -> None:
        """Takes a transition, as if it were on disk."""
        before, self.state = self.state, state
        assert state.epoch >= self.highest.get(state.producer_id, 0), "an epoch went back"
        self.highest[state.producer_id] = state.epoch
        was_open = before is not None and before.stage is TxnStage.ONGOING
        if state.stage is TxnStage.ONGOING and not was_open:
            self.number += 1
        if state.stage in MARKS and was_open:
            assert self.number not in self.outcomes, "decided twice"
            self.outcomes[self.number] = MARKS[state.stage]
        if before is not None and before.prepared:
            assert state.stage is core.COMPLETED[before.stage], "a decision was not carried out"

    def init(self, client: int, knows: bool, told: bool) -> None:
        ours = self.clients[client]
        expected = (ours.id, ours.epoch) if knows else (-1, -1)
        new_id = -1
        if core.needs_new_id(self.state, expected[1]):
            new_id, self.next_id = self.next_id, self.next_id + 1
        try:
            begun = core.begin(
                self.state, "a", 1000, self.now, new_id=new_id, expected_id=expected[0], expected_epoch=expected[1]
            )
        except (TransactionPending, TransactionFenced):
            return
        self.take(begun)
        if told and not begun.prepared:
            for other in self.clients:
                if not knows and other is not ours:
                    assert (other.id, other.epoch) != (begun.producer_id, begun.epoch), "two have the same epoch"
            ours.id, ours.epoch, ours.asked = begun.producer_id, begun.epoch, None

    def add(self, client: int, at: TopicPartition) -> None:
        ours = self.clients[client]
        try:
            self.take(core.add(self.state, ours.id, ours.epoch, self.now, [at]))
        except KrappyError:
            return
        ours.asked = None
        core.check_write(self.state, ours.epoch, at)

    def end(self, client: int, commit: bool, told: bool) -> None:
        ours, new_id = self.clients[client], -1
        if ours.bumps and core.needs_id_to_end(self.state, ours.epoch):
            new_id, self.next_id = self.next_id, self.next_id + 1
        began = self.state is not None and self.state.stage is TxnStage.ONGOING
        try:
            ended = core.end(self.state, ours.id, ours.epoch, self.now, commit=commit, bumps=ours.bumps, new_id=new_id)
        except TransactionPending:
            return
        except InvalidTransaction:
            if ours.asked is not None and self.number in self.outcomes:
                assert ours.asked != commit or self.outcomes[self.number] != commit
            return
        except KrappyError:
            return
        if ended is not self.state:
            assert began or (ours.bumps and not commit)
            self.take(ended)
        elif not ours.bumps:
            began = True
        if began:
            assert self.outcomes[self.number] == commit, "it was told of another outcome than there was"
        ours.asked = None if told else commit
        if told and ours.bumps:
            before = ours.id, ours.epoch
            ours.id, ours.epoch = core.after_end(ended)
            assert before != (ours.id, ours.epoch), "it ended, and its epoch is as before"

    def complete(self) -> None:
        if self.state is not None and self.state.prepared:
            self.take(core.complete(self.state, self.now))

    def time(self, ms: int) -> None:
        self.now += ms
        if self.state is not None and core.overdue(self.state, self.now):
            self.take(core.fence(self.state, self.now))

    def wear_out(self) -> None:
        if self.state is not None and self.state.stage is TxnStage.EMPTY and self.state.last_epoch < 0:
            owners = [each for each in self.clients if (each.id, each.epoch) == self.state[1:3]]
            self.take(self.state._replace(epoch=core.MAX_EPOCH))
            for each in owners:
                each.epoch = core.MAX_EPOCH

    def only_the_owner_writes(self) -> None:
        state = self.state
        if state is None:
            return
        for epoch in {each.epoch for each in self.clients if each.id == state.producer_id} - {state.epoch}:
            for at in (AT, OTHER):
                try:
                    core.check_write(state, epoch, at)
                except KrappyError:
                    continue
                raise AssertionError(f"epoch {epoch} may write, and {state.epoch} is the owner's")
        if state.stage is not TxnStage.ONGOING:
            assert state.due_ms is None


def step(machine: Coordinated, chance: Random) -> None:
    """Mostly the owner goes on with its work; now and then another producer comes, or an old one comes back."""
    owner = next((n for n, each in enumerate(machine.clients) if machine.owns(each)), 0)
    client = owner if chance.random() < 0.8 else chance.randrange(3)
    told = chance.random() < 0.7
    match chance.choices(["init", "add", "end", "complete", "time", "wear out"], [2, 6, 8, 6, 1, 1])[0]:
        case "init":
            machine.init(client, chance.random() < 0.5, told)
        case "add":
            machine.add(client, chance.choice([AT, OTHER]))
        case "end":
            machine.end(client, chance.random() < 0.6, told)
        case "complete":
            machine.complete()
        case "time":
            machine.time(chance.choice([1, 400, 1000]))
        case "wear out":
            machine.wear_out()
    machine.only_the_owner_writes()


def test_one_owner_and_one_outcome() -> None:
    outcomes: Counter[bool] = Counter()
    for seed in range(300):
        machine, chance = Coordinated(), Random(seed)
        try:
            for _ in range(100):
                step(machine, chance)
        except AssertionError as error:
            error.add_note(f"seed {seed}: {machine.state}")
            raise
        outcomes.update(machine.outcomes.values())
    assert min(outcomes[True], outcomes[False]) > 500, "hardly anything was tried"
