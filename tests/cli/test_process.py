"""`krappy` as a process: signals, pipes, exit statuses, the broker in the foreground."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
import tomllib
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import krappy
from krappy import blocking
from krappy.cli.errors import Failure
from krappy.cli.spawn import spawn_broker
from krappy.testing.running import RunningBroker
from tests.cli.conftest import make_kafka_group
from tests.clients.proxy import proxy
from tests.process import child, free_address, wait_until
from tests.process import krappy as run_forked
from tests.security.authority import Authority
from tests.served import alone

KRAPPY = [sys.executable, "-m", "krappy"]
SECONDS = 60.0
FREE = tuple(f"--listen-{name}=127.0.0.1:0" for name in ("native", "kafka", "http"))


def call(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    """One that says something and ends. It is forked: none of it is about the start of a process."""
    done = run_forked(*arguments, stdin=stdin.encode(), seconds=SECONDS, **environ)
    return subprocess.CompletedProcess(arguments, done.returncode, done.stdout.decode(), done.stderr.decode())


def completed(**environ: str) -> str:
    """What a shell is offered."""
    done = subprocess.run(KRAPPY, capture_output=True, text=True, timeout=SECONDS, env={**os.environ, **environ})
    return done.stdout


def one_line(said: str) -> bool:
    return len(said.splitlines()) == 1 and said.startswith("krappy: ")


@contextmanager
def started(*arguments: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A `krappy` that runs beside the test; it is gone at the test's end."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with child([*KRAPPY, *arguments], text=True, **{**pipes, **options}) as process:
        yield process


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, object]]]:
    """`krappy serve --json …`, and what it printed once it listened."""
    arguments = ("serve", "--json", *FREE, *arguments)
    with started(*arguments, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        yield process, json.loads(process.stdout.readline())


def end(process: subprocess.Popen[str], number: int) -> int:
    process.send_signal(number)
    process.communicate(timeout=SECONDS)
    return process.returncode


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_serve_stops_gracefully_and_keeps_what_it_had(tmp_path: Path, number: int) -> None:
    with serving("--data", str(tmp_path)) as (process, ready):
        assert ready["pid"] == process.pid
        with blocking.connect(str(ready["native"])) as client, client.producer("t") as producer:
            producer.send("v", key="k").result()
        assert end(process, number) == 0
    with serving("--data", str(tmp_path)) as (process, ready):
        with blocking.connect(str(ready["native"])) as client:
            entry = client.table("t").get("k")
        assert entry is not None
        assert entry.value == b"v"
        assert end(process, signal.SIGTERM) == 0


def test_nohup_keeps_serve_alive(tmp_path: Path) -> None:
    code = "import os, signal, sys; signal.signal(signal.SIGHUP, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    command = [sys.executable, "-c", code, *KRAPPY, "serve", "--json", *FREE, "--data", str(tmp_path)]
    with child(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGHUP)
        for _ in range(3):
            with blocking.connect(ready["native"]) as client:
                assert not client.topics()
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=SECONDS)
        assert process.returncode == 0
        assert "SIGTERM" in said
        assert "SIGHUP" not in said


@pytest.mark.skipif(not Path("/proc/self/mem").exists(), reason="arguments can be written over on Linux only")
def test_a_token_among_the_arguments_is_hidden(tmp_path: Path) -> None:
    token = "a-token-of-some-length"
    arguments = ["serve", "--json", "--data", str(tmp_path), *FREE, "--console-token", token]
    with started(*arguments) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert b"--console-token\0" + b"x" * len(token) in shown
        assert token.encode() not in shown
        assert "--console-token-file" in process.stderr.readline()
        assert ready["http"]
        assert _status(ready["http"], token) == 200
        assert end(process, signal.SIGTERM) == 0


def _status(address: str, token: str) -> int:
    asked = urllib.request.Request(f"http://{address}/api/v1/cluster", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(asked, timeout=SECONDS) as answer:
        return int(answer.status)


def test_a_token_stands_in_a_file(tmp_path: Path) -> None:
    token, file = "a-token-of-some-length", tmp_path / "token"
    file.write_text(token + "\n")
    with serving("--data", str(tmp_path / "data"), "--console-token-file", str(file)) as (process, ready):
        assert _status(str(ready["http"]), token) == 200
        assert end(process, signal.SIGTERM) == 0
    refused = call("serve", "--data", str(tmp_path / "data"), "--console-token-file", str(tmp_path / "none"))
    assert refused.returncode == 2
    assert "console_token_file" in refused.stderr
    file.write_text("")
    assert "is empty" in call("serve", "--data", "x", "--console-token-file", str(file)).stderr
    file.write_text("short")
    assert "16 characters" in call("serve", "--data", "x", "--console-token-file", str(file)).stderr
    file.write_text(token)
    both = call("serve", "--data", "x", "--console-token-file", str(file), KRAPPY_CONSOLE_TOKEN="another-one-of-16")
    assert "differ" in both.stderr


def test_serve_says_where_it_listens_to_people_too(tmp_path: Path) -> None:
    arguments = ["serve", "--data", str(tmp_path), *FREE]
    with started(*arguments, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        assert end(process, signal.SIGTERM) == 0
    assert str(process.pid) in first
    assert second.startswith("listening: native 127.0.0.1:")
    assert ", http://127.0.0.1:" in second


def test_serve_says_that_the_console_has_tls(tmp_path: Path) -> None:
    (tmp_path / "users").mkdir(0o700)
    (tmp_path / "users" / "ada").write_text("correct-horse")
    secured = ["--tls-certificate", Authority(tmp_path).issue("127.0.0.1"), "--users-dir", str(tmp_path / "users")]
    listening = ["--listen-native", "none", "--listen-kafka", "none", "--listen-http", "SASL_SSL://127.0.0.1:0"]
    data = str(tmp_path / "data")
    with started("serve", "--data", data, *listening, *secured, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert process.stdout.readline().startswith("listening: https://127.0.0.1:")
        assert end(process, signal.SIGTERM) == 0


def test_serve_names_each_listener_once(tmp_path: Path) -> None:
    arguments = ["serve", "--data", str(tmp_path), *FREE, "--listen-kafka", "IN://127.0.0.1:0,OUT://127.0.0.1:0"]
    with started(*arguments, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        second = process.stdout.readline()
        assert end(process, signal.SIGTERM) == 0
    assert re.findall(r"kafka( \w+)? 127", second) == [" IN", " OUT"]


def test_serve_with_a_console_for_others(tmp_path: Path) -> None:
    arguments = ["serve", "--json", "--data", str(tmp_path), *FREE, "--listen-http", "0.0.0.0:0"]
    environ = {**os.environ, "KRAPPY_CONSOLE_TOKEN": "a-token-of-some-length"}
    with started(*arguments, stderr=subprocess.DEVNULL, env=environ) as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["http"].startswith("0.0.0.0:")
        assert end(process, signal.SIGTERM) == 0


@pytest.mark.parametrize("module", ["krappy.cli.main", "click", "krappy.cli.commands.get"])
def test_an_interrupt_while_it_is_imported_ends_it_quietly(module: str) -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(name, *more):\n"
        f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting)\n"
        "from krappy.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "get", "t", "k"], capture_output=True, text=True, timeout=SECONDS, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.strip()) == (130, "", "")
    scripts = tomllib.loads((Path(krappy.__file__).parent.parent / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"krappy": "krappy.__main__:main"}


def test_without_the_extra_there_is_no_console_and_serve_says_so(tmp_path: Path) -> None:
    """As after `pip install krappy[broker]`: one of the packages is hidden."""
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *more: None if name == 'h11' else find(name, *more)\n"
        "from krappy.cli.main import run; sys.exit(run(sys.argv[1:]))"
    )
    listen = ("--listen-native=127.0.0.1:0", "--listen-kafka=none", "--data", str(tmp_path / "data"))
    asked = subprocess.run(
        [sys.executable, "-c", code, "serve", *listen, "--listen-http=127.0.0.1:0"],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert asked.returncode == 1
    assert "pip install 'krappy[console]'" in asked.stderr
    command = [sys.executable, "-c", code, "serve", "--json", *listen]
    with child(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        ready = json.loads(process.stdout.readline())
        assert ready["http"] is None
        assert process.stderr.readline().startswith("no console: the console needs h11")
        assert end(process, signal.SIGTERM) == 0


def test_serve_refuses_a_folder_in_use(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, _):
        second = call("serve", "--data", str(tmp_path), *FREE)
        assert second.returncode == 1
        assert one_line(second.stderr)
        assert "in use" in second.stderr
        assert str(process.pid) in second.stderr


def test_serve_refuses_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        result = call("serve", "--data", str(tmp_path), *FREE, "--listen-native", address)
    assert result.returncode == 1
    assert one_line(result.stderr)
    assert address in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environ", "named"),
    [
        (["--durability", "never"], {}, "durability"),
        ([], {"KRAPPY_MEMROY_BYTES": "1"}, "KRAPPY_MEMORY_BYTES"),
        (["--config", "/nowhere/krappy.toml"], {}, "/nowhere/krappy.toml"),
        (["--listen-native", "nonsense"], {}, "--listen-native"),
    ],
)
def test_serve_refuses_wrong_settings(
    tmp_path: Path, arguments: list[str], environ: dict[str, str], named: str
) -> None:
    result = call("serve", "--data", str(tmp_path), *FREE, *arguments, **environ)
    assert result.returncode == 2, "as for any wrong usage"
    assert one_line(result.stderr), result.stderr
    assert named in result.stderr


def test_serve_refuses_a_folder_that_it_may_not_make() -> None:
    result = call("serve", *FREE, "--data", "/proc/none")
    assert result.returncode == 1
    assert one_line(result.stderr), result.stderr
    assert "/proc/none" in result.stderr


def unread(pipe: int) -> int:
    """How many bytes the pipe holds."""
    (count,) = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))
    return int(count)


def sleeps(pid: int) -> bool:
    """Whether the process's main thread waits in the kernel for something that a signal interrupts."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"


