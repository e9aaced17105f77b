"""A client of ZooKeeper on trio: it keeps one session up over changing connections, and sends its owner's requests.

One task reads; it hands on answers and events in the order in which they came, before it reads on. So when the answer
of a request arrives, its owner has been told of all changes before it.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import trio

from krappy.cluster.streams import Address, ByteStream, Tls, open_stream
from krappy.cluster.zk import jute
from krappy.cluster.zk.jute import REFUSALS, ErrorCode, JuteReader, Opcode, WatchEvent, ZnodeAcl
from krappy.cluster.zk.session import Entered, Received, Status, ZooKeeperReply, ZooKeeperSession
from krappy.core.cluster import paths
from krappy.core.cluster.tree import ROOT, Create, Operation, RefusedMulti, Znode, child_of
from krappy.errors import UNCHANGED, ConnectionLost, KrappyError, ProtocolError, StorageError
from krappy.waiting import Later

CHUNK = 1 << 16
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 1.0  # after all servers in turn were tried without success
SLOW_MS, SLOW_PAUSE_MS = 1000, 10_000
LOOK_S = 10.0  # between two looks whether its server is still to be trusted
UNTRUSTED = (18, 19, 20, 21)  # OpenSSL's codes of certificates that no trusted authority has signed
WHO_COUNTS = " (trusted are the authorities in zookeeper_ssl_truststore_location; if it is not set, the system's)"
AT_ONCE = 500  # reads that are sent ahead of their answers
T = TypeVar("T")
# The beginnings of the paths of znodes that nobody else may read. As in Kafka, these have credentials and brokers'
# settings. What tells or hides which users there are is among them, too.
SECRET = (
    f"{paths.CONFIG}/{paths.USER_CONFIG}/",
    f"{paths.CONFIG}/{paths.BROKER_CONFIG}/",
    f"{paths.CONFIG}/{paths.SESSION_CONFIG}/",
    f"{paths.USERS_SECRET}/",
)


class ZooKeeper:
    """`entered(fresh)` is called when a connection is up (`fresh`: the session's first one), `happened(path)` for each
    change of a watched znode. Both are called between two answers, and do little."""

    def __init__(
        self,
        servers: Sequence[Address],
        *,
        chroot: str = "",
        timeout_ms: int = 6000,
        auth: Sequence[tuple[str, bytes]] = (),
        protected: bool = False,
        tls: Tls = None,
        look: Callable[[], Awaitable[object]] | None = None,
        entered: Callable[[bool], None] = lambda fresh: None,
        happened: Callable[[str], None] = lambda path: None,
        troubled: Callable[[str], object] = lambda trouble: None,
        slow: Callable[[int], object] = lambda took_ms: None,
        now_ms: Callable[[], int] = lambda: int(trio.current_time() * 1000),
    ) -> None:
        """`chroot`: a path such as /krappy, below which all other paths are; made when it is missing. `auth`: as
        `ZooKeeperSession` has it. `protected`: only a client that has proved to be the first of these may change the
        znodes, also those that exist already, and read those of `SECRET`. `troubled(text)` is called when a server
        can't be used, or refuses this client; with each text once, until a server lets the client in. `look()` is
        called each `LOOK_S` while there is a connection, which it may end. `slow(took_ms)` is called when an answer
        took `SLOW_MS` or more, at most once in `SLOW_PAUSE_MS`."""
        self.session = ZooKeeperSession(timeout_ms, auth)
        self._servers = random.sample(list(servers), len(servers))  # like other ZooKeeper clients, so that they spread
        self._chroot = chroot.rstrip("/")
        self._entered, self._happened, self._now_ms = entered, happened, now_ms
        self._owner = jute.digest_id(auth[0][1]) if protected else ""
        self._tls, self._look = tls, look
        self._troubled, self._troubles = troubled, set[str]()
        self._slow, self._slow_told_ms = slow, -SLOW_PAUSE_MS
        # By xid: the answer to come, what reads it, and when it was asked for.
        self._answers: dict[int, tuple[Later[Any], Callable[[JuteReader], Any], int]] = {}
        self._ready: Callable[[], None] | None = None  # tells that it has started
        self._out = bytearray()
        self._wake = trio.Event()
        self._limit = trio.CapacityLimiter(AT_ONCE)

    # --- life

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Holds the session until it is over. Reports that it has started when a server has let it in, and the chroot
        exists. Raises nothing; when it returns, `session.status` is OVER."""
        self._ready = task_status.started
        pause = FIRST_PAUSE_S
        while not self.session.is_over(self._now_ms()):
            for server in tuple(self._servers):
                if await self._connection(server):
                    pause = FIRST_PAUSE_S
                    break
                self._servers.append(self._servers.pop(0))
            else:
                await trio.sleep(pause * random.uniform(0.5, 1))
                pause = min(LONGEST_PAUSE_S, 2 * pause)

    async def _connection(self, server: Address) -> bool:
        """Runs one connection to its end. Returns whether the server had let it in."""
        was_in = False
        try:
            with trio.fail_after(self.session.timeout_ms / 1000 / 3):
                stream = await open_stream(server, self._tls)
        except (OSError, trio.TooSlowError) as error:
            untrusted = getattr(error.__cause__, "verify_code", 0) in UNTRUSTED
            self._tell(server, f"{error}{WHO_COUNTS if untrusted else ''}" or "it does not answer")
            return False
        why = "it closed the connection before it let this broker in"
        try:
            with contextlib.closing(stream):
                self._out = bytearray(self.session.connect(self._now_ms()))
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._write, stream)
                    nursery.start_soon(self._watch_over, nursery.cancel_scope)
                    if self._look is not None:
                        nursery.start_soon(self._keep_looking, self._look)
                    while data := await stream.receive_some(CHUNK):
                        for each in self.session.receive(data, self._now_ms()):
                            if isinstance(each, Entered) and self.session.status == Status.UP:
                                was_in = True
                                self._troubles.clear()
                                self._send(self.session.first())
                                nursery.start_soon(self._begin, each.fresh)
                            else:
                                self._hand_on(each)
                        if self.session.status == Status.OVER:
                            break
                    nursery.cancel_scope.cancel()
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError, KrappyError) as errors:
            why = str(_first(errors)) or why
        finally:
            self._end_connection()
        if not was_in and self.session.status != Status.OVER:
            self._tell(server, why)
        return was_in

    def _tell(self, server: Address, trouble: str) -> None:
        text = f"{server[0]}:{server[1]}: {trouble}"
        if text not in self._troubles:
            self._troubles.add(text)
            self._troubled(text)

    async def _begin(self, fresh: bool) -> None:
        ready, self._ready = self._ready, None
        try:
            if ready is not None:
                await self._make_chroot()
                if self._owner:
                    await self._protect()
        except BaseException:
            self._ready = ready  # the next connection tries again
            raise
        self._entered(fresh)
        if ready is not None:
            ready()

    async def _make_chroot(self) -> None:
        path = ""
        for name in self._chroot.split("/")[1:]:
            path += f"/{name}"
            with contextlib.suppress(RefusedMulti):  # it exists
                await self._multi([Create(path)])

    def _acl(self, path: str) -> ZnodeAcl:
        """The ACL of the znode at a path, which includes the chroot."""
        if not self._owner:
            return ZnodeAcl.OPEN
        inside = self._inside(path) + "/"
        return ZnodeAcl.HIDDEN if path.startswith(self._chroot) and inside.startswith(SECRET) else ZnodeAcl.SHOWN

    def _encoded_acl(self, path: str) -> bytes:
        return self._acl(path).encoded(self._owner)

    async def _protect(self) -> None:
        """Protects znodes that were made before. Those of other users stay as they are."""
        found = await self.under(ROOT)

        async def protect(path: str) -> None:
            async with self._limit:
                acl = self._acl(path)
                with contextlib.suppress(ZooKeeperError):  # it is gone, or another user's
                    if await self.ask(Opcode.GET_ACL, [jute.text(path)], JuteReader.permissions_of_all).wait() != acl:
                        await self.ask(
                            Opcode.SET_ACL, jute.acl_fields(path, acl.encoded(self._owner)), JuteReader.stat
                        ).wait()

        def begin(nursery: trio.Nursery) -> None:
            for path in found:
                nursery.start_soon(protect, self._outside(path))

        await _all(begin)

    async def _write(self, stream: ByteStream) -> None:
        while True:
            out, self._out = self._out, bytearray()
            if out:
                await stream.send_all(out)
            else:
                self._wake = trio.Event()
                await self._wake.wait()

    async def _watch_over(self, connection: trio.CancelScope) -> None:
        """Sends pings, and ends a connection that gives no answers, or whose session is over."""
        while not self.session.is_stuck(self._now_ms()) and not self.session.is_over(self._now_ms()):
            self._send(self.session.ping(self._now_ms()))
            await trio.sleep(self.session.pause_ms / 1000 / 2)
        connection.cancel()

    async def _keep_looking(self, look: Callable[[], Awaitable[object]]) -> None:
        while True:
            await trio.sleep(LOOK_S)
            await look()

    def _end_connection(self) -> None:
        self.session.lost()
        answers, self._answers = self._answers, {}
        for later, _, _ in answers.values():
            later.reject(ConnectionLost("the connection to ZooKeeper was lost before the answer came"))

    def _send(self, data: bytes) -> None:
        if data:
            self._out += data
            self._wake.set()

    def _hand_on(self, received: Received) -> None:
        if isinstance(received, WatchEvent):
            self._happened(self._inside(received.path))
        elif isinstance(received, ZooKeeperReply):
            later, read, sent_ms = self._answers.pop(received.xid)
            self._note_time(sent_ms)
            if received.error != ErrorCode.OK:
                later.reject(ZooKeeperError(received.error))
                return
            try:
                later.resolve(read(received.body))
            except ProtocolError as error:
                later.reject(error)
                raise

    def _note_time(self, sent_ms: int) -> None:
        now_ms = self._now_ms()
        if now_ms - sent_ms >= SLOW_MS and now_ms - self._slow_told_ms >= SLOW_PAUSE_MS:
            self._slow_told_ms = now_ms
            self._slow(now_ms - sent_ms)

    def _inside(self, path: str) -> str:
        return path[len(self._chroot) :] or ROOT

    def _outside(self, path: str) -> str:
        return (self._chroot + path).rstrip("/") or ROOT

    # --- requests

    def ask(self, opcode: Opcode, fields: Sequence[bytes], read: Callable[[JuteReader], T]) -> Later[T]:
        """Sends a request behind all earlier ones. Raises ConnectionLost: then it was not sent.

        The answer is rejected with ZooKeeperError, or with ConnectionLost: then the request may have been done or not.
        """
        now_ms = self._now_ms()
        xid, data = self.session.send(opcode, fields, now_ms)
        later: Later[T] = Later()
        self._answers[xid] = later, read, now_ms
        self._send(data)
        return later

    async def get(self, path: str) -> Znode | None:
        """A znode's data, version and owner. Raises ConnectionLost with `sent` False, StorageError."""
        return await self._find(Opcode.GET_DATA, path, JuteReader.znode)

    async def children(self, path: str) -> list[str]:
        """The names of its children, sorted; empty if there is no such znode. Raises ConnectionLost, StorageError."""
        return sorted(await self._find(Opcode.GET_CHILDREN, path, JuteReader.texts) or [])

    async def _find(self, opcode: Opcode, path: str, read: Callable[[JuteReader], T]) -> T | None:
        try:
            return await self._answer(path, self.ask(opcode, jute.read_fields(self._outside(path)), read))
        except ZooKeeperError as error:
            if error.error == ErrorCode.NO_NODE:
                return None
            raise
        except ConnectionLost as error:  # a read changes nothing
            raise ConnectionLost(error.text + UNCHANGED, sent=False) from error

    async def _answer(self, path: str, later: Later[T]) -> T:
        """Waits for an answer. `path`: what the request is about, for the text of an error."""
        try:
            return await later.wait()
        except ZooKeeperError as error:
            if error.error == ErrorCode.SESSION_EXPIRED:
                raise ConnectionLost("the session with ZooKeeper has ended") from error
            self._note_refusal(error, path)
            raise ZooKeeperError(error.error, path) from error

    def _note_refusal(self, error: ZooKeeperError, path: str) -> None:
        text = "this broker may not use its znodes: zookeeper_user or its password is not theirs"
        if error.error == ErrorCode.NO_AUTH and text not in self._troubles:
            self._troubles.add(text)
            self._troubled(f"{text} ({path})")

    async def under(self, path: str) -> dict[str, Znode]:
        """This znode and all below it, by path, parents first. They are read ahead of each other, so they may be of
        different moments. Raises ConnectionLost, StorageError."""
        found: dict[str, Znode] = {}

        async def read(path: str, nursery: trio.Nursery) -> None:
            async with self._limit:
                znode = await self.get(path)
                names = [] if znode is None else await self.children(path)
            if znode is not None:
                found[path] = znode
                for name in names:
                    nursery.start_soon(read, child_of(path, name), nursery)

        await _all(lambda nursery: nursery.start_soon(read, path, nursery))
        return dict(sorted(found.items()))

    async def read(self, paths: Sequence[str]) -> dict[str, Znode | None]:
        """These znodes, by path. Raises ConnectionLost, StorageError."""
        found: dict[str, Znode | None] = {}

        async def read(path: str) -> None:
            async with self._limit:
                found[path] = await self.get(path)

        def begin(nursery: trio.Nursery) -> None:
            for path in paths:
                nursery.start_soon(read, path)

        await _all(begin)
        return found

    async def watch(self, path: str) -> None:
        """From now on `happened` is told of each change of this znode and of all below it, until the connection ends.
        The znode need not exist. Raises ConnectionLost, StorageError."""
        await self._answer(path, self.ask(Opcode.ADD_WATCH, jute.watch_fields(self._outside(path)), _nothing))

    async def multi(self, operations: Sequence[Operation]) -> None:
        """Does all of them or none. A `Create` with an owner makes an ephemeral znode of this session.

        Raises RefusedMulti, StorageError: none was done. Raises ConnectionLost with `sent` False: none was done; with
        `sent` True: they may have been done.
        """
        await self._multi([each._replace(path=self._outside(each.path)) for each in operations], operations)

    async def _multi(self, operations: Sequence[Operation], asked: Sequence[Operation] = ()) -> None:
        """`asked`: the same operations, as the errors name them."""
        if not operations:
            return
        try:
            later = self.ask(Opcode.MULTI, jute.multi_fields(operations, self._encoded_acl), JuteReader.parts)
        except ConnectionLost as error:
            raise ConnectionLost(error.text + UNCHANGED, sent=False) from error
        try:
            errors = await self._answer(operations[0].path, later)
        except ConnectionLost as error:
            raise ConnectionLost(f"{error.text}: the change may have been made", sent=True) from error
        for index, code in enumerate(errors):
            if code not in (ErrorCode.OK, ErrorCode.RUNTIME_INCONSISTENCY):
                operation = (asked or operations)[index]
                if code not in REFUSALS:
                    self._note_refusal(ZooKeeperError(code), operation.path)
                    raise ZooKeeperError(code, operation.path)
                raise RefusedMulti(index, operation, REFUSALS[ErrorCode(code)])

    async def sync(self) -> None:
        """Lets this server catch up with the ensemble's leader. Raises ConnectionLost, StorageError."""
        await self._answer(ROOT, self.ask(Opcode.SYNC, [jute.text(self._outside(ROOT))], _nothing))

    async def close(self) -> None:
        """Ends the session: its ephemeral znodes are deleted at once. Returns when the server has said so, or the
        connection is gone."""
        try:
            await self.ask(Opcode.CLOSE, (), _nothing).wait()
        except KrappyError:
            pass
        finally:
            self.session.end()
            self._wake.set()


class ZooKeeperError(StorageError):
    """ZooKeeper's answer is an error. `error`: its code."""

    def __init__(self, error: int, path: str = "") -> None:
        name = ErrorCode(error).name if error in set(ErrorCode) else str(error)
        super().__init__(f"ZooKeeper refused a request for {path or 'a znode'}: {name}", error=error)


def _nothing(body: JuteReader) -> None:
    """Reads an answer that has no content."""


async def _all(begin: Callable[[trio.Nursery], object]) -> None:
    """Runs the tasks that `begin` starts. Raises one of their KrappyErrors. If it is cancelled meanwhile, their errors
    are dropped: whoever has cancelled it would get them in a group."""
    try:
        async with trio.open_nursery() as nursery:
            begin(nursery)
    except BaseExceptionGroup as errors:
        _, others = errors.split(KrappyError)
        raise _first(errors) if others is None else others from None


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
