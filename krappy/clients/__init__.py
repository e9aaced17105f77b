"""The code that the async client (`aio/`) and the blocking client (`sync/`) share: everything but moving bytes and
waiting.

Rules of this package: only `aio/` and `sync/` use sockets, the event loop, threads and the clock. All other code waits
only by an `await` on something that a `ClientRuntime` (`runtime.py`) handed out. Under anyio such an await suspends the
task. In the blocking client it blocks the thread and never suspends, so a coroutine of this package ends after one
`send(None)` (`runtime.run`). So everything here is written once. `accumulator.py`, `conversation.py`, `events.py`,
`values.py` and `backoff.py` do not wait at all: data and a time go in, data comes out.
"""
