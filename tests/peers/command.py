"""The parts that all comparing commands share."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.compat.tools import Missing
from tests.peers.report import table


def parser(name: str, about: str | None, kinds: Iterable[str], scale: str) -> argparse.ArgumentParser:
    """The options of all commands. `about`: the module's docstring; `scale`: the help text of --scale."""
    found = argparse.ArgumentParser(prog=f"make {name}", description=(about or "").partition("\n")[0])
    found.add_argument("--servers", nargs="+", choices=list(kinds), default=list(kinds))
    found.add_argument("--rounds", type=int, default=3)
    found.add_argument("--scale", type=float, default=1.0, help=scale)
    found.add_argument("--json", type=Path, help="file that takes the summary")
    return found


def compare(asked: argparse.Namespace, build: Callable[[], None], run: Callable[[Path], Mapping[str, Any]]) -> int:
    """Builds the programs, runs the comparison in a folder of its own, and prints the summary; returns the exit
    status."""
    folder = Path(tempfile.mkdtemp(prefix="krappy-peers-"))
    try:
        build()
        found = run(folder)
    except Missing as reason:
        sys.stderr.write(f"not compared: {reason}\n")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if asked.json:
        asked.json.write_text(json.dumps(found, indent=1))
    sys.stdout.write(table(found) + "\n")
    return 0
