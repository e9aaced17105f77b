"""What only a person at a terminal gets: progress, questions, events that cannot speak to it, and pipes to `head`."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from krappy.testing.running import RunningBroker
from tests.cli.conftest import Krappy, make_kafka_group
from tests.process import child, readable

SECONDS = 60.0


def at_terminal(*arguments: str, typed: str = "", until: str = "") -> tuple[int, str]:
    """Runs `krappy` with a terminal as its three streams; returns (exit status, all that the terminal showed). `typed`:
    what is typed once `until` was shown."""
    ours, theirs = pty.openpty()
    try:
        with child(
            [sys.executable, "-m", "krappy", *arguments],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "50"},
            start_new_session=True,
            preexec_fn=_takes_the_terminal,
        ) as process:
            os.close(theirs)
            shown, deadline, waiting = b"", time.monotonic() + SECONDS, True
            while time.monotonic() < deadline:
                if waiting and until.encode() in shown:
                    os.write(ours, typed.encode())
                    waiting = False
                if not readable(ours, 1):
                    continue
                try:
                    shown += os.read(ours, 65536)
                except OSError:  # EIO: the last process that had it open has ended
                    break
            else:
                pytest.fail(f"it did not end: {shown[-300:]!r}")
        return process.returncode, shown.decode()
    finally:
        os.close(ours)


def _takes_the_terminal() -> None:
    """Makes the terminal the process's own, so that Ctrl-C reaches the process."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_table_at_a_terminal(krappy: Krappy, broker: RunningBroker) -> None:
    krappy("produce", "coloured", stdin=b"x\n" * 2000)
    krappy("consume", "coloured", "--group", "slow", "--max", "1")
    status, shown = at_terminal("group", "list", "--address", broker.address)
    assert status == 0
    assert re.search("\x1b\\[36m *lag", shown), "the head has a colour"
    assert re.search("\x1b\\[1;33m *1,999", shown), "a lag is seen at once"
    status, shown = at_terminal("topic", "describe", "coloured", "--address", broker.address)
    assert status == 0
    assert "KiB" in shown
    assert "\t" not in shown


def test_the_defaults_of_settings_at_a_terminal() -> None:
    status, shown = at_terminal("topic", "settings")
    assert status == 0
    for name, default in {"segment.bytes": "1 GiB", "segment.ms": "7d", "max.compaction.lag.ms": "no limit"}.items():
        assert re.search(rf"^{re.escape(name)} +{default} ", shown, re.MULTILINE), name


def test_an_event_cannot_speak_to_the_terminal(krappy: Krappy, broker: RunningBroker) -> None:
    krappy("produce", "rude", "--sep", ":", stdin=b"k:\x1b[2Jred\x07\xc2\x9b\n")
    for command in (["consume", "rude", "--to", "now"], ["get", "rude", "k"], ["scan", "rude"]):
        status, shown = at_terminal(*command, "--address", broker.address)
        assert status == 0
        assert r"\x1b[2Jred\x07\x9b" in shown
    assert krappy("consume", "rude", "--to", "now").out == "\x1b[2Jred\x07\x9b\n"  # a pipe gets what was sent


def test_the_name_of_a_group_cannot_speak_to_the_terminal(krappy: Krappy, broker: RunningBroker) -> None:
    group = "rude[/]\x1b[2J\nforged"
    krappy("produce", "grouped", stdin=b"x\n")
    make_kafka_group(broker, group, "grouped")
    for command in (["group", "list"], ["group", "describe", group]):
        status, shown = at_terminal(*command, "--address", broker.address)
        assert status == 0
        assert r"rude[/]\x1b[2J\nforged" in shown


def test_deleting_asks(krappy: Krappy, broker: RunningBroker) -> None:
    krappy("topic", "create", "asked")
    status, shown = at_terminal("topic", "delete", "asked", "--address", broker.address, typed="n\n")
    assert (status, "nothing was changed" in shown) == (1, True)
    assert "asked" in krappy("topic", "list").out
    status, _ = at_terminal("topic", "delete", "asked", "--address", broker.address, typed="y\n")
    assert status == 0
    assert "asked" not in krappy("topic", "list").out


def test_an_end_of_input_at_a_question_is_no_yes(krappy: Krappy, broker: RunningBroker) -> None:
    krappy("topic", "create", "kept")
    status, _ = at_terminal("topic", "delete", "kept", "--address", broker.address, typed="\x04")
    assert status != 0
    assert "kept" in krappy("topic", "list").out


def test_a_file_has_a_progress_bar(broker: RunningBroker, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("line\n" * 20_000)
    status, shown = at_terminal("produce", "barred", str(tmp_path / "lines.txt"), "--address", broker.address)
    assert status == 0
    assert "20,000 events" in shown
    assert "━" in shown


def test_a_reader_that_goes_away_as_the_output_ends() -> None:
    """When the signal comes, nothing may be left to catch it but the command line itself."""
    code = (
        "import os, signal, sys\n"
        "import click\n"
        "from krappy.cli import main, output\n"
        "reader, writer = os.pipe()\n"
        "os.dup2(writer, 1)\n"
        "os.close(writer)\n"
        "def at_the_end(frame, event, argument):\n"
        "    if frame.f_code.co_name == '__exit__':\n"
        "        sys.setprofile(None)\n"
        "        signal.raise_signal(signal.SIGPIPE)\n"
        "main.cli = click.Group()\n"
        "@main.cli.command()\n"
        "def piped():\n"
        "    with output.ending_with_reader():\n"
        "        sys.setprofile(at_the_end)\n"
        "        os.close(reader)\n"
        "        raise BrokenPipeError\n"
        "sys.exit(main.run(['piped']))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (141, "")


def test_help_has_colours_at_a_terminal_that_wants_them(monkeypatch: pytest.MonkeyPatch) -> None:
    status, shown = at_terminal("topic", "--help")
    assert status == 0
    assert "\x1b[1mCommands\x1b[0m:" in shown
    assert "\x1b[36mdelete-records\x1b[0m" in shown
    plain = re.sub(r"\x1b\[[0-9]+m", "", shown).replace("\r\n", "\n")
    monkeypatch.setenv("NO_COLOR", "1")
    assert at_terminal("topic", "--help")[1].replace("\r\n", "\n") == plain
