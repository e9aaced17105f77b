"""The exception of a signal handler, as of Ctrl-C, ends a blocking call; the client goes on afterwards."""

from __future__ import annotations

import dis
import itertools
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from krappy import blocking
from krappy.clients import events
from krappy.clients.acks import Acks
from krappy.clients.events import EventBatch
from krappy.clients.link import Link
from krappy.clients.received import Received
from krappy.clients.runtime import run
from krappy.clients.sync.io import ThreadRuntime, ThreadSignal, ThreadStream
from krappy.clients.watching import ROOM
from krappy.wire import messages
from tests.served import alone


class Interrupt(BaseException):
    """Stands for KeyboardInterrupt, which would end pytest."""


class InterruptedSocket:
    """Sends half of what it is given first; then the signal comes."""

    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._interrupted = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)

    def send(self, data: bytes) -> int:
        if self._interrupted:
            return int(self._sock.send(data))
        self._interrupted = True
        self._sock.send(data[: len(data) // 2])
        raise Interrupt


@alone  # a table is read over another connection in a cluster
def test_nothing_follows_half_of_a_request(address: str, topic: str) -> None:
    """The broker would take what follows for the rest of that request."""
    with blocking.connect(address, timeout=5) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send(b"before", key=b"k").result()
            stream = client._connection.link._stream
            assert isinstance(stream, ThreadStream)
            stream._out = InterruptedSocket(stream._out)  # type: ignore[assignment]
            with pytest.raises(Interrupt):
                client.table(topic).get(b"k" * 100_000)
            entry = client.table(topic).get(b"k")
            assert entry is not None
            assert entry.value == b"before"
            assert producer.send(b"after", key=b"k").result().offset == 1


def test_a_signal_handler_puts_no_request_into_another(address: str, topic: str) -> None:
    """The handler runs in the thread that it interrupts, which holds the lock already."""
    with blocking.connect(address, timeout=5) as client:
        client.create_topic(topic)
        stream = client._connection.link._stream
        assert isinstance(stream, ThreadStream)

        class HandlerRuns(InterruptedSocket):
            def send(self, data: bytes) -> int:
                client.ping()
                return int(self._sock.send(data))

        stream._out = HandlerRuns(stream._out)  # type: ignore[assignment]
        with pytest.raises(RuntimeError, match="signal handler"):
            client.table(topic).get(b"k" * 1_000)
        assert client.table(topic).get(b"k") is None


class InterruptedLock:
    """The signal comes when the lock is taken for the first time, before `acquire` returns."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._interrupted = False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def acquire(self, timeout: float = -1) -> bool:
        self._lock.acquire()
        if not self._interrupted:
            self._interrupted = True
            raise Interrupt
        return True

    def release(self) -> None:
        self._lock.release()


def test_an_interrupted_call_does_not_keep_the_others_from_sending(address: str, topic: str) -> None:
    with blocking.connect(address, timeout=5) as client:
        client.create_topic(topic)
        producer = client.producer(topic).open()  # no `with`, which would wait for what was posted
        stream = client._connection.link._stream
        assert isinstance(stream, ThreadStream)
        stream._sending = InterruptedLock(stream._sending)  # type: ignore[assignment]
        with pytest.raises(Interrupt):
            client.ping()
        assert producer.send(b"v", key=b"k").result(timeout=5).offset == 0


@pytest.mark.parametrize("group", [None, "g"])
@pytest.mark.parametrize("where", ["read", "events"])
def test_an_interrupted_poll_loses_no_events(
    address: str, topic: str, group: str | None, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the answer of a poll is decoded."""
    interrupted = False

    def interrupt_once(real: Any) -> Any:
        def called(*arguments: Any) -> Any:
            nonlocal interrupted
            if not interrupted:
                interrupted = True
                raise Interrupt
            return real(*arguments)

        return called

    if where == "read":
        monkeypatch.setattr(events, "read", interrupt_once(events.read))
    else:
        monkeypatch.setattr(EventBatch, "events", interrupt_once(EventBatch.events))
    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns(None, [b"%d" % number for number in range(100)])
        name = group and topic + group
        with client.consumer(topic, group=name, max_records=30) as consumer:
            with pytest.raises(Interrupt):
                next(consumer)
            taken: list[tuple[int, int]] = []
            while polled := consumer.poll(1.0):
                taken += ((event.offset, event.deliveries or 1) for event in polled)
                if len(taken) >= 100:
                    break
            assert taken == [(number, 1) for number in range(100)]


@pytest.mark.parametrize("where", ["post", "_post"])
def test_an_interrupted_call_loses_no_acks(
    address: str, topic: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the first of several requests is sent, before a poll."""
    changed: type[Any] = Link if where == "post" else Acks
    real = getattr(changed, where)
    with blocking.connect(address, timeout=5) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns(None, [b"v"] * 5000)
        with client.consumer(topic, group=topic, max_records=5000) as consumer:
            events = [next(consumer) for _ in range(5000)]
            core: Any = consumer._core
            acks = core._acks

            def interrupted(*_: Any) -> Any:
                monkeypatch.setattr(changed, where, real)
                raise Interrupt

            with monkeypatch.context() as patched:
                patched.setattr(acks, "_woken", True)  # the thread that sends acks does not
                for event in [*events[::2], *events[1::2]]:
                    consumer.ack(event)
                monkeypatch.setattr(changed, where, interrupted)
                with pytest.raises(Interrupt):
                    consumer.poll()
        assert [row.floor for row in client.group(topic).partitions] == [5000]


@pytest.mark.parametrize("begun", [False, True])
def test_leaving_ends_what_an_interrupted_ack_began(
    address: str, topic: str, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes while the thread that sends acks is started: the next ack starts another one."""
    start, sleep, pauses = threading.Thread.start, ThreadRuntime.sleep, iter((1.0, 40.0))

    def interrupted(thread: threading.Thread) -> None:
        monkeypatch.setattr(threading.Thread, "start", start)
        if begun:
            start(thread)
        raise Interrupt

    async def unequal(runtime: ThreadRuntime, seconds: float) -> None:
        await sleep(runtime, seconds * next(pauses, 1.0))

    with blocking.connect(address) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_columns(None, [b"v"] * 2)
        consumer = client.consumer(topic, group=topic).open()
        mine = consumer.poll(5)
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        monkeypatch.setattr(ThreadRuntime, "sleep", unequal)
        with pytest.raises(Interrupt):
            consumer.ack(mine[0])
        if begun:
            consumer.ack(mine[1])
            time.sleep(0.4)
            consumer.close()
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < 20  # it does not take as long as that sleep


def test_an_interrupted_wait_leaves_no_lock_behind() -> None:
    """Else the thread that reads answers would wait for the lock for ever. The signal comes before each instruction."""
    before = sys.gettrace()
    for instructions in itertools.count():
        signal, left, whole = ThreadSignal(), iter(range(instructions)), False
        work = signal.wait(0.001)

        def trace(frame: FrameType, *_: Any, left: Iterator[int] = left) -> Any:
            frame.f_trace_opcodes = True
            if next(left, None) is None:
                raise Interrupt
            return trace

        sys.settrace(trace)
        try:
            run(work)
            whole = True
        except Interrupt:
            pass
        finally:
            sys.settrace(before)
        work.close()
        other = threading.Thread(target=signal.set, daemon=True)
        other.start()
        other.join(5)
        assert not other.is_alive()
        if whole:
            return


class InterruptedAt:
    """An interrupt comes at the n-th place in the code of these files where Python looks for signals."""

    LOOKS = ("CALL", "CALL_FUNCTION_EX", "RESUME", "JUMP_BACKWARD")

    def __init__(self, number: int, *files: str) -> None:
        self.came = False
        self._number = number
        self._files = files
        self._before: dict[FrameType, int] = {}
        self._hook = self._trace  # held here: Python 3.11 still calls the hook when it has removed itself

    def __enter__(self) -> InterruptedAt:
        sys.settrace(self._hook)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self._files):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            before = self._before.get(frame)
            self._before[frame] = frame.f_lasti
            if before is not None and dis.opname[frame.f_code.co_code[before]].startswith(self.LOOKS):
                self._number -= 1
                if not self._number:
                    self.came = True
                    sys.settrace(None)
                    raise Interrupt
        return self._hook


def columns(first: int) -> EventBatch:
    return EventBatch("t", 0, range(first, first + 3), [0] * 3, [None] * 3, [b"v"] * 3)


@pytest.mark.parametrize("leased", [True, False])
@pytest.mark.parametrize("how", ["one by one", "events", "batch"])
def test_no_event_is_lost_wherever_an_interrupt_comes(how: str, leased: bool) -> None:
    def take() -> bool:
        if how == "one by one":
            received.hand_out()
            for event in received.events:
                taken.append(event.offset)
                return True
            return False
        if how == "events":
            found = received.take_events()
            taken.extend(event.offset for event in found)
            return bool(found)
        if received.any:
            taken.extend(received.take_batch().offsets)
        return received.any

    for number in itertools.count(1):
        received = Received(lambda: 0.0, leased=leased)
        received.until = 1.0
        received.batches.extend([columns(0), columns(3)])
        taken: list[int] = []
        if number % 2:
            received.hand_out()
            taken += [event.offset for event in itertools.islice(received.events, 1)]
        with InterruptedAt(number, "received.py", "events.py") as interrupt, suppress(Interrupt):
            while take():
                pass
        while take():
            pass
        assert taken == list(range(6)), number
        if not interrupt.came:
            break


def test_a_watch_whose_beginning_was_interrupted_begins_anew(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with blocking.connect(address, timeout=20) as client:
        client.create_topic(topic)
        watch = client.table(topic).watch()
        real = ThreadRuntime.spawn

        def interrupted(*arguments: Any) -> None:
            monkeypatch.setattr(ThreadRuntime, "spawn", real)
            raise Interrupt

        monkeypatch.setattr(ThreadRuntime, "spawn", interrupted)
        with pytest.raises(Interrupt):
            next(watch)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(next(watch)), daemon=True)
        thread.start()
        thread.join(20)
        assert len(found) == 1
        watch.close()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited", "ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_watch_loses_nothing_wherever_an_interrupt_comes(address: str, topic: str) -> None:
    with blocking.connect(address, timeout=20) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer:
            producer.send_many([(b"%d" % number, b"v") for number in range(3)])
        for number in itertools.count(1):
            watch = client.table(topic).watch()
            came: list[Any] = []
            with (
                InterruptedAt(number, "watching.py", "watch_progress.py", "table.py", "tables.py") as interrupt,
                suppress(Interrupt),
            ):
                while len(came) < 4:
                    for item in watch:
                        came.append(item)
                        break
            while len(came) < 4:
                came.append(next(watch))
            watch.close()
            assert [getattr(item, "key", None) for item in came] == [b"0", b"1", b"2", None], number
            if not interrupt.came:
                break


def test_a_watch_that_an_interrupt_left_alone_reads_on(
    address: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the broker has been asked, and the caller does not know that yet. Meanwhile more answers
    come than may wait."""
    with blocking.connect(address, timeout=20) as client:
        client.create_topic(topic, partitions=3 * ROOM)
        with client.producer(topic) as producer:
            producer.send_many([(b"%d" % number, b"v") for number in range(500)])
        watch = client.table(topic).watch()
        real = Link.post

        def interrupted(link: Link, request: Any, *arguments: Any) -> int:
            id = real(link, request, *arguments)
            if isinstance(request, messages.Watch):
                monkeypatch.setattr(Link, "post", real)
                end = time.monotonic() + 20
                while link._paused is None:
                    assert time.monotonic() < end
                    time.sleep(0.01)
                raise Interrupt
            return id

        monkeypatch.setattr(Link, "post", interrupted)
        with pytest.raises(Interrupt):
            next(watch)
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.extend(itertools.islice(watch, 501)), daemon=True)
        thread.start()
        thread.join(20)
        watch.close()
        assert len(found) == 501


@pytest.mark.parametrize("group", [None, "g"])
def test_a_poll_that_an_interrupt_left_alone_loses_no_events(
    address: str, topic: str, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the poll has been sent, and its caller does not know that yet."""
    with blocking.connect(address, timeout=20) as client:
        client.create_topic(topic)
        with client.producer(topic) as producer, client.consumer(topic, group=group and topic) as consumer:
            producer.send(b"0").result()
            [first] = consumer.poll(20)
            if group:
                consumer.ack(first, wait=True)
            real = Link.post

            def interrupted(link: Link, request: Any, *arguments: Any) -> int:
                id = real(link, request, *arguments)
                if isinstance(request, messages.Poll):
                    monkeypatch.setattr(Link, "post", real)
                    raise Interrupt
                return id

            producer.send(b"1").result()
            monkeypatch.setattr(Link, "post", interrupted)
            found: list[Any] = []
            for _ in range(3):
                with suppress(Interrupt):
                    found += consumer.poll(20) if not found else []
            assert [event.offset for event in found] == [1]
            producer.send(b"2").result()
            assert [event.offset for event in consumer.poll(20)] == [2]
