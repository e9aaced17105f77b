"""Brokers as processes of their own, for tests that kill them: started, measured, stopped, started again.

Each runs `krappy serve` on a free port of 127.0.0.1, and surely ends: it ends when its stdin does (so with the test's
process, however that dies), a watchdog kills it after `LIFETIME` seconds, and leaving the `with` kills it by its pid.
All waiting is for a condition, with a generous limit.

They are forked from a process that has imported everything already (`Launcher`; each process of tests has one). That
takes some 50 ms instead of half a second, so a test can kill ten times as many brokers in the same time.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0  # seconds that anything may take before the test fails; it says nothing about speed
LIFETIME = 900.0  # seconds after which a broker is killed, whatever its test does


FIRST_PORT, PORTS, BLOCKS = 20_000, 200, 60


class Died(AssertionError):
    """The broker ended when it should not have."""


def write_at_once(file: Path, text: str) -> None:
    """Replaces the text of a file in one step: whoever reads the file meanwhile finds the old text or all of the new
    one."""
    new = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")  # another process may write it, too
    new.write_text(text)
    new.rename(file)


def json_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a file that a broker is writing to. If only a part of the last line is there yet, that line is left
    out."""
    whole, _, _ = file.read_text().rpartition("\n")
    return [json.loads(line) for line in whole.splitlines()]


def looks(what: str, seconds: float = PATIENCE) -> Iterator[None]:
    """`for _ in looks("it is there"):` gives a turn for each look, with pauses between, until the loop is left. Raises
    AssertionError after `seconds`. A look takes processor time from brokers and other tests. So the looks take a tenth
    of the time only, and the longer it has waited, the longer it pauses: it learns what it waits for a tenth later."""
    began = time.monotonic()
    while True:
        looked = time.monotonic()
        yield
        now = time.monotonic()
        assert now < began + seconds, f"still not so after {seconds:.0f} s: {what}"
        time.sleep(min(max(0.005, 9 * (now - looked), (now - began) / 10), 0.25))