def test_serve_ends_on_a_signal_before_it_has_begun(tmp_path: Path) -> None:
    """The settings file is a pipe that nobody writes to, so the test knows where the signal meets the process."""
    settings = tmp_path / "krappy.toml"
    os.mkfifo(settings)
    ends = []

    def it_reads() -> bool:
        with contextlib.suppress(OSError):  # ENXIO: nobody has opened it to read yet
            ends.append(os.open(settings, os.O_WRONLY | os.O_NONBLOCK))
        return bool(ends)

    with started("serve", "--data", str(tmp_path / "data"), *FREE, "--config", str(settings)) as process:
        wait_until(it_reads, "it opens its settings")
        os.write(ends[0], b"#")
        # Python handles a signal that comes before read(2) only after read(2) has returned: so the process must be in
        # it already.
        wait_until(lambda: unread(ends[0]) == 0 and sleeps(process.pid), "it waits for the rest of its settings")
        assert end(process, signal.SIGTERM) == 0
    os.close(ends[0])
    assert not (tmp_path / "data").exists()


def test_settings_come_from_flags_then_environment_then_file(tmp_path: Path) -> None:
    (tmp_path / "krappy.toml").write_text('listen_native = "127.0.0.1:1"\ndata = "from-file"\n')
    arguments = ["serve", "--json", "--config", "krappy.toml", *FREE]
    environ = {**os.environ, "KRAPPY_DATA": "from-environment", "KRAPPY_ADDRESS": "is.not.a.setting:1"}
    with started(*arguments, stderr=subprocess.DEVNULL, cwd=tmp_path, env=environ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert end(process, signal.SIGTERM) == 0
    assert ready["data"] == str(tmp_path / "from-environment")


@pytest.mark.parametrize(
    "command", [["topic", "list"], ["get", "t", "k"], ["consume", "t"], ["produce", "t"], ["group", "list"]]
)
def test_a_broker_that_is_not_there_is_one_line(command: list[str]) -> None:
    free = free_address()
    result = call(*command, "--address", free)
    assert result.returncode == 1
    assert one_line(result.stderr)
    assert free in result.stderr


@pytest.mark.parametrize("address", ["", "host:port", "1.2.3.4:99999"])
def test_a_wrong_address_is_one_line(address: str) -> None:
    result = call("topic", "list", "--address", address)
    assert result.returncode == 2
    assert one_line(result.stderr)


def test_a_peer_that_is_no_broker_is_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with started("topic", "list", "--address", address) as process:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 1
    assert one_line(said), said


def test_ctrl_c_ends_a_consumer_with_130(broker: RunningBroker) -> None:
    call("produce", "followed", "--address", broker.address, stdin="first\n")
    with started("consume", "followed", "--address", broker.address) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        call("produce", "followed", "--address", broker.address, stdin="second\n")
        assert process.stdout.readline() == "second\n"  # it follows, and shows events as they come
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    assert said.strip() == ""


@alone  # a client that knows several brokers does not use the relay alone
def test_ctrl_c_ends_a_producer_which_says_how_much_is_stored(broker: RunningBroker) -> None:
    with proxy(broker.address) as relay, broker.connect() as client:
        client.create_topic("interrupted")
        with (
            client.consumer("interrupted") as consumer,
            started("produce", "interrupted", "--address", relay.address) as process,
        ):
            for value in ("first", "second", "third"):
                if value == "third":
                    relay.deafen()
                assert process.stdin is not None
                process.stdin.write(f"{value}\n")
                process.stdin.flush()
                assert next(consumer).value == value.encode()  # it is stored; the answer to the third does not come
            process.send_signal(signal.SIGINT)
            _, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 130
    found = re.fullmatch(r"([0-3]) events? stored; of ([0-3]) more it is not known", said.strip())
    assert found is not None, said
    assert int(found[1]) + int(found[2]) == 3
    assert int(found[2]) >= 1  # the answers to the others may have been lost, too


def test_a_reader_that_goes_away_ends_a_consumer_quietly(broker: RunningBroker) -> None:
    with blocking.connect(broker.address) as client, client.producer("piped") as producer:
        producer.send_columns(None, ["x" * 1000] * 5000)
    with started("consume", "piped", "--to", "now", "--address", broker.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == ""


def test_events_that_are_typed_leave_at_once(broker: RunningBroker) -> None:
    with blocking.connect(broker.address) as client:
        client.create_topic("typed")
        with client.consumer("typed") as consumer, started("produce", "typed", "--address", broker.address) as process:
            assert process.stdin is not None
            process.stdin.write("one\n")
            process.stdin.flush()
            assert [event.value for event in consumer.poll(SECONDS)] == [b"one"]
            process.communicate("two", timeout=SECONDS)
            assert process.returncode == 0
            assert [event.value for event in consumer.poll(SECONDS)] == [b"two"]


def test_a_spawned_broker_stops_with_its_parent(tmp_path: Path) -> None:
    """Even when the parent is killed and can do nothing about it."""
    code = (
        "import sys, time\n"
        "from krappy.cli.spawn import spawn_broker\n"
        "with spawn_broker() as broker:\n"
        "    print(broker.pid, broker.address, flush=True)\n"
        "    time.sleep(60)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert parent.stdout is not None
    pid, address = parent.stdout.readline().split()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    host, port = address.split(":")
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), timeout=1).close()
        except OSError:
            break
        time.sleep(0.05)
    else:
        os.kill(int(pid), signal.SIGKILL)
        pytest.fail("the broker outlived its parent")


def test_a_broker_that_does_not_start_says_why(tmp_path: Path) -> None:
    with spawn_broker(tmp_path), pytest.raises(Failure, match="in use"), spawn_broker(tmp_path):
        pass


def test_completion_offers_commands_and_topics(broker: RunningBroker) -> None:
    with blocking.connect(broker.address) as client:
        client.create_topic("completed", if_absent=True)
    environ = {"_KRAPPY_COMPLETE": "bash_complete", "KRAPPY_ADDRESS": broker.address}
    commands = completed(COMP_WORDS="krappy con", COMP_CWORD="1", **environ)
    assert "consume" in commands
    topics = completed(COMP_WORDS="krappy get compl", COMP_CWORD="2", **environ)
    assert "completed" in topics
    for group in ("mails", "mail\nforged"):
        make_kafka_group(broker, group, "completed")
    groups = completed(COMP_WORDS="krappy group describe m", COMP_CWORD="3", **environ)
    assert groups == "plain,mails\n"
    settings = completed(COMP_WORDS="krappy topic create t --config cleanup", COMP_CWORD="5", **environ)
    assert "cleanup.policy=" in settings


@pytest.mark.parametrize("way", [(), ("--group", "heads"), ("--idle", "600"), ("--to", "2")], ids=" ".join)
def test_following_ends_with_the_reader_of_its_output(broker: RunningBroker, way: tuple[str, ...]) -> None:
    """As behind `| head -1`: no further event comes, so no write can fail."""
    topic = f"left-alone{len(way)}{''.join(way[:1])}"
    with broker.connect() as client, client.producer(topic) as producer:
        producer.send("only", key="k")
    with started("consume", topic, *way, "--address", broker.address) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "only\n"
        process.stdout.close()
        assert process.wait(SECONDS) == 141
        assert process.stderr.read() == ""


@alone  # a client that knows several brokers does not use the relay alone
def test_following_outlives_its_connection(broker: RunningBroker) -> None:
    """The signal that tells of a reader gone also comes of writes to sockets."""
    with (
        proxy(broker.address) as relay,
        broker.connect() as client,
        client.producer("outlived") as producer,
        started("consume", "outlived", "--address", relay.address) as process,
    ):
        assert process.stdout is not None
        for value in ("first", "second", "third"):
            producer.send(value).result()
            assert process.stdout.readline() == f"{value}\n"
            process.send_signal(signal.SIGPIPE)
            relay.cut()
        relay.refuse()
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for the broker: ")
        relay.refuse(False)
        producer.send("fourth").result()
        assert process.stdout.readline() == "fourth\n"
        assert end(process, signal.SIGINT) == 130


@pytest.mark.parametrize("command", ["consume closed --to now", "scan closed", "topic list", "produce closed"])
def test_streams_that_the_shell_has_closed(broker: RunningBroker, command: str) -> None:
    """`>&-`: nobody wants to see the output; `<&-`: there is nothing to read."""
    call("produce", "closed", "--sep", ":", "--address", broker.address, stdin="k:v\n")
    script = f"exec {shlex.join(KRAPPY)} {command} --address {broker.address} <&- >&- 2>&-"
    assert subprocess.run(["bash", "-c", script], timeout=SECONDS, check=False).returncode == 0


@pytest.mark.parametrize("changes", [0, 1], ids=["snapshot", "change"])
def test_watching_ends_with_the_reader_of_its_output(broker: RunningBroker, changes: int) -> None:
    topic = f"watched-alone-{changes}"
    with broker.connect() as client, client.producer(topic) as producer:
        producer.send("only", key="k").result()
        with started("watch", topic, "--address", broker.address) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "= k\tonly\n"
            assert "changes follow" in process.stderr.readline()
            for _ in range(changes):
                producer.send("new", key="k").result()
                assert process.stdout.readline() == "+ k\tnew\n"
            process.stdout.close()
            assert process.wait(SECONDS) == 141
            assert process.stderr.read() == ""


def test_somebody_who_waits_for_the_disk_is_told_why(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path / "data"), "--log-level", "error") as (process, said):
        address = str(said["native"])
        with (
            blocking.connect(address) as client,
            client.producer("t"),  # makes the topic
            client.consumer("t") as stored,
            started("produce", "t", "--address", address) as producing,
        ):
            assert producing.stdin is not None
            assert producing.stderr is not None
            producing.stdin.write("first\n")
            producing.stdin.flush()
            assert next(stored).value == b"first"
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
            producing.stdin.write("second\n")
            producing.stdin.flush()
            told = producing.stderr.readline()
            assert told.startswith("not stored yet, trying again: ")
            assert "File too large" in told
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            producing.stdin.close()
            assert producing.stderr.readline().startswith("2 events to t")
            assert producing.wait(SECONDS) == 0


def test_an_error_does_not_speak_to_the_terminal(tmp_path: Path) -> None:
    with serving("--data", str(tmp_path)) as (process, ready):
        failed = call("group", "describe", "\x1b]0;owned\x07\x1b[2Jgroup", "--address", str(ready["native"]))
        assert failed.returncode == 1
        assert "\\x1b]0;owned\\x07" in failed.stderr
        assert "\x1b" not in failed.stderr
        assert end(process, signal.SIGTERM) == 0


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_broker_that_can_not_say_anything_serves(stream: str, tmp_path: Path) -> None:
    """What the broker says may go to a file on a full disk."""
    address = free_address()
    host, _, port = address.rpartition(":")

    def listens() -> bool:
        with socket.socket() as trying:
            return trying.connect_ex((host, int(port))) == 0

    command = ["serve", "--data", str(tmp_path / "data"), "--listen-native", address, *FREE[1:]]
    with open("/dev/full", "w") as full, started(*command, **{stream: full}) as process:
        wait_until(listens, "the broker listens")
        with blocking.connect(address, timeout=SECONDS) as client:
            client.create_topic("t")
            with client.producer("t") as producer:
                producer.send("v")
        process.terminate()
        assert process.wait(SECONDS) == 0
