"""Waiting without polling: signals, and answers that come later.

The broker and the server share only these primitives; both run on one trio event loop.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from operator import itemgetter
from typing import Generic, TypeVar

import trio

T = TypeVar("T")
S = TypeVar("S")
K = TypeVar("K", bound=Hashable)
LOOK_S = 0.25  # between two looks whether a wait is still of use
MANY = 500  # subscribers of a signal that are called in one round of the event loop


class Signal:
    """Calls its subscribers, on the event loop, each time it fires. Subscribers do little: they set an event.

    More than `MANY` subscribers are called in several rounds of the event loop. If it fires again before a subscriber
    was called, that subscriber is called once.
    """

    __slots__ = ("_callbacks", "_left")

    def __init__(self) -> None:
        self._callbacks: dict[Callable[[], None], None] = {}
        self._left: dict[Callable[[], None], None] = {}  # subscribers still to be called in the next rounds

    def subscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks[callback] = None

    def unsubscribe(self, callback: Callable[[], None]) -> None:
        self._callbacks.pop(callback, None)

    def __contains__(self, callback: Callable[[], None]) -> bool:
        return callback in self._callbacks

    @property
    def is_heard(self) -> bool:
        """Whether it has subscribers."""
        return bool(self._callbacks)

    def fire(self) -> None:
        if not self._callbacks:
            return
        if len(self._callbacks) > MANY:
            waits = bool(self._left)
            self._left |= self._callbacks
            if not waits:
                self._fire_some()
        else:
            for callback in tuple(self._callbacks):
                callback()

    def _fire_some(self) -> None:
        """Calls the next `MANY`. Each call wakes a task, and all of them in one round would take long."""
        left = self._left
        for callback in tuple(islice(left, MANY)):
            del left[callback]
            if callback in self._callbacks:
                callback()
        if left:
            trio.lowlevel.current_trio_token().run_sync_soon(self._fire_some)


@contextmanager
def subscribed(callbacks: Iterable[tuple[Signal, Callable[[], None]]]) -> Iterator[None]:
    """`with` while each callback is called when its signal fires."""
    callbacks = tuple(callbacks)
    for signal, callback in callbacks:
        signal.subscribe(callback)
    try:
        yield
    finally:
        for signal, callback in callbacks:
            signal.unsubscribe(callback)


async def wait_any(signals: Iterable[Signal], ready: Callable[[], bool], seconds: float = math.inf) -> bool:
    """Waits until `ready()` is true; asks again whenever one of the signals fires.

    Returns False if `seconds` pass first. `seconds` may be 0 or negative: then it only asks.
    """
    signals = tuple(signals)
    if ready():
        return True
    event = trio.Event()

    def wake() -> None:
        event.set()

    for signal in signals:
        signal.subscribe(wake)
    try:
        with trio.move_on_after(max(0.0, seconds)):
            while not ready():
                await event.wait()
                event = trio.Event()
            return True
        return ready()
    finally:
        for signal in signals:
            signal.unsubscribe(wake)


HANGS_S = 1.0  # what takes longer is not waited for, before others have their turn


class Errands(Generic[K]):
    """Work that is done at the same time, each for a key. One that hangs keeps no other waiting: it goes on by itself.

    `late(key)` is called when one ends that was not waited for to its end."""

    def __init__(self, nursery: trio.Nursery, seconds: float, late: Callable[[K], None]) -> None:
        """`seconds`: how long `run` waits at the most."""
        self._nursery, self._seconds, self._late = nursery, seconds, late
        self._under_way: set[K] = set()

    def __len__(self) -> int:
        """For how many keys work is under way."""
        return len(self._under_way)

    def __contains__(self, key: K) -> bool:
        """Whether work for this key is under way."""
        return key in self._under_way

    async def run(self, works: Mapping[K, Callable[[], Awaitable[object]]]) -> bool:
        """Does this work, but for keys for which some is under way. Returns whether all of it was done in time."""
        begun = [key for key in works if key not in self._under_way]
        if not begun:
            return not works
        waited_for, ended = set(begun), trio.Event()

        async def one(key: K) -> None:
            try:
                await works[key]()
            finally:
                self._under_way.discard(key)
                if key not in waited_for:
                    self._late(key)
                waited_for.discard(key)
                if not waited_for:
                    ended.set()

        self._under_way |= waited_for
        for key in begun:
            self._nursery.start_soon(one, key)
        try:
            with trio.move_on_after(self._seconds):
                await ended.wait()
            return not waited_for and len(begun) == len(works)
        finally:
            waited_for.clear()


class Waits:
    """Waits that end together, at one moment. `ended`: whether the moment has come; later waits end at once."""

    __slots__ = ("_scopes", "ended")

    def __init__(self) -> None:
        self.ended = False
        self._scopes: set[trio.CancelScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    def end(self) -> None:
        self.ended = True
        for scope in self._scopes:
            scope.cancel()

    @contextmanager
    def until_end(self) -> Iterator[trio.CancelScope]:
        """Around a wait, which is cancelled at the end."""
        with trio.CancelScope() as scope:
            if self.ended:
                scope.cancel()
            self._scopes.add(scope)
            try:
                yield scope
            finally:
                self._scopes.discard(scope)


async def while_standing(stands: Callable[[], bool], wait: Callable[[], Awaitable[object]]) -> None:
    """Awaits `wait()`, which raises nothing, and gives it up soon after `stands()` is false. It asks `stands()` now and
    then. That suits waits that are long and rare, where signals that could tell would fire often."""

    async def look() -> None:
        while stands():
            await trio.sleep(LOOK_S)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        await wait()
        nursery.cancel_scope.cancel()


async def side_by_side(call: Callable[[T], Awaitable[S]], items: Iterable[T], tasks: int) -> list[S]:
    """What `call` gives for each item, in the items' order. They are begun in that order, `tasks` at a time."""
    answers: dict[int, S] = {}
    left = enumerate(items)

    async def work() -> None:
        for index, item in left:
            answers[index] = await call(item)

    async with trio.open_nursery() as nursery:
        for _ in range(tasks):
            nursery.start_soon(work)
    return [answer for _, answer in sorted(answers.items(), key=itemgetter(0))]