def wait_until(condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
    """Returns once the condition holds. Raises AssertionError after `seconds`. If the condition meets a missing file,
    it does not hold yet."""
    for _ in looks(what, seconds):
        with suppress(FileNotFoundError):  # it may be renamed at this moment
            if condition():
                return


@cache
def _block() -> tuple[socket.socket, Iterator[int]]:
    """Returns a block of ports that only this process gives to its servers: the socket that reserves the block, and the
    ports in turn. The socket stays bound to the first port of the block until the process ends. Without it, another run
    of the tests might take a server's port while that server is down."""
    for first in range(FIRST_PORT, FIRST_PORT + BLOCKS * PORTS, PORTS):
        held = socket.socket()
        try:
            held.bind(("127.0.0.1", first))
        except OSError:
            held.close()
        else:
            return held, itertools.cycle(range(first + 1, first + PORTS))
    raise OSError("all blocks of ports are taken")


def free_ports(count: int) -> list[int]:
    """Ports of 127.0.0.1 that nobody listens on now, and that were not given out for long. They lie below the ports
    that Linux takes for outgoing connections: else a connection might get a server's port while that server is started
    again."""
    found: list[int] = []
    for port in itertools.islice(_block()[1], PORTS - 1):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found.append(port)
            if len(found) == count:
                return found
    raise OSError("no ports are free")


def free_address() -> str:
    """The HOST:PORT of such a port: of a server that comes back at its address."""
    return f"127.0.0.1:{free_ports(1)[0]}"


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """`subprocess.Popen`, killed at the end if it still runs. Popen's own `with` would wait for it without a limit."""
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def readable(fd: int, seconds: float) -> bool:
    """Whether `fd` has something to read within `seconds`. (Not by select(), which knows only 1,024 descriptors.)"""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def _environ() -> dict[str, str]:
    """The environment without the shell's settings of Krappy; errors are logged with tracebacks."""
    return {name: value for name, value in os.environ.items() if not name.startswith("KRAPPY_")} | {"KRAPPY_DEBUG": "1"}


class Child(Protocol):
    pid: int

    def wait(self, seconds: float) -> int | None:
        """The exit status (negative: the signal) once it has ended; None if it still runs after `seconds`."""


class Launch(Protocol):
    def __call__(self, arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child: ...


def kept_off(thread: Path) -> float:
    """Seconds that a thread waited for a processor; `thread` is its folder in /proc."""
    return int((thread / "schedstat").read_text().split()[1]) / 1e9


class Stopwatch:
    """Seconds since it was made, without those for which threads waited for a processor: a busy machine is no fault of
    a broker. It counts the threads of this process and of the processes `others` (pids), but not those in `but`
    (`native_id`s)."""

    def __init__(self, *others: int, but: Collection[int] = ()) -> None:
        self._pids, self._but = (os.getpid(), *others), but
        self._began, self._off = time.monotonic(), self._kept_off()

    @property
    def seconds(self) -> float:
        took = time.monotonic() - self._began
        return took - (self._kept_off() - self._off)

    def _kept_off(self) -> float:
        waited = 0.0
        for pid in self._pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                    waited += 0.0 if int(task.name) in self._but else kept_off(task)
        return waited


class Launcher:
    """Forks brokers from one warm process (tests/zygote.py). A context manager. `more`: more environment variables.
    `module`: the one whose `run` gets the arguments."""

    def __init__(self, more: Mapping[str, str] | None = None, module: str = "krappy.cli.main") -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._zygote = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "zygote.py"), str(theirs.fileno()), module],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**_environ(), **(more or {})},
            )
        self._socket = ours
        self._lines = ours.makefile("rb")
        self._lock = threading.Lock()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __call__(self, arguments: list[str], stdin: int, stdout: int, stderr: int, **environ: str) -> Child:
        with self._lock:
            message = json.dumps({"start": arguments, "environ": environ}).encode() + b"\n"
            socket.send_fds(self._socket, [message], [stdin, stdout, stderr])
            return _Forked(self, int(self._answer()))

    def reap(self, pid: int) -> int:
        """The exit status of a child that has ended."""
        with self._lock:
            self._socket.sendall(json.dumps({"reap": pid}).encode() + b"\n")
            return int(self._answer())

    def _answer(self) -> bytes:
        line = self._lines.readline()
        if not line:
            raise Died("the process that forks brokers is gone")
        return line

    def close(self) -> None:
        self._lines.close()
        self._socket.close()  # the process then kills its remaining children, and ends
        try:
            self._zygote.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._zygote.kill()
            self._zygote.wait(PATIENCE)


@cache
def launcher(module: str = "krappy.cli.main") -> Launcher:
    """The launcher of this process; it ends with the process."""
    made = Launcher(module=module)
    atexit.register(made.close)
    return made


