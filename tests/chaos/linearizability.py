"""Checks the history of the registers with porcupine. The program, in Go (porcupine/), is built on first use."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.checker import Violation
from tests.chaos.histories import Operation
from tests.chaos.unknowns import decided
from tests.process import ROOT

SOURCE = Path(__file__).with_name("porcupine")
BUILT = ROOT / ".cache" / "chaos" / "porcupine"
BUILD_SECONDS = 300
JUDGE_SECONDS = 60.0  # for each key; a history that takes longer is reported as undecided


class NotBuilt(Exception):
    """Porcupine can't be built here; the message says why."""


def build() -> Path:
    """Builds the program if it is not up to date; returns its path. Raises NotBuilt."""
    if shutil.which("go") is None:
        raise NotBuilt("linearizability is judged by a program in Go, and there is no go (Debian's package: golang)")
    BUILT.parent.mkdir(parents=True, exist_ok=True)
    sources = sorted(each for each in SOURCE.iterdir() if each.suffix in (".go", ".mod", ".sum"))
    with (BUILT.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several workers of pytest may build at once
        if BUILT.exists() and all(each.stat().st_mtime <= BUILT.stat().st_mtime for each in sources):
            return BUILT
        command = ["go", "build", "-o", str(BUILT), "."]
        try:
            done = subprocess.run(
                *(command,), capture_output=True, text=True, timeout=BUILD_SECONDS, cwd=SOURCE, check=False
            )
        except subprocess.TimeoutExpired:
            raise NotBuilt(f"go build did not end within {BUILD_SECONDS} s") from None
        if done.returncode:
            raise NotBuilt(f"go build: {done.stderr.strip()[-500:]}")
        return BUILT


def judge(
    program: Path, operations: Sequence[Operation], folder: Path, seconds: float = JUDGE_SECONDS
) -> list[Violation]:
    """The registers whose histories are not linearizable. A picture of each such history goes into `folder`."""
    (folder / "registers.json").write_text(json.dumps([each.as_json() for each in operations]))
    kept, _ = decided(operations)
    text = json.dumps([each.as_json() for each in kept])
    done = subprocess.run(
        [str(program), str(seconds), str(folder)], input=text, capture_output=True, text=True, check=True
    )
    verdicts: dict[str, str] = json.loads(done.stdout)["verdicts"]
    said = {
        "illegal": ("not linearizable", f"what was read and written; see {folder}/not-linearizable-"),
        "unknown": ("undecided", f"within {seconds:.0f} s; see {folder}/registers.json, "),
    }
    return [
        Violation(said[verdict][0], f"register {key}: {said[verdict][1]}{key}")
        for key, verdict in sorted(verdicts.items())
        if verdict != "ok"
    ]