class Later(Generic[T]):
    """An answer that comes later: the code that finishes the work sets it once, and a callback gets it.

    A future without a task: ten thousand publishes that wait for a group commit are ten thousand small objects, not
    tasks.
    """

    __slots__ = ("_callback", "_error", "_value", "cost", "done")

    def __init__(self, cost: int = 0) -> None:
        self.cost = cost  # bytes of memory that are kept until it is set, beside the request's own
        self.done = False
        self._value: T | None = None
        self._error: Exception | None = None
        self._callback: Callable[[T | None, Exception | None], None] | None = None

    def resolve(self, value: T) -> None:
        self._finish(value, None)

    def reject(self, error: Exception) -> None:
        self._finish(None, error)

    def _finish(self, value: T | None, error: Exception | None) -> None:
        if self.done:
            return
        self.done, self._value, self._error = True, value, error
        callback, self._callback = self._callback, None  # it may hold this Later, and with it all that it waited for
        if callback is not None:
            callback(value, error)

    def then(self, callback: Callable[[T | None, Exception | None], None]) -> None:
        """Calls `callback(value, error)` when the answer is set, at once if it is set already. There is one callback at
        most."""
        if self.done:
            callback(self._value, self._error)
        else:
            self._callback = callback

    def map(self, change: Callable[[T], S]) -> Later[S]:
        """A Later of `change(value)`, or of the same error. Uses this one's callback."""
        changed: Later[S] = Later(self.cost)

        def pass_on(value: T | None, error: Exception | None) -> None:
            if error is not None:
                changed.reject(error)
            else:
                changed.resolve(change(value))  # type: ignore[arg-type]

        self.then(pass_on)
        return changed

    async def wait(self) -> T:
        if not self.done:
            event = trio.Event()
            self._callback = lambda value, error: event.set()
            await event.wait()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]
