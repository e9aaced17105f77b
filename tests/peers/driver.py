"""Builds and runs the program that makes the load (driver.c), with the librdkafka of confluent-kafka's wheel."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import confluent_kafka

from tests.compat.tools import CACHE, Missing

SOURCE = Path(__file__).with_name("driver.c")
PROGRAM = CACHE / "peers" / "driver"
SECONDS = 600


def build() -> None:
    """Compiles the driver. Raises Missing if there is no C compiler, or no library in the wheel."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Missing("no C compiler (cc or gcc) on the PATH")
    folder = Path(confluent_kafka.__file__).parent.parent / "confluent_kafka.libs"
    found = sorted(folder.glob("librdkafka*.so*"))
    if not found:
        raise Missing(f"confluent-kafka carries no librdkafka of its own in {folder}")
    PROGRAM.parent.mkdir(parents=True, exist_ok=True)
    command = [compiler, "-O2", "-Wall", "-o", str(PROGRAM), str(SOURCE), str(found[0]), "-lpthread"]
    done = subprocess.run([*command, f"-Wl,-rpath,{folder}"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Missing(f"driver.c does not compile: {done.stderr}")


def drive(*arguments: object, ca: str | None = None) -> dict[str, float]:
    """Runs the driver; returns its figures by name. `ca`: PEM file of an authority; its connections have TLS. Raises
    RuntimeError if it fails."""
    command = [str(PROGRAM), *map(str, arguments)]
    environ = os.environ if ca is None else {**os.environ, "DRIVER_CA": ca}
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=SECONDS, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"driver {' '.join(map(str, arguments))}: {done.stderr.strip()[-500:]}")
    found: dict[str, float] = json.loads(done.stdout)
    return found
