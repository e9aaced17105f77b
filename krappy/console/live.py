"""Server-sent events: a stream that ends when its reader leaves, and sends no faster than the reader takes.

The share of the broker's time that all of them together use is bounded (`pacer.Pacer`), and so is their number
(`app.MOST_LIVE`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import trio

from krappy.console.api import MSGPACK, Live
from krappy.console.pacer import PacedStopwatch, PaidPacer
from krappy.console.paying import HttpPayer
from krappy.console.problems import HttpError, Problem, problem_of
from krappy.errors import AuthorizationFailed, KrappyError
from krappy.ports import HeldPort

Hold = Callable[[Callable[[AuthorizationFailed], None]], HeldPort | None]
KEEP_ALIVE_SECONDS = 15.0
LOOK_SECONDS = 0.5  # between two looks whether its reader may still see it
OVER = "the session has ended: log in again"
HEADERS = [(b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]


class EventStream:
    """An answer (ASGI) that is a live view: `event:`, `data:` (JSON), and `id:`, the cursor to resume from.

    `binary`: the same as msgpack maps, one after the other. `allowed`: called every LOOK_SECONDS, and before each part;
    the view ends when it returns False. `hold`: as `AccessPort.hold` for what the view shows; the view ends when it is
    not allowed.
    `payer`: who pays for its bytes, and its time on the event loop.
    """

    def __init__(
        self,
        live: Live,
        pacer: PaidPacer,
        allowed: Callable[[], bool],
        hold: Hold,
        payer: HttpPayer,
        *,
        binary: bool,
    ) -> None:
        self._live = live
        self._payer = payer
        self._binary = binary
        self._allowed = allowed
        self._hold = hold
        self._pacer = pacer
        self._turn = trio.Lock()
        self._refused = False  # it is not allowed any more
        self._over = False  # the last part, which says why it ends, was sent

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        kind = MSGPACK.encode() if self._binary else b"text/event-stream; charset=utf-8"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", kind), *HEADERS]})
        make = _packed if self._binary else _lines

        async def put(body: bytes, *, last: bool = False) -> None:
            async with self._turn:
                if held is not None:
                    held.look()
                if not self._over and (last or (self._stands() and revoked.error is None)):
                    self._over = last
                    await send({"type": "http.response.body", "body": body, "more_body": True})

        async def push(event: str, data: Any, id: str | None = None, stands: Callable[[], bool] = lambda: True) -> bool:
            """Sends a part once the quota has room for it. Returns whether it was sent: not if `stands` is false by
            then."""
            with PacedStopwatch(self._pacer):
                body = make(event, data, id)
            await self._payer.part(len(body), stands)
            if not stands():
                return False
            if not self._stands():
                raise HttpError(401, "NOT_LOGGED_IN", OVER)
            await put(body)
            if revoked.error is not None:
                raise revoked.error
            await self._payer.turn()
            return True

        async def end(problem: Problem) -> None:
            """Sends the last part. No quota delays it."""
            await put(make("problem", problem, None), last=True)

        revoked, held = Revocation(), None
        async with trio.open_nursery() as nursery:
            held = self._hold(revoked.take)
            nursery.start_soon(self._keep_alive, put, end, nursery.cancel_scope)
            nursery.start_soon(revoked.end, end, nursery.cancel_scope)
            nursery.start_soon(_watch_for_leaving, receive, nursery.cancel_scope)
            try:
                await self._payer.live(self._live.run(push), self._pacer.took)
            except KrappyError as error:
                await end(problem_of(error))
            except HttpError as refusal:
                await end(refusal.problem)
            finally:
                if held is not None:
                    held.release()
            nursery.cancel_scope.cancel()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _keep_alive(self, put: Any, end: Any, scope: trio.CancelScope) -> None:
        due = trio.current_time() + KEEP_ALIVE_SECONDS
        while self._stands():
            await trio.sleep(min(LOOK_SECONDS, KEEP_ALIVE_SECONDS))
            if self._stands() and trio.current_time() >= due:
                await put(_packed("alive", None, None) if self._binary else b":\n\n")
                due = trio.current_time() + KEEP_ALIVE_SECONDS
        await end(HttpError(401, "NOT_LOGGED_IN", OVER).problem)
        scope.cancel()

    def _stands(self) -> bool:
        self._refused = self._refused or not self._allowed()  # `_allowed` tells the audit log: only once
        return not self._refused


class Revocation:
    """Ends a view that is not allowed any more."""

    def __init__(self) -> None:
        self._come = trio.Event()
        self.error: AuthorizationFailed | None = None

    def take(self, error: AuthorizationFailed) -> None:
        self.error = error
        self._come.set()

    async def end(self, end: Any, scope: trio.CancelScope) -> None:
        await self._come.wait()
        assert self.error is not None
        await end(problem_of(self.error))
        scope.cancel()


def _lines(event: str, data: Any, id: str | None) -> bytes:
    head = f"event: {event}\n" if id is None else f"event: {event}\nid: {id}\n"
    # A value that is shown as JSON may contain line ends, which would end the data.
    text = msgspec.json.encode(data).replace(b"\n", b" ").replace(b"\r", b" ")
    return b"%bdata: %b\n\n" % (head.encode(), text)


def _packed(event: str, data: Any, id: str | None) -> bytes:
    return msgspec.msgpack.encode({"event": event, "id": id, "data": data})


async def _watch_for_leaving(receive: Any, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()
