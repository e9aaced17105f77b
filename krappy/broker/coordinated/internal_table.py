"""One partition of an internal topic, as the leader of the partition writes it in one leader epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from krappy.broker.coordinated.unreadable import UnreadableRecords
from krappy.core.cluster.roles import Role
from krappy.errors import CoordinatorNotAvailable, KrappyError, NotCoordinator, StorageError
from krappy.ports import StoredAt
from krappy.records import batch as batches
from krappy.types import Headers
from krappy.waiting import Later

if TYPE_CHECKING:
    from krappy.broker.partition.partition import Partition

NO_HEADERS: Mapping[bytes, Headers] = MappingProxyType({})
FRAME = 60  # bytes of a record, beside its key and value, at most: lengths, deltas of its offset and time, a header


class InternalKeys(NamedTuple):
    """What the keys of an internal topic say. `name_in(key)`: the name that a key belongs to, of a group or a
    transactional id. It raises StorageError for any other key. `order(key)`: sorts the keys of one name into the order
    in which they are written. `prefixes`: the prefixes of the keys that are loaded and remembered. Other keys are
    looked up in the view, and `delete` does not find them."""

    name_in: Callable[[bytes], str]
    order: Callable[[bytes], tuple[bool, bytes]]
    prefixes: tuple[bytes, ...] = (b"",)


class InternalTable:
    def __init__(
        self, partition: Partition, keys: InternalKeys, failed: Callable[[InternalTable, KrappyError], None]
    ) -> None:
        """`failed`: called if something that was written will not be committed."""
        self.partition = partition
        self.epoch = partition.epoch
        self._of = keys
        self._failed = failed
        self._keys: dict[str, set[bytes]] = {}  # the existing keys of each name
        self._sent = self._done = 0  # how many writes: sent, committed
        self._waiting: deque[tuple[int, Later[None]]] = deque()
        self._ended: KrappyError | None = None
        self.unreadable = UnreadableRecords()  # what was left out when this was loaded

    def has(self, key: bytes) -> None:
        """Learns of a key that is there."""
        self._keys.setdefault(self._of.name_in(key), set()).add(key)

    def main_key(self, name: str) -> bytes:
        """Of the existing keys of a name, the one that is written last."""
        return max(self._keys.get(name, (b"",)), key=self._of.order)

    def check(self, name: str) -> None:
        """Raises NotCoordinator, CoordinatorNotAvailable unless this broker still coordinates the name, in the same
        leader epoch."""
        partition = self.partition
        if self._ended is not None:
            raise self._ended
        if partition.role is not Role.LEADER or partition.epoch != self.epoch:
            raise NotCoordinator(f"this broker does not coordinate '{name:.100}' any more")

    def write(
        self,
        name: str,
        puts: Mapping[bytes, bytes],
        deletes: list[bytes],
        headers: Mapping[bytes, Headers] = NO_HEADERS,
    ) -> None:
        """Writes one record batch. `headers`: of the keys that have some. Raises as `check`, StorageError,
        RecordTooLarge."""
        self.check(name)
        partition = self.partition
        if not partition.replicas.enough:
            raise CoordinatorNotAvailable(f"too few replicas of {partition} are in sync to write to '{name:.100}'")
        keys = [*puts, *deletes]
        if not keys:
            return
        values = [*puts.values(), *(None for _ in deletes)]
        told = [headers.get(key, ()) for key in keys] if headers else None
        data = batches.encode(keys, values, timestamps=partition.now_ms(), headers=told)
        later = partition.publish(data, taken=True, epoch=self.epoch)  # also on a full disk, where it may free room
        held = self._keys.setdefault(name, set())
        prefixes = self._of.prefixes
        held.update(puts if b"" in prefixes else (key for key in puts if key.startswith(prefixes)))
        held.difference_update(deletes)
        if not held:
            del self._keys[name]
        self._sent += 1
        later.then(partial(self._settled, self._sent))

    def write_parts(
        self,
        name: str,
        puts: Mapping[bytes, bytes],
        deletes: Sequence[bytes],
        headers: Mapping[bytes, Headers] = NO_HEADERS,
    ) -> None:
        """As `write`, but in several batches if one can't hold all: first the puts, in their order, then the deletes.
        For what may be there in part after a kill."""
        for some in self._parts([*puts, *deletes], puts, headers):
            told = {key: puts[key] for key in some if key in puts}
            self.write(name, told, [key for key in some if key not in puts], headers)

    def delete(self, name: str) -> None:
        """Deletes the keys of a name in their order, in several batches if one can't hold them: the last key says that
        the name exists."""
        found = sorted(self._keys.get(name, ()), key=self._of.order)
        self.write_parts(name, {}, found)

    async def move_in(
        self, name: str, puts: Mapping[bytes, bytes], headers: Mapping[bytes, Headers] = NO_HEADERS
    ) -> None:
        """Writes the keys of a name that is not there yet, in their order, in several batches if one can't hold them.
        Without the last key the name is not complete. On return it is committed. Raises as `write`."""
        for some in self._parts(sorted(puts, key=self._of.order), puts, headers):
            self.write(name, {key: puts[key] for key in some}, [], headers)
            await self.written().wait()

    def _parts(
        self, keys: list[bytes], puts: Mapping[bytes, bytes], headers: Mapping[bytes, Headers]
    ) -> Iterator[list[bytes]]:
        """Splits the keys into lists whose records fit into one batch."""
        most = self.partition.config.max_message_bytes - batches.HEADER_SIZE
        part, left = list[bytes](), most
        for key in keys:
            told = sum(len(value or b"") for _, value in headers.get(key, ()))
            size = len(key) + len(puts.get(key, b"")) + told + FRAME
            if size > left and part:
                yield part
                part, left = [], most
            part.append(key)
            left -= size
        if part:
            yield part

    def _settled(self, number: int, stored: StoredAt | None, error: Exception | None) -> None:
        if error is not None:
            self.end(error if isinstance(error, KrappyError) else StorageError(str(error)))
            return
        self._done = number
        while self._waiting and self._waiting[0][0] <= number:
            self._waiting.popleft()[1].resolve(None)

    @property
    def behind(self) -> bool:
        """Whether something that was written is not committed."""
        return self._done < self._sent or self._ended is not None

    def written(self) -> Later[None]:
        """Resolved once all that was written so far is committed; rejected if some of it is not."""
        later: Later[None] = Later()
        if self._ended is not None:
            later.reject(self._ended)
        elif not self.behind:
            later.resolve(None)
        else:
            self._waiting.append((self._sent, later))
        return later

    def end(self, error: KrappyError) -> None:
        """Takes no more writes. Who waits for one gets the error, too."""
        if self._ended is None:
            self._ended = CoordinatorNotAvailable(f"what was written to {self.partition} is not committed: {error}")
            waiting, self._waiting = self._waiting, deque()
            for _, later in waiting:
                later.reject(self._ended)
            self._failed(self, error)
