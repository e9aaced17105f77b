"""What the README shows, run: every shell line and every piece of Python."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import anyio
import click
import pytest

from krappy.cli.main import cli
from krappy.testing.running import RunningBroker

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")
# Not run here: they need the network, run for long, or have tests of their own.
ELSEWHERE = (
    "krappy serve",
    "krappy bench",
    "krappy demo",
    "krappy doctor",
    "krappy top ",
    "krappy pipeline",
    "pip install",
    "make ",
    "source ",
)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def shell_blocks() -> list[str]:
    return [block for block in blocks("sh") if "krappy " in block and "pip install" not in block]


def test_a_reader_runs_it_all_from_the_top_and_again(krappy_broker: RunningBroker, tmp_path: Path) -> None:
    """Against one broker, in its order: what comes first must not be in the way of what follows."""
    first, second = shell_blocks()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a topic that is not as the page says is one
        for _ in range(2):
            run_shell(krappy_broker, tmp_path, first)
            run_async("asyncio", krappy_broker)
            run_shell(krappy_broker, tmp_path, second)
            run_blocking(krappy_broker)
            run_in_a_program(tmp_path)


def run_blocking(broker: RunningBroker) -> None:
    names: dict[str, Any] = {}
    for block in blocks("python"):
        if "with blocking.connect" in block:
            exec(block.replace("127.0.0.1:7092", broker.address), names)


def run_in_a_program(folder: Path) -> None:
    """The line at the end, by which a program runs a broker."""
    [line] = re.findall(r"`(with krappy\.testing\.running\.run_broker\(data_dir\) as broker)`", README)
    script = f"import krappy\ndata_dir = 'in-a-program'\n{line}:\n    print(broker.address)\n"
    folder = folder / "program"  # not beside the folder krappy, which would be imported
    folder.mkdir(exist_ok=True)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("127.0.0.1:")


def run_shell(broker: RunningBroker, folder: Path, block: str) -> None:
    lines = [line for line in block.splitlines() if line and not line.startswith(ELSEWHERE)]
    assert lines
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "\n".join(lines)],
        cwd=folder,
        env={
            **os.environ,
            "KRAPPY_ADDRESS": broker.address,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Ada" in done.stdout


def python_block(containing: str) -> str:
    [found] = [block for block in blocks("python") if containing in block]
    return found


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_the_async_client(krappy_broker: RunningBroker, backend: str) -> None:
    receipt, entry, event = run_async(backend, krappy_broker)
    assert entry.value == event.value == b"Ada"
    assert (entry.partition, entry.offset) == (receipt.partition, receipt.offset) == (event.partition, event.offset)


def run_async(backend: str, broker: RunningBroker) -> Any:
    source = python_block("async with krappy.connect")
    # The loop of the example goes on for ever.
    source = source.replace("await consumer.ack(event)", "await consumer.ack(event); break")
    imports, body = source.split("\n\n", 1)
    names: dict[str, Any] = {}
    exec(
        imports + "\nasync def main():\n" + textwrap.indent(body, "    ") + "\n    return receipt, entry, event", names
    )
    names["krappy"] = _connecting_to(names["krappy"], broker.address)
    return anyio.run(names["main"], backend=backend)


class _connecting_to:
    """The package, but `connect` goes to another address than the README's."""

    def __init__(self, package: Any, address: str) -> None:
        self._package, self._address = package, address

    def connect(self, address: str) -> Any:
        assert address == "127.0.0.1:7092"
        return self._package.connect(self._address)


def test_the_blocking_client(krappy_broker: RunningBroker, capsys: pytest.CaptureFixture[str]) -> None:
    source = python_block("from krappy import blocking")
    exec(source.replace("127.0.0.1:7092", krappy_broker.address), {})
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].startswith("Receipt(topic='orders'")
    promised = re.findall(r"print\(.*\)\s+# (.+)$", source, re.MULTILINE)
    assert promised[1:] == [printed[1], printed[4]]
    assert sorted(ast.literal_eval(printed[2])) == [b"customer-0", b"customer-1", b"customer-2"]
    assert printed[3] == str([b"order 1", b"order 4", b"order 7"])


def test_the_fixture(krappy_broker: RunningBroker) -> None:
    names: dict[str, Any] = {}
    exec(python_block("def test_the_signup_is_stored"), names)
    names["test_the_signup_is_stored"](krappy_broker)


def test_every_command_is_shown() -> None:
    shown = set(re.findall(r"krappy (\w+)", "\n".join(blocks("sh"))))
    assert set(cli.list_commands(click.Context(cli))) <= shown


def test_every_path_exists() -> None:
    paths = re.findall(r"\]\(([\w./-]+)\)|`((?:krappy|store|handlers|tests)/[\w./-]*)`", README)
    named = {link or quoted for link, quoted in paths}
    assert len(named) > 15
    missing = [path for path in named if not (ROOT / path).is_file() and not any((ROOT / path).glob("**/*.*"))]
    assert not missing


def test_the_example_of_a_request_is_what_the_code_has() -> None:
    rows = re.findall(
        r"^\| (?:`([\w./]+)` )?\| `(.+)` \|$", README.partition("## For the first change")[2], re.MULTILINE
    )
    assert len(rows) > 10
    path = ""
    for named, code in rows:
        path = named or path
        assert code in (ROOT / path).read_text("utf-8"), f"{path} has no `{code}`"


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = README.splitlines()[:30]
    assert any(line.strip().startswith("make demo") for line in first)
    assert any(line.strip().startswith("make test") for line in first)