def forked(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    """Starts `krappy ARGUMENTS` by the launcher of this process."""
    return launcher()(arguments, stdin, stdout, stderr)


def krappy(
    *arguments: object, stdin: bytes = b"", seconds: float = 120, **environ: str
) -> subprocess.CompletedProcess[bytes]:
    """What a command line prints, and its exit status. The command is forked, too: most of its CPU time would go into
    imports. `environ`: more environment variables."""
    command = [str(each) for each in arguments]
    taken, given = os.pipe()
    writer = threading.Thread(target=_write, args=(given, stdin), daemon=True)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        running = launcher()(command, taken, out.fileno(), err.fileno(), **{"KRAPPY_DEBUG": "", **environ})
        os.close(taken)
        writer.start()
        if (status := running.wait(seconds)) is None:
            os.kill(running.pid, signal.SIGKILL)
            running.wait(PATIENCE)
            raise subprocess.TimeoutExpired(command, seconds)
        writer.join()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(command, status, out.read(), err.read())


def _write(fd: int, data: bytes) -> None:
    with contextlib.suppress(BrokenPipeError), open(fd, "wb", buffering=0) as pipe:
        while data:
            data = data[pipe.write(data) :]


def spawned(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    """Starts `krappy ARGUMENTS` as users do: a process of its own, whose start-up and memory are a broker's."""
    command = [sys.executable, "-m", "krappy", *arguments]
    return _Spawned(subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, env=_environ()))


class _Spawned:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.pid = process.pid
        self._process = process

    def wait(self, seconds: float) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None


class _Forked:
    """A child of the launcher's process. It stays a zombie until the launcher reaps it, so no other process gets its
    pid."""

    def __init__(self, launcher: Launcher, pid: int) -> None:
        self.pid = pid
        self._launcher = launcher
        self._fd = os.pidfd_open(pid)
        self._status: int | None = None
        self._reaping = threading.Lock()

    def wait(self, seconds: float) -> int | None:
        if self._status is None and readable(self._fd, seconds):
            with self._reaping:
                if self._status is None:  # else another thread was faster
                    self._status = self._launcher.reap(self.pid)
                    os.close(self._fd)
        return self._status


class BrokerProcess:
    """One data folder and, most of the time, a running broker on it.

    `settings`: of the broker, by their names in the configuration. `launch`: starts it (by default this process's
    `launcher`). `log`: the file for its output; by default beside the folder.
    """

    lifetime = LIFETIME  # seconds after which it is killed, whatever its test does

    def __init__(self, data: Path, *, launch: Launch = forked, log: Path | None = None, **settings: object) -> None:
        self.data = data
        self.log = log or data.parent / f"{data.name}.log"
        listen = {"listen_native": "127.0.0.1:0", "listen_kafka": "127.0.0.1:0", "listen_http": "none"}
        self.settings = {**listen, "log_level": "info", "log_format": "json", "ballast_bytes": 0, **settings}
        self.address = ""
        self.kafka = ""  # HOST:PORT of Kafka's protocol
        self.http = ""  # HOST:PORT of the console; empty if the settings ask for none
        self.starts = 0
        self._launch = launch
        self._child: Child | None = None
        self._ending = threading.Lock()
        self._stdin = self._stdout = -1
        self._watchdog: threading.Timer | None = None

    def __enter__(self) -> BrokerProcess:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()

    # --- life

    def start(self) -> None:
        """Returns once it takes requests."""
        self.begin()
        self.ready()

    def begin(self) -> None:
        """Starts the process, without waiting."""
        assert self._child is None, "it runs already"
        arguments = ["serve", "--json", "--until-eof", "--data", str(self.data)]
        for name, value in self.settings.items():
            arguments += ["--" + name.replace("_", "-"), str(value)]
        self.data.parent.mkdir(parents=True, exist_ok=True)
        stdin, self._stdin = os.pipe()
        self._stdout, stdout = os.pipe()
        with self.log.open("ab") as log:
            self._child = self._launch(arguments, stdin, stdout, log.fileno())
        os.close(stdin)
        os.close(stdout)
        self.starts += 1
        self._watchdog = threading.Timer(self.lifetime, os.kill, [self._child.pid, signal.SIGKILL])
        self._watchdog.daemon = True
        self._watchdog.start()

    def ready(self) -> None:
        """Waits until it takes requests. Raises Died, with the end of its log, if it ends instead."""
        line = b""
        end = time.monotonic() + PATIENCE
        while not line.endswith(b"\n"):
            if not readable(self._stdout, end - time.monotonic()):
                raise Died(f"the broker was not ready after {PATIENCE:.0f} s: {self.last_words()}")
            part = os.read(self._stdout, 4096)
            if not part:
                status = self.ended()
                raise Died(f"the broker ended with status {status} before it was ready: {self.last_words()}")
            line += part
        told = json.loads(line)
        self.address, self.kafka, self.http = told["native"], told["kafka"], told["http"] or ""

    def kill(self) -> None:
        """Sends SIGKILL; returns once it is gone. Does nothing if it is not running."""
        if (child := self._child) is not None:
            os.kill(child.pid, signal.SIGKILL)
            assert self._wait(child, PATIENCE) is not None

    def terminate(self) -> None:
        """Sends SIGTERM, without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self, seconds: float = PATIENCE) -> int:
        """Sends SIGTERM and waits; returns its exit status."""
        self.terminate()
        return self.ended(seconds)

    def ended(self, seconds: float = PATIENCE) -> int:
        """Waits until it has ended; returns its exit status (negative: the signal)."""
        assert self._child is not None
        status = self._wait(self._child, seconds)
        assert status is not None, f"the broker did not end within {seconds:.0f} s: {self.last_words()}"
        return status

    def _wait(self, child: Child, seconds: float) -> int | None:
        status = child.wait(seconds)
        with self._ending:  # a test's threads may ask whether it runs while another one kills it
            if status is not None and self._child is child:
                assert self._watchdog is not None
                self._watchdog.cancel()
                for fd in (self._stdin, self._stdout):
                    os.close(fd)
                self._child = None
        return status

    @property
    def running(self) -> bool:
        child = self._child
        return child is not None and self._wait(child, 0) is None

    @property
    def pid(self) -> int:
        assert self._child is not None, "it is not running"
        return self._child.pid

    # --- memory, descriptors, log

    def rss(self) -> int:
        """Bytes of memory that it holds now (VmRSS)."""
        return self._status("VmRSS")

    def peak_rss(self) -> int:
        """The most bytes of memory that it held since it started, or since `reset_peak` (VmHWM)."""
        return self._status("VmHWM")

    def reset_peak(self) -> None:
        """Lets `peak_rss` count from now on (proc(5), clear_refs)."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def kept_off(self) -> float:
        """Seconds that its event loop was ready, but the machine ran other threads (schedstat)."""
        return kept_off(Path(f"/proc/{self.pid}"))

    def _status(self, name: str) -> int:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise Died(f"no {name}: the broker is gone")

    def fds(self) -> dict[str, int]:
        """How many `files`, `sockets` and other things (`others`: epoll, pipes) it has open."""
        found = {"files": 0, "sockets": 0, "others": 0}
        for name in os.listdir(f"/proc/{self.pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                target = os.readlink(f"/proc/{self.pid}/fd/{name}")
                kind = "sockets" if target.startswith("socket:") else "files" if target.startswith("/") else "others"
                found[kind] += 1
        return found

    @property
    def sockets(self) -> int:
        """How many sockets it has open."""
        return self.fds()["sockets"]

    def limit_file_size(self, limit: int | None) -> None:
        """Bounds the size of each of its files to `limit` bytes (RLIMIT_FSIZE): writes fail as on a full disk."""
        value = resource.RLIM_INFINITY if limit is None else limit
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (value, resource.RLIM_INFINITY))

    def limit_fds(self, limit: int) -> None:
        """Bounds its descriptors (RLIMIT_NOFILE) for good."""
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (limit, limit))

    def allow_fds(self, limit: int) -> int:
        """Bounds its descriptors, but the limit may be raised again. Returns the limit before."""
        before, most = resource.prlimit(self.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(self.pid, resource.RLIMIT_NOFILE, (limit, most))
        return before

    def events(self, name: str) -> list[dict[str, object]]:
        """The log entries with this event name, over all its starts."""
        found = []
        for line in self.log.read_text(errors="replace").splitlines():
            if line.startswith("{") and name in line:
                with contextlib.suppress(ValueError):
                    entry = json.loads(line)
                    if entry.get("event") == name:
                        found.append(entry)
        return found

    def last_words(self) -> str:
        """The end of its log, for a failing test's message."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-30:]) if self.log.exists() else ""


@contextmanager
def broker_process(
    data: Path, *, launch: Launch = forked, log: Path | None = None, **settings: object
) -> Iterator[BrokerProcess]:
    """A running broker, killed at the end if it still runs."""
    with BrokerProcess(data, launch=launch, log=log, **settings) as broker:
        yield broker
