"""Every command explains itself, with examples that it would take."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator

import click
import pytest

from krappy.cli.main import cli
from krappy.settings.described import SECTIONS, describe
from tests.cli.conftest import Krappy


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*path, name), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


ALL = dict(commands(cli))


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_a_command_has_help_with_examples(run: Krappy, path: tuple[str, ...]) -> None:
    result = run(*path, "--help")
    assert result.status == 0
    assert result.err == ""
    assert "Examples:" in result.out
    for parameter in ALL[path].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            told = parameter.help or parameter.show_default or isinstance(parameter.type, click.Choice)
            assert told, f"{parameter.name} is not explained"


def examples() -> Iterator[str]:
    """Each `krappy …` in the help texts, up to a comment or a pipe."""
    for command in [cli, *ALL.values()]:
        for line in (command.help or "").splitlines():
            found = re.match(r"\s+(?:.*[|] |[A-Z_]+=\S+ )?krappy (.+?)(?:\s+#.*|\s+[|<>].*)?$", line)
            if found and "eval" not in line and not line.strip().startswith("_"):
                yield found[1]


@pytest.mark.parametrize("example", sorted(set(examples())))
def test_an_example_parses(example: str) -> None:
    """The command exists and takes these arguments; it is not run."""
    arguments = shlex.split(example)
    context = click.Context(cli, info_name="krappy")
    command: click.Command = cli
    while isinstance(command, click.Group):
        name, found, arguments = command.resolve_command(context, arguments)
        assert found is not None
        assert name is not None
        command = found
    command.make_context(name, arguments, parent=context)


def test_examples_are_found() -> None:
    assert len(set(examples())) > 40


@pytest.mark.parametrize("path", [path for path, command in ALL.items() if not isinstance(command, click.Group)])
def test_a_command_that_prints_offers_json(path: tuple[str, ...]) -> None:
    assert any("--json" in parameter.opts for parameter in ALL[path].params)


def test_the_settings_of_a_broker_stand_in_groups(run: Krappy) -> None:
    out = run("serve", "--help").out
    headings = re.findall(r"^(\S.*):$", out, re.MULTILINE)
    assert set(SECTIONS.values()) < set(headings)
    groups = out.partition("Groups:")[2].partition("Transactions")[0]
    assert "--group-max-members NUMBER" in groups
    assert "--offsets-retention-ms DURATION" in groups
    assert "--listen-kafka" not in groups
    for row in describe():
        assert f"  {row.flag} " in out
    assert "  segment.bytes of topics: " in out  # the name is as it has to be written
    assert "  preallocate of topics: " in out
    assert "  HOST:PORT of the native protocol" in out
    assert "  Bytes of the view's block cache" in out


def test_arguments_of_a_broker_do_not_stand_among_its_options(run: Krappy) -> None:
    assert "Options:\n  --config FILE" in run("broker", "--help").out


def test_without_a_command_there_is_help(run: Krappy) -> None:
    result = run()
    assert result.status == 2
    assert "krappy serve" in result.err


@pytest.mark.parametrize(("typed", "meant"), [("topics", "topic"), ("prodce", "produce")])
def test_a_mistyped_command_is_told_which_was_meant(run: Krappy, typed: str, meant: str) -> None:
    result = run(typed)
    assert result.status == 2
    assert f"'{meant}'" in result.err
    assert len(result.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (("--address", "h:1", "topic", "list"), "'--address' goes after the command: krappy topic list --address"),
        (("--registry=http://r", "get", "t", "k"), "'--registry' goes after the command: krappy get --registry"),
        (
            ("topic", "--if-absent", "create", "t"),
            "'--if-absent' goes after the command: krappy topic create --if-absent",
        ),
        (("--adress", "h:1", "topic", "list"), "No such option '--adress'"),
        (("--address", "h:1"), "No such option '--address'"),
    ],
)
def test_an_option_before_its_command_is_told_where_it_goes(run: Krappy, typed: tuple[str, ...], told: str) -> None:
    result = run(*typed)
    assert (result.status, told in result.err) == (2, True), result.err
    assert json.loads(run("--json", "topic", "list").err)["error"].startswith("'--json' goes after the command")


def test_version(run: Krappy) -> None:
    assert re.fullmatch(r"krappy, version \d+\.\d+\.\d+\n", run("--version").out)


def test_a_list_of_commands_cuts_no_sentence(run: Krappy) -> None:
    for path, command in [((), cli), *ALL.items()]:
        if isinstance(command, click.Group):
            _, _, listed = run(*path, "--help").out.partition("\nCommands:\n")
            assert listed
            assert "..." not in listed
