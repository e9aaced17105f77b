"""`krappy user`, the options before a command, and contexts."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from krappy.cli import main
from krappy.cli.contexts import FILE_VARIABLE, VARIABLES
from krappy.testing.running import run_broker
from tests.security.authority import Authority
from tests.security.test_sasl import ADMIN

LISTENERS = {"listen_native": "SASL_SSL://127.0.0.1:0", "listen_http": "SASL_SSL://127.0.0.1:0", "listen_kafka": "none"}


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restores the environment after a test, even if a command has changed it."""
    for name in (*VARIABLES.values(), "KRAPPY_CONTEXT", FILE_VARIABLE):
        monkeypatch.setenv(name, "x")
        monkeypatch.delenv(name)


def krappy(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str, said: str = "") -> str:
    """Runs a command that must succeed; returns its output. `said`: its input."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said.encode())))
    capfd.readouterr()
    before = dict(os.environ)
    try:
        status = main.run(list(arguments))
    finally:
        os.environ.clear()
        os.environ.update(before)
    out, err = capfd.readouterr()
    assert status == 0, err
    # A client of an earlier test may still log that its broker is gone.
    return out + "".join(line for line in err.splitlines(keepends=True) if "|rdkafka#" not in line)


def test_the_first_user_and_the_next(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, data = Authority(tmp_path), str(tmp_path / "data")

    def run(*arguments: str, said: str = "") -> str:
        return krappy(capfd, monkeypatch, *arguments, said=said)

    added = run("user", "add", "ada", "--data", data, "--new-password-file", "-", said="secret one\n")
    assert "ada may log in by SCRAM-SHA-256 and SCRAM-SHA-512" in added
    run("user", "add", "gone", "--data", data, "--new-password-file", "-", "--mechanism", "SCRAM-SHA-512", said="x")
    assert '"gone"' in run("user", "list", "--data", data, "--json")
    assert "deleted the user gone" in run("user", "delete", "gone", "--data", data, "-y")
    assert "gone" not in run("user", "list", "--data", data)
    password = tmp_path / "password"
    password.write_text("secret one\n")
    settings = {**LISTENERS, **ADMIN, "tls_certificate": authority.issue("127.0.0.1")}
    with run_broker(data, **settings) as broker:
        me = ("--ca", authority.ca, "--user", "ada", "--password-file", str(password))
        at = ("--address", broker.address)
        run(*me, "user", "add", "bob", *at, "--new-password-file", "-", said="secret two")
        assert "bob" in run(*me, "user", "list", *at)
        file = tmp_path / "config.toml"
        other = tmp_path / "other"
        other.write_text("secret two")
        file.write_text(
            f'[context.bob]\naddress = "{broker.address}"\nca = "{authority.ca}"\n'
            f'user = "bob"\npassword_file = "{other}"\n'
            f'[context.ada]\naddress = "{broker.address}"\nca = "{authority.ca}"\n'
            f'user = "ada"\npassword_file = "{password}"\n'
        )
        monkeypatch.setenv("KRAPPY_CONTEXTS", str(file))
        assert '"made"' in run("--context", "ada", "topic", "create", "made", "--json")
        assert "made" in run("--context", "ada", "topic", "list")
        assert "made" in run("--context", "ada", "cluster", "--json") or "brokers" in run("--context", "ada", "cluster")
        run("--context", "ada", "user", "delete", "bob", "--yes")
        assert main.run(["--context", "ada", "user", "delete", "bob", "--yes"]) == 1
        assert "there is no user 'bob'" in capfd.readouterr().err
        assert main.run(["--context", "bob", "topic", "list"]) == 1
        assert "invalid credentials" in capfd.readouterr().err
        assert main.run(["--context", "carl", "topic", "list"]) == 1
        assert "has no [context.carl]; it has bob, ada" in capfd.readouterr().err
        assert main.run(["user", "list", "--data", data]) == 1
        assert "in use by another broker" in capfd.readouterr().err


def test_a_command_tells_the_password(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command gets nothing of the input of `krappy`, and its output is not shown."""
    (tmp_path / "users").mkdir()
    (tmp_path / "users" / "ada").write_text("one two")
    (tmp_path / "my vault").write_text("one two\n")
    contexts = {
        "list": f'["cat", "-", "{tmp_path}/my vault"]',
        "text": f"\"cat '{tmp_path}/my vault'\"",
        "fails": f'["cat", "{tmp_path}/absent"]',
        "absent": '["no-such-program"]',
        "empty": '["true"]',
    }
    settings = {**ADMIN, "sasl_enabled_mechanisms": "SCRAM-SHA-512", "users_dir": str(tmp_path / "users")}
    with run_broker(tmp_path / "data", listen_native="SASL_PLAINTEXT://127.0.0.1:0", **settings) as broker:
        lines = [
            f'[context.{name}]\naddress = "{broker.address}"\nuser = "ada"\npassword_command = {command}\n'
            for name, command in contexts.items()
        ]
        file = tmp_path / "config.toml"
        file.write_text("".join(lines) + '[context.both]\npassword_file = "x"\npassword_command = "x"\n')
        monkeypatch.setenv("KRAPPY_CONTEXTS", str(file))
        for name in ("list", "text"):
            said = krappy(capfd, monkeypatch, "--context", name, "produce", "t", said="first\nsecond\n")
            assert "one two" not in said
        assert krappy(capfd, monkeypatch, "--context", "text", "consume", "t", "--to", "now").count("first") == 2
        told = {
            "fails": "password_command: it ended with 1",
            "absent": "no-such-program",
            "empty": "invalid credentials",
            "both": "give one of them",
        }
        for name, why in told.items():
            assert main.run(["--context", name, "topic", "list"]) != 0
            assert why in capfd.readouterr().err
        password = tmp_path / "users" / "ada"
        assert krappy(capfd, monkeypatch, "--context", "fails", "--password-file", str(password), "topic", "list")


def test_no_password_is_taken_from_the_command_line() -> None:
    from krappy.cli.commands.user import user

    options = {each for command in user.commands.values() for param in command.params for each in param.opts}
    options |= {each for param in main.cli.params for each in param.opts}
    assert not {each for each in options if "password" in each} - {"--password-file", "--new-password-file"}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('context = "mine"', "'context' is no table"),
        ("context = [1]", "'context' is no table"),
        ('[context.mine]\nuser = "a\\u0000b"', "'user' has a NUL"),
        (f"x = {'[' * 3000}{']' * 3000}", "is not TOML"),
    ],
)
def test_contexts_that_are_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    (tmp_path / "config.toml").write_text(text)
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "config.toml"))
    assert main.run(["--context", "mine", "topic", "list"]) == 1
    assert why in capfd.readouterr().err


def test_a_password_is_not_cut(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "password").write_text("x" * 4097)
    words = ["user", "add", "ada", "--data", str(tmp_path / "data"), "--new-password-file", str(tmp_path / "password")]
    assert main.run(words) == 2
    assert "more than 4096 bytes" in capfd.readouterr().err
