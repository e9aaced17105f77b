"""A broker whose start waits while it opens its first topic, until it sees the topics that the test wants.

`held` starts `krappy serve --data FOLDER …`. If the file FOLDER.held exists, the broker writes the name of its first
topic into it, and waits. The test then writes the wanted topics into the file, as JSON {name: partitions}. The broker
goes on once its image has exactly these topics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trio

from tests.process import BrokerProcess, Child, launcher, wait_until, write_at_once


def held(arguments: list[str], stdin: int, stdout: int, stderr: int) -> Child:
    return launcher(__name__)(arguments, stdin, stdout, stderr)


def _file(data: Path) -> Path:
    return data.with_name(f"{data.name}.held")


@contextmanager
def holding(broker: BrokerProcess, wanted: dict[str, int]) -> Iterator[str]:
    """Starts the broker, which waits within the block. Yields the name of the topic that it opens. `wanted` may change
    until the end of the block; then the broker goes on."""
    file = _file(broker.data)
    file.write_text("")
    broker.begin()
    wait_until(lambda: file.read_text() != "", "it opens its topics")
    yield file.read_text()
    write_at_once(file, json.dumps(wanted))
    broker.ready()


def _wanted(file: Path) -> Mapping[str, int] | None:
    text = file.read_text()
    return json.loads(text) if text.startswith("{") else None


def run(arguments: list[str]) -> int:
    from krappy.broker.topics.cluster_topics import ClusterTopicChanges
    from krappy.cli.main import run

    file = _file(Path(arguments[arguments.index("--data") + 1]))
    number = ClusterTopicChanges.number

    async def waits(self: Any, found: Any) -> None:
        if file.exists() and not found.name.startswith("__"):
            write_at_once(file, found.name)
            while (wanted := _wanted(file)) is None or wanted != {
                name: len(each.partitions) for name, each in self._runtime.image.topics.items() if name[:2] != "__"
            }:
                await trio.sleep(0.01)
            file.unlink()
        await number(self, found)

    ClusterTopicChanges.number = waits  # type: ignore[method-assign]
    return run(arguments)
