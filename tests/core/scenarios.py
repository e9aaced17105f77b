"""Golden text scenarios of pure decisions: a script, and what came of it, rewritten on demand and read in review.

A scenario is blocks of command lines, `----`, and what they said and left behind. After a change of behaviour:
KRAPPY_REWRITE_SCENARIOS=1 pytest tests/core, then read the diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Player(Protocol):
    """A player has a method `run_NAME(words, options)` for each command NAME."""

    def state(self) -> list[str]: ...


def obey(player: Player, line: str) -> Any:
    """Runs one command; returns what its method returns."""
    name, *rest = line.split()
    options = dict(word.split("=", 1) for word in rest if "=" in word)
    return getattr(player, f"run_{name}")([word for word in rest if "=" not in word], options)


def play(text: str, player: Player, say: Callable[[Any, str], list[str]] = obey) -> str:
    """The scenario as it comes out now. `say`: runs a command, and returns the lines that are shown for it."""
    blocks: list[str] = []
    for block in text.strip().split("\n\n"):
        lines = block.split("\n----", 1)[0].split("\n")
        if all(line.startswith("#") for line in lines):
            blocks.append("\n".join(lines))
            continue
        said: list[str] = []
        for line in lines:
            if not line.startswith("#"):
                said += say(player, line)
        blocks.append("\n".join([*lines, "----", *said, *player.state()]))
    return "\n\n".join(blocks) + "\n"


def check(path: Path, player: Player, say: Callable[[Any, str], list[str]] = obey) -> None:
    """Asserts that the scenario comes out as it is written. If KRAPPY_REWRITE_SCENARIOS is set, writes it
    anew instead."""
    before = path.read_text("utf-8")
    now = play(before, player, say)
    if os.environ.get("KRAPPY_REWRITE_SCENARIOS"):
        path.write_text(now, "utf-8")
    else:
        assert now == before
