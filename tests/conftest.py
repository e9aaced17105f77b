"""Settings that all tests share."""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import inspect
import os
import resource
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, settings

from tests import rewritten
from tests.admin_clients import AdminClients
from tests.process import Launcher, launcher

# An example's time says nothing about the code: it depends on what else the machine does, and on whether it is the
# first run in a fresh checkout.
common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# `make test` tries the same examples each time, so that a random seed never fails a change for an older fault.
# `make explore` tries new ones, and more; a fault that it finds is pinned with @example.
settings.register_profile("same", common, derandomize=True, max_examples=30)
settings.register_profile("explore", common, print_blob=True)
settings.load_profile("explore" if os.environ.get("KRAPPY_EXPLORE") else "same")

LAST_LINES = 30  # of a failure's report
MANY_OPEN = 300  # files and connections that a process may have open at the end of its tests
# `nohup make test &` starts with SIGHUP and SIGINT ignored. Child processes inherit that, so these signals could not
# end any that a test starts. A handler is not inherited, and this one ignores the signals, too.
for number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, lambda *_: None)

# Brokers run in this process, too, and a broker holds a file for each partition: more than the 1,024 of some systems.
_, _most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (min(_most, 1 << 16) if _most != resource.RLIM_INFINITY else 1 << 16, _most))


# Temporary files are in memory: the kernel has less work with them, and no sync takes time, neither RocksDB's nor one
# of a process that a test starts. pytest keeps no files of tests that pass (pyproject.toml).
IN_MEMORY = "/dev/shm"
ROOM = 6 << 30  # bytes
if "TMPDIR" not in os.environ and os.path.isdir(IN_MEMORY):
    _memory = os.statvfs(IN_MEMORY)
    if _memory.f_bavail * _memory.f_frsize >= ROOM and not _memory.f_flag & os.ST_NOEXEC:  # for libraries of tests
        tempfile.tempdir = IN_MEMORY


# os.fsync does nothing in this process. Only a loss of power takes what was not synced, and the tests of that
# (tests/power) record processes of their own. Here a sync would only be a wait, of seconds a test on a slow disk.
def _not_synced(fd: Any) -> None:
    os.fstat(fd)  # refuses what os.fsync refuses


os.fsync = os.fdatasync = _not_synced


# Each client of httpx reads the certificates of all public authorities: 30 ms of CPU time. Tests make many clients, and
# ask no server that has such a certificate. So one authority is enough.
@functools.cache
def _one_authority(bundle: str) -> str:
    end = "-----END CERTIFICATE-----\n"
    with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
        file.write(Path(bundle).read_text().partition(end)[0] + end)
    atexit.register(os.unlink, file.name)
    return file.name


with contextlib.suppress(ImportError):  # not everybody who runs the tests has httpx, which needs certifi
    import certifi

    certifi.where = functools.partial(_one_authority, certifi.where())


class Teller:
    """Reports a failure at once, in case the run is ended before its summary."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            last = report.longreprtext.splitlines()[-LAST_LINES:]
            terminal.write_line(f"\n{report.nodeid}: {report.when} failed after {report.duration:.0f} s", red=True)
            terminal.write_line("\n".join(last))

    def pytest_testnodedown(self, node: Any) -> None:
        terminal: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and (told := getattr(node, "workeroutput", {}).get("open")):
            terminal.write_line(f"\n{told}")


class Descriptors:
    """Counts the files and connections that tests leave open in their process: thousands make other tests fail."""

    def __init__(self) -> None:
        self.left: dict[str, int] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        before = _open_files()
        done = yield
        file = item.nodeid.partition("::")[0]
        self.left[file] = self.left.get(file, 0) + _open_files() - before
        return done

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        now, most = _open_files(), sorted(self.left.items(), key=lambda each: -each[1])[:8]
        told = getattr(session.config, "workeroutput", None)
        if told is not None and now > MANY_OPEN:
            told["open"] = f"{now} files and connections are open at the end; they were left by {dict(most)}"


def _open_files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Descriptors())
    config.pluginmanager.register(AdminClients())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Teller(config))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests, and all that they import, stay until the end. The garbage collector would go through them
    again and again: that was a quarter of the CPU time of tests that start no process."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # not everybody who runs the tests has pytest-xdist
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    rewritten.rewrite(config, rewritten.files(config))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> object:
    if config.getoption("dist") != "loadfile":
        return None
    from tests.workers import LongestFirst

    return LongestFirst(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives each async test a time limit inside its event loop. An error from outside would end the test, but leave the
    loop waiting for it."""
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = _limited(item.obj, float(item.config.getini("timeout")) * 0.9)


def _limited(test: Any, seconds: float) -> Any:
    @functools.wraps(test)
    async def limited(*arguments: Any, **named: Any) -> None:
        with anyio.fail_after(seconds):
            await test(*arguments, **named)

    return limited


@pytest.fixture(scope="module")
def launch() -> Launcher:
    """Starts brokers as processes of their own."""
    return launcher()
