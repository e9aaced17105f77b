"""Any history of transactions reads as its model of plain lists, over restarts, and the view is its fold."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from trio.testing import trio_test

from krappy.cli import checkup
from krappy.records import batch
from tests.broker.engine import running
from tests.broker.transactional import Producer, made, value, values


class Model:
    """One partition as plain lists: what was written, by whom, and how its transaction ended."""

    def __init__(self) -> None:
        self.rows: list[tuple[bytes, bytes, list[str]]] = []  # key, value, [state of its transaction]
        self.open: dict[str, tuple[int, list[str]]] = {}  # producer -> first offset, state

    @property
    def stable(self) -> int:
        return min([first for first, _ in self.open.values()], default=len(self.rows))

    @property
    def visible(self) -> list[tuple[bytes, bytes]]:
        return [(key, value) for key, value, state in self.rows[: self.stable] if state == ["committed"]]


@pytest.mark.parametrize("seed", range(12))
@trio_test
async def test_any_history_reads_as_its_model(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    model, number = Model(), 0
    names = ["p0", "p1", "p2"]
    producers: dict[str, Producer] = {}
    for life in range(3):
        async with running(tmp_path) as broker:
            if not life:
                await made(broker, segment_bytes=600)
                producers = {name: await Producer(broker, name).init() for name in names}
            partition = broker.topic("t").led(0)
            for name in names:
                producers[name].broker = broker
            for _ in range(25):
                name, key = chance.choice(names), b"k%d" % chance.randrange(5)
                number += 1
                match chance.choice(["write", "write", "plain", "end", "take over"]):
                    case "write":
                        await producers[name].write((key, b"%d" % number))
                        _, state = model.open.setdefault(name, (len(model.rows), ["open"]))
                        model.rows.append((key, b"%d" % number, state))
                    case "plain":
                        await partition.publish(batch.encode([key], [b"%d" % number], timestamps=1)).wait()
                        model.rows.append((key, b"%d" % number, ["committed"]))
                    case "end" if name in model.open:
                        commit = chance.random() < 0.5
                        await producers[name].end(commit)
                        model.open.pop(name)[1][0] = "committed" if commit else "aborted"
                        model.rows.append((b"", b"", ["marker"]))
                    case "take over":
                        await producers[name].init()
                        if name in model.open:
                            model.open.pop(name)[1][0] = "aborted"
                            model.rows.append((b"", b"", ["marker"]))
                assert partition.high_watermark == len(model.rows)
                assert partition.last_stable_offset == model.stable
            assert await values(partition) == [value for _, value in model.visible]
            for key, latest in dict(model.visible).items():
                assert await value(partition, key) == latest
        found = checkup.check(tmp_path, repair=False, tell=lambda *_: None)
        assert found.sound, found
    shutil.rmtree(tmp_path / "views")
    found = checkup.check(tmp_path, repair=True, tell=lambda *_: None)
    assert found.sound, found
    async with running(tmp_path) as broker:
        partition = broker.topic("t").led(0)
        for key, latest in dict(model.visible).items():
            assert await value(partition, key) == latest
