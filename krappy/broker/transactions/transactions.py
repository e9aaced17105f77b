"""The transaction coordinator: transitions made durable, and what follows from them (KIP-98, KIP-360, KIP-447).

A broker that is alone coordinates all transactional ids. A broker of a cluster coordinates the ids whose partition of
`__transaction_state` it leads (replicated.py). Rules of this file:

- core/transactions.py decides. The next state is first made durable, then set in memory, then acted on.
- All that follows from a state is done in the term in which it was read. When that is over, the next coordinator goes
  on.
- A broker that was deposed, and does not know it yet, would refuse what its successor allows. For clients a refusal is
  fatal. So it is told only once it is sure that the state which it follows from was the latest one (`_judged`).
- One request at a time for each transactional id. The next one waits until the transaction that was ended is completed.
  A request is finished even if its client is gone.
- To complete a transaction, a marker is written to each of its partitions, after all that was published there. Then the
  groups' staged offsets are settled (markers.py). All of this may be done twice. When that fails, it is tried again;
  after a crash it is done on the next start, or by the next coordinator. Only then does the same producer go on.
- Nothing is decided, and no transaction begins, while a backup is taken (`Runtime.decisions`): see `upkeep/backup.py`.
- A transaction that is open in a partition and belongs to no transactional id is aborted on start.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import trio

from krappy.broker.kafka_groups.registry import check_name
from krappy.broker.transactions.keeper import LocalTransactions, Term, TransactionKeeper
from krappy.broker.transactions.markers import Markers, group_parts
from krappy.broker.transactions.replicated import ReplicatedTransactions
from krappy.broker.transactions.turns import IdTurns
from krappy.core import transactions as core
from krappy.core.cluster.roles import Role
from krappy.core.owned_memory import OwnedMemory
from krappy.core.transactions import Transaction, TxnStage
from krappy.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    InvalidTransaction,
    KrappyError,
    Overloaded,
    ProducerFenced,
    TransactionFenced,
    UnknownProducerMapping,
)
from krappy.ports import TransactionalSender
from krappy.ports.audit import whose
from krappy.types import TopicPartition
from krappy.waiting import HANGS_S, Errands

if TYPE_CHECKING:
    from krappy.broker.runtime import Runtime
    from krappy.broker.transactions.producer_ids import ProducerIds
    from krappy.store.transactions import TransactionStore

EXPIRY_CHECK_S = 3600.0  # Kafka's transaction.remove.expired.transaction.cleanup.interval.ms
RETRY_S = 1.0  # pause after the disk or another broker has refused
REFUSALS = (InvalidTransaction, ProducerFenced, TransactionFenced, UnknownProducerMapping)  # that follow from a state
MEMORY_SHARE = 4  # transactional ids may take 1/MEMORY_SHARE of the memory budget, in addition to it


class TransactionCoordinator:
    def __init__(
        self,
        runtime: Runtime,
        store: TransactionStore,
        producer_ids: ProducerIds,
        markers: Markers,
        *,
        replicated: bool,
    ) -> None:
        """`replicated`: in a cluster."""
        self._runtime = runtime
        self._producer_ids = producer_ids
        self.markers = markers
        self.keeper: TransactionKeeper = LocalTransactions(runtime, store, self._take)
        if replicated:
            self.keeper = ReplicatedTransactions(runtime, self._take, self._give_up)
        self._max_timeout_ms = runtime.config.transaction_max_timeout_ms
        self._life_ms = runtime.config.transactional_id_expiration_ms
        self._all: dict[str, Transaction] = {}
        self._names: dict[int, str] = {}  # by producer id
        config = runtime.config
        self._memory = OwnedMemory(config.memory_bytes // MEMORY_SHARE, fair=config.authorizes)  # of all ids
        self._number = OwnedMemory(config.max_transactional_ids, fair=config.authorizes)
        self._owners: dict[str, str] = {}  # by id, for whom it counts: for who has changed it last
        self._turns = IdTurns()
        self._due: dict[str, int] = {}  # when an ongoing transaction times out
        self._woken = trio.Event()
        self._looks_at = math.inf  # ms: when `_watch` wakes by itself
        self._watching = trio.CancelScope()
        self._ended = trio.Event()
        self._opened = False

    # --- life

    async def open(self) -> None:
        """Loads all transactions and goes on with them; in a cluster with each when it begins to coordinate it. Raises
        StorageError for a state that can't be read."""
        self.keeper.begin()
        self._opened = True
        if not self.keeper.replicated:
            self._abort_orphans()
        self._runtime.spawn(self._watch)

    def _take(self, ids: Iterable[Transaction], term: Term) -> None:
        """Goes on with these ids, which this broker coordinates from now on."""
        now = self._now()
        for transaction in ids:
            started, updated = min(now, transaction.started_ms), min(now, transaction.updated_ms)
            self._set(transaction._replace(started_ms=started, updated_ms=updated))
            self._charge("", transaction.memory, 1)
            if transaction.prepared:
                self._runtime.spawn(self._finish, transaction.name, term)

    def _give_up(self, is_in: Callable[[str], bool]) -> None:
        """Forgets the ids with these names, which another broker coordinates now."""
        for transaction in [each for each in self._all.values() if is_in(each.name)]:
            self._drop(transaction)

    def _drop(self, transaction: Transaction) -> None:
        """Removes an id from memory."""
        self._charge(self._owners.pop(transaction.name, ""), -transaction.memory, -1)
        del self._all[transaction.name]
        self._names.pop(transaction.producer_id, None)
        self._due.pop(transaction.name, None)

    def _abort_orphans(self) -> None:
        """Aborts open transactions of no transactional id, as after a power loss with durability "os": nothing else
        would end them."""
        for topic in self._runtime.topics.values():
            for partition in topic.local.values():
                if partition.role is not Role.LEADER:
                    continue
                at = TopicPartition(topic.name, partition.index)
                for producer_id in list(partition.stability.open):
                    if producer_id in self._producer_ids.owned:
                        continue
                    found = self._of(producer_id)
                    alive = found is not None and (found.stage is TxnStage.ONGOING or found.prepared)
                    if found is None or not alive or at not in found.partitions:
                        self._runtime.report("transaction_orphaned", partition=str(partition), producer_id=producer_id)
                        partition.end_transaction(producer_id, found.epoch if found else 0, commit=False)

    async def close(self) -> None:
        """Stops. The next start completes transactions that are not complete yet."""
        self._turns.closed = True
        self._watching.cancel()
        if self._opened:
            await self._ended.wait()
            if self._runtime.clock.was_set:
                for transaction in self._all.values():
                    if transaction.stage is TxnStage.ONGOING and not self.keeper.replicated:
                        self.keeper.term(transaction.name).keep(transaction)

    def _set(self, transaction: Transaction) -> None:
        """Sets a state in memory that is durable."""
        before = self._all.get(transaction.name)
        if before is not None and before.producer_id != transaction.producer_id:
            self._names.pop(before.producer_id, None)
        self._all[transaction.name] = transaction
        self._names[transaction.producer_id] = transaction.name
        due = transaction.due_ms
        if due is None:
            self._due.pop(transaction.name, None)
        else:
            self._due[transaction.name] = due
            if due < self._looks_at:
                self._woken.set()

    def _of(self, producer_id: int) -> Transaction | None:
        name = self._names.get(producer_id)
        return None if name is None else self._all[name]

    def _now(self) -> int:
        """Steady ms: setting the wall clock ends no transaction."""
        return self._runtime.clock.steady_ms()

    # --- requests

    async def init_producer(
        self, name: str, timeout_ms: int, expected_id: int = core.NO_ID, expected_epoch: int = core.NO_EPOCH
    ) -> tuple[int, int]:
        """InitProducerId: gives (producer id, epoch) to a producer that takes over this transactional id.

        Its open transaction is aborted first. Raises as core's `begin`; InvalidTransactionTimeout.
        """
        core.check_timeout(timeout_ms, self._max_timeout_ms)
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = self._all.get(name)
            if found is None:
                core.check_name(name)
                self._check_number()
            for _ in range(2):
                new_id = core.NO_ID
                if core.needs_new_id(found, expected_epoch):
                    with self._number.reserved(whose(), int(found is None)):
                        new_id = await self._producer_ids.new()
                begin = partial(core.begin, new_id=new_id, expected_id=expected_id, expected_epoch=expected_epoch)
                begun = await self._judged(term, found, partial(begin, found, name, timeout_ms, self._now()))
                if begun.prepared:
                    await self._runtime.decisions.wait()
                await self._save(term, begun)
                if not begun.prepared:
                    return begun.producer_id, begun.epoch
                await self._complete(term, begun)
                term.check(name)
                found = self._all[name]
            raise core.pending(found or begun)

    def _check_number(self) -> None:
        """Raises Overloaded when there are already as many transactional ids as allowed, or as one user may have."""
        if not self._number.has_room(whose(), 1):
            text = f"there are {len(self._all)} transactional ids of {self._number.most} (max_transactional_ids), and "
            text += "one user has at most as many as are left for all others; those that nobody uses are forgotten "
            raise Overloaded(f"{text}after {self._life_ms} ms (transactional_id_expiration_ms)")

    async def add_partitions(
        self, name: str, producer_id: int, epoch: int, partitions: Iterable[TopicPartition]
    ) -> int:
        """AddPartitionsToTxn. Gives the transaction's number. Raises as core's `add`."""
        added = tuple(partitions)
        changed = await self._change(
            name, lambda found, now: core.add(found, producer_id, epoch, now, partitions=added)
        )
        return changed.number

    async def add_group(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """AddOffsetsToTxn: offsets of the group are about to be staged. Raises as core's `add`, and Refused for what
        can't be a group's name.

        Not synced if the same database has the groups, too: then the sync of the staged offsets covers it. If a power
        loss takes it, nothing was staged, and staging is refused.
        """
        check_name(group)
        await self._change(
            name,
            lambda found, now: core.add(found, producer_id, epoch, now, groups=(group,)),
            sync=self.keeper.replicated,
        )

    async def end(
        self, name: str, producer_id: int, epoch: int, commit: bool, *, bumps: bool = False
    ) -> tuple[int, int]:
        """EndTxn: decides and completes; if the disk refuses the latter, a task tries again. Gives the id and epoch
        that the producer has from now on: with `bumps` another epoch. Raises as core's `end`."""
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = self._all.get(name)
            new_id = core.NO_ID
            if bumps and core.needs_id_to_end(found, epoch):
                new_id = await self._producer_ids.new()
            end = partial(core.end, found, producer_id, epoch, self._now(), commit=commit, bumps=bumps, new_id=new_id)
            ended = await self._judged(term, found, end)
            if ended is not found:
                await self._runtime.decisions.wait()
                await self._save(term, ended)
                await self._complete(term, ended)
            else:
                await self._be_sure(term, ended)
            return core.after_end(ended)

    def check_offsets(self, name: str, producer_id: int, epoch: int, group: str) -> None:
        """Checks that the producer may stage offsets of the group now. Raises as core's `check_offsets`."""
        core.check_offsets(self._all.get(name), producer_id, epoch, group)

    async def verify(self, name: str, producer_id: int, epoch: int, at: TopicPartition) -> int:
        """Checks that the partition is in this producer's ongoing transaction (KIP-890); a partition of groups' offsets
        counts if one of its groups is in the transaction. Gives the transaction's number. Raises InvalidTransaction,
        ProducerFenced; CoordinatorNotAvailable, NotCoordinator."""

        def check(found: Transaction | None) -> Transaction:
            if found is None or found.producer_id != producer_id:
                raise InvalidTransaction(f"producer {producer_id} does not have the transactional id '{name:.100}'")
            parts = found.partitions | group_parts(self._runtime.image, found.groups)
            core.check_write(found._replace(partitions=parts), epoch, at)
            return found

        if self.keeper.term(name).is_sure:
            return check(self._all.get(name)).number
        async with self._turns.of(name):
            term, found = self.keeper.term(name), self._all.get(name)
            await self._be_sure(term, found)
            return check(found).number

    async def _judged(self, term: Term, found: Transaction | None, judge: Callable[[], Transaction]) -> Transaction:
        """What a request does to the state that was found. The caller has the name's turn. Raises what `judge` raises,
        which is one of core's functions, and as `_be_sure`."""
        try:
            return judge()
        except REFUSALS:
            await self._be_sure(term, found)
            raise

    async def _be_sure(self, term: Term, found: Transaction | None) -> None:
        """Returns once it is sure that nobody had taken this broker's place before the call. Without a read lease, for
        example while ZooKeeper is away, the state is written once more: if it is committed, that is sure. Without a
        state there is nothing to write: then it raises CoordinatorNotAvailable. The caller has the name's turn."""
        if term.is_sure:
            return
        if found is None:
            raise CoordinatorNotAvailable("another broker may coordinate the transactional id by now: ask again")
        await term.save(found)

    async def readable(self, name: str) -> Transaction | None:
        """What is true of an id now. Raises CoordinatorNotAvailable, NotCoordinator."""
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = self._all.get(name)
            await self._be_sure(term, found)
            return found

    def check_sender(self, producer_id: int, sender: TransactionalSender | None) -> None:
        """Refuses a batch under the producer id of a transactional id if its request does not name that transactional
        id, or if it is in no transaction. Raises UnknownProducerMapping, InvalidTransaction."""
        name = self._names.get(producer_id)
        if name is not None and sender is None:
            raise InvalidTransaction(f"producer {producer_id} has a transactional id")
        if sender is not None and name not in (None, sender.transactional_id):
            raise UnknownProducerMapping(f"producer {producer_id} does not have this transactional id")

    def check_write(self, producer_id: int, epoch: int, at: TopicPartition) -> None:
        """Checks that a transactional batch may be appended now. Raises InvalidTransaction, ProducerFenced."""
        core.check_write(self._of(producer_id), epoch, at)

    def find(self, name: str) -> Transaction | None:
        return self._all.get(name)

    def list(self) -> list[Transaction]:
        """The transactions of all transactional ids, sorted by name. Raises CoordinatorLoading."""
        if self.keeper.loading:
            raise CoordinatorLoading("this broker is loading the transactional ids that it coordinates; ask again")
        return [self._all[name] for name in sorted(self._all)]

    # --- how

    async def _change(
        self, name: str, change: Callable[[Transaction | None, int], Transaction], *, sync: bool = True
    ) -> Transaction:
        async with self._turns.of(name):
            term = self.keeper.term(name)
            found = self._all.get(name)
            changed = await self._judged(term, found, lambda: change(found, self._now()))
            if changed is not found:
                if found is None or found.stage is not TxnStage.ONGOING:
                    await self._runtime.decisions.wait()
                await self._save(term, changed, sync=sync)
            else:
                await self._be_sure(term, changed)
            return changed

    async def _save(self, term: Term, transaction: Transaction, *, sync: bool = True) -> None:
        """Makes a state durable, and then sets it in memory. Raises as `Term.save`, and Overloaded when the state takes
        more memory than the one before, and there is no room for it."""
        name, owner = transaction.name, whose()
        before = self._all.get(name)
        growth = _growth(before, transaction)
        if not self._memory.has_room(owner, growth):
            raise Overloaded(
                f"transactional ids and their open transactions may take {self._memory.most} bytes (a quarter of "
                "memory_bytes), those of one user as much as is left for others; try again when some have ended"
            )
        new = int(before is None)
        if owner and before is not None:
            self._charge(self._owners.get(name, ""), -before.memory, -1)
            self._charge(owner, before.memory, 1)
        if owner:
            self._owners[name] = owner
        owner = self._owners.get(name, "")
        self._charge(owner, growth, new)  # at once, for others may be saved meanwhile
        try:
            await term.save(transaction, sync=sync)
        except BaseException:
            self._charge(owner, -growth, -new)
            if before is None:
                self._owners.pop(name, None)
            raise
        self._set(transaction)

    def _charge(self, owner: str, size: int, ids: int = 0) -> None:
        self._memory.charge(owner, size)
        self._number.charge(owner, ids)

    async def _complete(self, term: Term, transaction: Transaction) -> None:
        """Carries out the decision, or leaves it to a task that tries again until it is done."""
        try:
            await self._carry_out(term, transaction)
        except KrappyError as error:
            if not self._turns.closed:
                self._runtime.report("transaction_waits", transactional_id=transaction.name, error=str(error))
                self._runtime.spawn(self._finish, transaction.name, term)

    async def _carry_out(self, term: Term, transaction: Transaction) -> None:
        commit = transaction.stage is TxnStage.PREPARE_COMMIT
        await self.markers.write(transaction, commit, term.epoch)
        completed = core.complete(transaction, self._now())
        term.keep(completed)  # if this is lost, all of this is done again
        self._charge(self._owners.get(transaction.name, ""), _growth(transaction, completed))
        self._set(completed)

    async def _finish(self, name: str, term: Term) -> None:
        """Completes a prepared transaction, and tries again until that is done, or another broker is to do it."""
        while not self._turns.closed:
            async with self._turns.although_closed(name):
                try:
                    term.check(name)
                except KrappyError:
                    return
                found = self._all.get(name)
                if found is None or not found.prepared:
                    return
                try:
                    await self._carry_out(term, found)
                    return
                except KrappyError as error:
                    if not self._turns.closed:
                        self._runtime.report("transaction_waits", transactional_id=name, error=str(error))
            await trio.sleep(RETRY_S)

    # --- time

    async def _watch(self) -> None:
        """Aborts transactions that exceed their timeout, and forgets unused ids. One whose disk hangs keeps no other
        waiting."""
        try:
            with self._watching:
                async with trio.open_nursery() as nursery:
                    await self._watch_all(Errands(nursery, HANGS_S, lambda _: self._woken.set()))
        finally:
            self._ended.set()

    async def _watch_all(self, errands: Errands[str | None]) -> None:
        """`errands`: by transactional id; None: the look at all unused ids."""
        next_expiry = trio.current_time() + EXPIRY_CHECK_S
        while True:
            self._woken = trio.Event()
            self._looks_at = min((due for name, due in self._due.items() if name not in errands), default=math.inf)
            wait = min((self._looks_at - self._now()) / 1000, next_expiry - trio.current_time())
            with trio.move_on_after(max(0.0, wait)):
                await self._woken.wait()
            now = self._now()
            due = [name for name, at in self._due.items() if at <= now]
            await errands.run({name: partial(self._guarded, self._time_out, name) for name in due})
            if trio.current_time() >= next_expiry:
                next_expiry = trio.current_time() + EXPIRY_CHECK_S
                await errands.run({None: partial(self.expire, now)})

    async def _guarded(self, run: Callable[[str], Awaitable[None]], name: str) -> None:
        try:
            await run(name)
        except KrappyError as error:
            self._runtime.report("transaction_waits", transactional_id=name, error=str(error))
            await trio.sleep(RETRY_S)

    async def _time_out(self, name: str) -> None:
        async with self._turns.of(name):
            found = self._all.get(name)
            if found is None or not core.overdue(found, self._now()):
                return
            term = self.keeper.term(name)
            self._runtime.report("transaction_timed_out", transactional_id=name, producer_id=found.producer_id)
            fenced = core.fence(found, self._now())
            await self._runtime.decisions.wait()
            await self._save(term, fenced)
            await self._complete(term, fenced)

    async def expire(self, now_ms: int) -> int:
        """Forgets transactional ids that were unused for long. Gives how many."""
        old = [found for found in self._all.values() if core.expired(found, now_ms, self._life_ms)]
        for each in old:
            await self._guarded(self._forget, each.name)
        return len(old)

    async def _forget(self, name: str) -> None:
        async with self._turns.of(name):
            found = self._all.get(name)
            if found is not None and core.expired(found, self._now(), self._life_ms):
                self.keeper.term(name).delete(name)
                self._drop(found)


def _growth(before: Transaction | None, after: Transaction) -> int:
    """How many bytes of memory more the next state takes."""
    return after.memory - (0 if before is None else before.memory)
