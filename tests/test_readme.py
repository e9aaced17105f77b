"""What the README shows is run, twice in a row, and every command stands in the reference."""

from __future__ import annotations

import re
from pathlib import Path

import click

from krappy.cli.main import cli
from krappy.testing.running import run_broker
from tests.documents import DOCS, ROOT, Place, blocks
from tests.test_documents import ports

PATH = ROOT / "README.md"
README = PATH.read_text("utf-8")


def test_a_reader_runs_it_all_from_the_top_and_again(tmp_path: Path) -> None:
    """Against one broker, in its order: what comes first must not be in the way of what follows."""
    folder = tmp_path / "reader"
    folder.mkdir()
    wanted = blocks(PATH)
    assert [block.language for block in wanted] == ["sh", "sh", "sh", "python"]
    with (
        run_broker(tmp_path / "data", listen_http="127.0.0.1:0") as broker,
        Place(folder, ports(broker), runs_broker=False) as place,
    ):
        for _ in range(2):
            place.do(wanted)
            assert "Ada L." in place.said_by("krappy get users u1")
            assert place.said_by("krappy get users u2").startswith("Grace H.")


def test_it_is_short() -> None:
    assert len(README.splitlines()) < 150


def test_the_two_commands_stand_on_the_first_screen() -> None:
    first = README.splitlines()[:30]
    assert any(line.strip().startswith("make demo") for line in first)
    assert any(line.strip().startswith("make test") for line in first)


def test_every_command_is_in_the_reference() -> None:
    reference = "\n".join(block.text for block in blocks(DOCS / "reference.md") if block.language == "sh")
    without = set(cli.list_commands(click.Context(cli))) - set(re.findall(r"krappy (\w+)", reference))
    assert not without, f"krappy/docs/reference.md does not show {without}"


def test_the_example_of_a_request_is_what_the_code_has() -> None:
    contributing = (DOCS / "contributing.md").read_text("utf-8")
    rows = re.findall(r"^\| (?:`([\w./]+)` )?\| `(.+)` \|$", contributing, re.MULTILINE)
    assert len(rows) > 10
    path = ""
    for named, code in rows:
        path = named or path
        assert code in (ROOT / path).read_text("utf-8"), f"{path} has no `{code}`"
