"""A broker as a member of the cluster, for as long as one session with ZooKeeper lasts: it registers, and renews its
read lease.

It leaves the cluster while its data folder is not where it was: what it acknowledged then would be lost with the
folder.

The steps of the registration are those of krappy.core.cluster.registration. Before each step the tree is read anew, so
a step whose answer was lost is simply done again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import trio

from krappy.cluster.mirror import Mirror
from krappy.core.cluster import paths, registration, znodes
from krappy.core.cluster.presence import RENEW_MS, ReadLease
from krappy.core.cluster.registration import Loss
from krappy.core.cluster.tree import Check, Create, Delete, Operation, Put, RefusedMulti, Znode
from krappy.errors import ConnectionLost, StorageError
from krappy.ports.cluster import HomePort
from krappy.waiting import Signal, wait_any

RETRY_S = 0.2  # after a step that was refused, or whose answer was lost
UNREGISTERED = -1
Report = Callable[..., None]


class ClusterMember:
    """`epoch`: the broker epoch, or UNREGISTERED. `changed`: fired when it has changed. `lease`: the read lease, in ms
    of trio's clock."""

    def __init__(
        self,
        mirror: Mirror,
        broker: int,
        home: HomePort,
        rack: str | None = None,
        report: Report = lambda event, **facts: None,
        now_ms: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`now_ms()`: the time of day; people are shown since when a broker is registered."""
        self.epoch = UNREGISTERED
        self.changed = Signal()
        self.lease = ReadLease()
        self._mirror = mirror
        self._broker = broker
        self._home, self._rack, self._report, self._now_ms = home, rack, report, now_ms

    async def run(self) -> None:
        """Until cancelled. `mirror` must be running; when its session is over, this ends."""
        try:
            while not self._mirror.is_over:
                with suppress(ConnectionLost, StorageError, RefusedMulti):
                    await self._register()
                    await self._stay()
                self._set(UNREGISTERED)
                await trio.sleep(RETRY_S)
        finally:
            self.lease.end()
            self._set(UNREGISTERED)

    def _set(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.changed.fire()

    # --- registration

    async def _register(self) -> None:
        """Raises RefusedMulti, ConnectionLost, StorageError: then nothing is wrong, and it may be tried again."""
        store, broker, home = self._mirror, self._broker, self._home
        await make_roots(store)
        if home.away:
            await self._make_way()  # so others lead meanwhile
            await wait_any([home.moved, store.changed], lambda: not home.away or store.is_over)
        await self._wait_for_another()
        before = await store.read(paths.epoch(broker))
        await store.multi(registration.bump(broker, before))
        data = b"{}" if before is None else before.data
        lease = await store.read(paths.lease(broker))
        is_older = await self._pass_epochs()
        if home.lease > (-1 if lease is None else lease.version):
            if not is_older:
                self._report("older_tree", text="ZooKeeper has older data than when this broker ran last")
            is_older = True
        if is_older:
            await home.doubt()
            await self._pass_producer_ids()
        start, is_latest = await home.new_start(znodes.start(data))
        elsewhere = self._is_elsewhere(data)
        is_old = not (elsewhere or (is_latest and home.pulse >= znodes.pulse(lease)))
        if is_old:
            text = "the broker has run since with another copy of this folder: it copies what it lacks from others"
            self._report("old_folder", broker=broker, text=text)
        # Older data tells where the broker was earlier, not where it was last.
        lost = not is_older
        await self._exclude(emptied=lost and elsewhere, shortened=is_old or (lost and self._is_rebooted(data)))
        await self._make_way()
        found = await store.read(paths.epoch(broker))
        epoch, operations = registration.enter(
            *(broker, found, home.endpoints, self._rack, store.session, home.directory, home.boot, start),
            now_ms=self._now_ms(),
            old_folder=is_old,
        )
        await store.multi(operations)
        home.told()
        self._set(epoch)
        self._report("registered", broker=broker, epoch=epoch)

    def _is_elsewhere(self, registered: bytes) -> bool:
        """Whether the broker registered last with another folder."""
        return znodes.directory(registered) not in ("", self._home.directory)

    def _is_rebooted(self, registered: bytes) -> bool:
        """Whether the broker registered last before its machine lost its memory."""
        return bool(self._home.boot) and znodes.boot(registered) not in ("", self._home.boot)

    async def _exclude(self, *, emptied: bool, shortened: bool) -> None:
        """Takes this broker out of the candidates for the partitions whose events it may have lost. Others change the
        states meanwhile, so it looks again until it is a candidate for none. `emptied`: all logs are lost; `shortened`:
        each may have lost its last events."""
        while True:
            changes: list[list[Operation]] = []
            for topic in self._mirror.image.topics.values():
                for index in range(len(topic.partitions)):
                    lost = Loss.ALL if emptied else self._home.has_lost(topic, index)
                    if lost or shortened:
                        changes.append(registration.exclude(topic, index, self._broker, emptied=lost is Loss.ALL))
            if not await self._write(changes):
                return

    async def _pass_epochs(self) -> bool:
        """Raises leader epochs that are below what this broker has seen: ZooKeeper was given older data. Others change
        the states meanwhile, so it looks again until there is none. Returns whether there was one."""
        found = False
        while True:
            changes = [
                registration.pass_epoch(topic, index, self._home.seen_epoch(topic, index))
                for topic in self._mirror.image.topics.values()
                for index in range(len(topic.partitions))
            ]
            written = await self._write(changes)
            if not written:
                return found
            found = True
            self._report("older_tree", partitions=written, text="ZooKeeper has older leader epochs than this folder")

    async def _pass_producer_ids(self) -> None:
        """Sees to it that no producer gets an id that is in the logs here: its events would be taken for duplicates."""
        found = await self._mirror.read(paths.PRODUCER_IDS)
        known = 0 if found is None else znodes.producer_ids_following(found.data)
        least = max(self._home.producer_ids(known), self._mirror.image.producer_ids)
        if known < least:
            data = znodes.producer_ids(least + znodes.PRODUCER_BLOCK)
            put = Create(paths.PRODUCER_IDS, data) if found is None else Put(paths.PRODUCER_IDS, data, found.version)
            await self._mirror.multi([put])

    async def _write(self, changes: list[list[Operation]]) -> int:
        """Writes each change that is not empty, whole or not at all. Returns how many there were; some may have been
        refused."""
        due = [each for each in changes if each]
        for each in due:
            with suppress(RefusedMulti):
                await self._mirror.multi(each)
        return len(due)

    async def _wait_for_another(self) -> None:
        """Waits until this broker id is not registered with another folder. Until then it changes nothing: the process
        that has that folder serves."""
        waited = False
        while (found := await self._mirror.read(paths.broker(self._broker))) is not None and not self._is_own(found):
            if not waited:
                waited = True
                self._report("broker_id_in_use", **registration.in_use(self._broker, found))
            await trio.sleep(RETRY_S)

    async def _make_way(self) -> None:
        """Removes an earlier registration of this data folder: the process that made it is dead, for this one holds the
        folder's lock."""
        path = paths.broker(self._broker)
        while (found := await self._mirror.read(path)) is not None and self._is_own(found):
            with suppress(RefusedMulti):  # its session has ended meanwhile
                await self._mirror.multi([Delete(path)])

    def _is_own(self, found: Znode) -> bool:
        return found.owner == self._mirror.session or znodes.directory(found.data) == self._home.directory

    # --- afterwards

    async def _stay(self) -> None:
        """Renews the lease, until the registration is not there any more, or is to end. Raises ConnectionLost, …"""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._renew)
            await wait_any([self._mirror.changed, self._home.moved], lambda: self._is_out() or self._home.away)
            nursery.cancel_scope.cancel()
        self.lease.end()

    def _is_out(self) -> bool:
        """Whether the registration is gone: somebody, or a late request of an earlier process, may have removed it."""
        found = self._mirror.image.brokers.get(self._broker)
        return self._mirror.is_over or found is None or found.epoch != self.epoch

    async def _renew(self) -> None:
        """Only this broker writes its lease. So a version below one that it has written tells that ZooKeeper was given
        older data, while this session was in that data, too. Then the session ends, and the broker registers anew."""
        path, last = paths.lease(self._broker), -1
        version: int | None = None  # None: it has to be read; -1: there is none yet
        while True:
            sent = trio.current_time() * 1000
            self._home.beat()
            data = znodes.lease(self._home.pulse)
            try:
                if version is None:
                    found = await self._mirror.read(path)
                    version = -1 if found is None else found.version
                    if version < last:
                        self._report("older_tree", text="ZooKeeper has older data than before: this broker joins anew")
                        await self._mirror.client.close()
                        return
                write: Operation = Create(path, data) if version < 0 else Put(path, data, version)
                await self._mirror.multi([Check(paths.broker(self._broker)), write])
            except (RefusedMulti, ConnectionLost, StorageError):
                version = None
            else:
                self.lease.answered(sent)
                last = version = version + 1
                self._home.renewed(version)
            await trio.sleep(max(0.0, (sent + RENEW_MS) / 1000 - trio.current_time()))


async def make_roots(store: Mirror) -> None:
    """Makes the znodes that always exist. It is one write, so that a slow disk of ZooKeeper is waited for only once.
    Raises ConnectionLost, StorageError."""
    roots = [*paths.ROOTS, paths.LEASES]
    while True:
        found = await store.client.read(roots)
        missing = [path for path in roots if found[path] is None]
        if not missing:
            return
        with suppress(RefusedMulti):  # another broker was quicker
            await store.multi([Create(path) for path in missing])
