"""Writes the blocking client from the async one: `python -m tests.clients.mirror`, or `make generate`.

What a user calls is written once, in `krappy/client.py` and `krappy/clients/aio/`; the two differ in how a caller
waits. These are the rules, and there are no others:

- `async def`, `async with` and `async for` lose their `async`.
- `await` of something of the façade itself (`OURS`) is a plain call; of a name, `.result()`; of all else, `run(…)`.
- Words, in the code and in what is written about it, are replaced as `NAMES` and `SAID` tell.
- A method after the comment `# Async only.` is left out; one after `# Blocking: send, post.` is called `send` there,
  and `post` too. A class of `OPENED` can be opened and closed without `with`.

The head of each module is in `HEADS`. A test holds that what is committed is what this writes.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
AIO, SYNC = "krappy/clients/aio", "krappy/clients/sync"
MIRRORED = {
    "krappy/client.py": "krappy/blocking.py",
    **{
        f"{AIO}/{name}.py": f"{SYNC}/{name}.py"
        for name in ("acls", "consumer", "items", "producer", "security", "stage", "table")
    },
}
OURS = {"self", "producer", "self._connection", "self._stack"}
OPENED = {"Client", "Consumer", "Producer", "Sender"}
NAMES = {
    "aio": "sync",
    "AsyncExitStack": "ExitStack",
    "AsyncIterator": "Iterator",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "asynccontextmanager": "contextmanager",
    "enter_async_context": "enter_context",
    "push_async_callback": "callback",
}
SAID = [
    (r"not open: use `async with`", "not open: use `with`, or open()"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\basync client", "blocking client"),
    (r"\b([Aa]ny number of) tasks", r"\1 threads"),
    (r"\bkrappy\.Client\b", "krappy.blocking.Client"),
    (r"\bkrappy\.client'", "krappy.blocking'"),
    (r"\bkrappy\.clients\.aio\b", "krappy.clients.sync"),
]
HEADS = {
    "krappy/blocking.py": '''"""The blocking client: the names of `krappy.client`, for programs without an event loop.

    with krappy.blocking.connect("127.0.0.1:7092") as client:
        with client.producer("users") as producer:
            future = producer.send("Ada", key="u1")     # future.result() is the receipt
        entry = client.table("users").get("u1")
        with client.consumer("users", group="mail") as consumer:
            for event in consumer:
                consumer.ack(event)

Where there is no `with`, as in a REPL, there are `open` and `close`: `client = krappy.blocking.connect().open()`.

What differs: `producer.send` returns a future and does not wait; `flush`, or leaving the `with`, waits for all of them
and raises the first error that nobody has looked at. Any number of threads may use a client, its producers and tables;
a consumer, a scan or a watch is for one thread at a time. A connection has a thread that reads, a producer one more.
"""'''
}
WRITTEN = "# Written by tests/clients/mirror.py from {}: change that one, and run `make generate`.\n\n"
ASYNC_ONLY = re.compile(r"# Async only\.$")
RENAMED = re.compile(r"# Blocking: (\w+), (\w+)\.$")


# Python 3.12 and later cut f-strings into tokens.
WORDS = {tokenize.STRING, tokenize.COMMENT, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}


class Text:
    """The lines of a module, and the edits to be made in them."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line.encode()))
        self.edits: list[tuple[int, int, str]] = []

    def at(self, line: int, column: int) -> int:
        """The place in bytes of a line (from 1) and a column (in bytes of UTF-8, as `ast` has it)."""
        return self.starts[line - 1] + column

    def put(self, start: int, end: int, text: str) -> None:
        self.edits.append((start, end, text))

    def replace(self, token: tokenize.TokenInfo, words: str) -> None:
        line, column = token.start
        start = self.at(line, len(self.lines[line - 1][:column].encode()))
        self.put(start, start + len(token.string.encode()), words)

    def edited(self) -> str:
        data = self.source.encode()
        for start, end, text in sorted(self.edits, key=lambda edit: edit[:2], reverse=True):
            data = data[:start] + text.encode() + data[end:]
        return data.decode()


