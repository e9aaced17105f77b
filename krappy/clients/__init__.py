"""What the async and the blocking client share: everything but how a byte is moved and how a caller waits.

Rules of this package: sockets, the event loop, threads and the clock are in `aio/io.py` and `sync/io.py` alone.
Each wait elsewhere is an `await` on something that a
`Runtime` (`runtime.py`) handed out. Under anyio those awaits suspend the task; in the blocking client they block the
thread and never suspend, so that a coroutine of this package is over after one `send(None)` (`runtime.run`). That is
how everything here is written once. `accumulator.py`, `conversation.py`, `events.py`, `values.py` and `backoff.py`
do not wait at all: data and a time go in, data comes out.
"""