def mirrored(source: str, origin: str, head: str | None) -> str:
    """The blocking module that an async module becomes, before it is formatted."""
    text = Text(_waiting_in_place(_methods_chosen(source)))
    for token in tokenize.generate_tokens(io.StringIO(text.source).readline):
        replaced = token.string
        if token.type == tokenize.NAME:
            replaced = NAMES.get(token.string, token.string)
        elif token.type in WORDS:
            replaced = said(token.string)
        if replaced != token.string:
            text.replace(token, replaced)
    result = re.sub(r"\basync (?=def |with |for )", "", text.edited())
    if head is not None:
        first = ast.parse(result).body[0]
        assert first.end_lineno is not None
        result = head + "\n" + "".join(result.splitlines(keepends=True)[first.end_lineno :])
    imported = "from __future__ import annotations\n"
    added = ["from krappy.clients.runtime import run\n"] if "run(" in result else []
    added += ["from krappy.clients.sync.opened import Opened\n"] if "(Opened" in result else []
    result = result.replace(imported, imported + "\n" + "".join(added), 1)
    return WRITTEN.format(origin) + result


def said(words: str) -> str:
    for pattern, replacement in SAID:
        words = re.sub(pattern, replacement, words)
    return words


def _methods_chosen(source: str) -> str:
    """The source without async-only methods, with both names of methods that have two, and with classes that can be
    opened."""
    text = Text(source)
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef) and node.name in OPENED:
            start = text.at(node.lineno, len(f"class {node.name}") + bool(node.bases))
            text.put(start, start, "Opened, " if node.bases else "(Opened)")
        if not isinstance(node, ast.AsyncFunctionDef):
            continue
        comment = text.lines[node.lineno - 2].strip()
        assert node.end_lineno is not None
        end = text.starts[node.end_lineno]
        if ASYNC_ONLY.match(comment):
            text.put(text.starts[node.lineno - 2], end, "")
        elif found := RENAMED.match(comment):
            text.put(text.starts[node.lineno - 2], text.starts[node.lineno - 1], "")
            at = text.at(node.lineno, node.col_offset + len("async def "))
            text.put(at, at + len(node.name), found[1])
            text.put(end, end, f"\n    {found[2]} = {found[1]}  # as the async one is called\n")
    return text.edited()


def _waiting_in_place(source: str) -> str:
    """The source without `await`."""
    text = Text(source)
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Await):
            continue
        value = node.value
        assert value.end_lineno is not None
        assert value.end_col_offset is not None
        start, end = text.at(value.lineno, value.col_offset), text.at(value.end_lineno, value.end_col_offset)
        text.put(text.at(node.lineno, node.col_offset), start, "")
        if not isinstance(value, ast.Call):
            text.put(end, end, ".result()")
        elif not (isinstance(value.func, ast.Attribute) and ast.unparse(value.func.value) in OURS):
            text.put(start, start, "run(")
            text.put(end, end, ")")
    return text.edited()


def formatted(source: str) -> str:
    """The source as `make format` leaves it."""
    ruff = [sys.executable, "-m", "ruff"]
    name = ["--stdin-filename", str(ROOT / SYNC / "new.py")]
    for command in (["check", "--quiet", "--select", "F401,I", "--fix"], ["format", "--quiet"]):
        done = subprocess.run([*ruff, *command, *name, "-"], input=source, capture_output=True, text=True, check=True)
        source = done.stdout
    return source


def written() -> dict[str, str]:
    """The text of each file of the blocking client, by the file's name."""
    return {
        to: formatted(mirrored((ROOT / origin).read_text("utf-8"), origin, HEADS.get(to)))
        for origin, to in MIRRORED.items()
    }


if __name__ == "__main__":
    for name, source in written().items():
        (ROOT / name).write_text(source, "utf-8")
        print(name)  # noqa: T201
