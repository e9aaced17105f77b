"""The Python that Spark starts for its tasks and plans: it imports what they need before PySpark forks each of them.

PySpark's daemons import nothing. So each process that they fork imports pandas, pyarrow, and PySpark from a zip whose
modules are compiled every time: that takes a second of CPU time for each plan of a read or a write, and for each new
worker. (The daemons fork before such imports because some of them start threads: numpy's, which OPENBLAS_NUM_THREADS
forbids, and jemalloc's, which work across a fork.)
"""

from __future__ import annotations

import gc
import importlib
import os
import runpy
import shlex
import sys
from pathlib import Path

MODULES = ("pandas", "pyarrow", "pyarrow.compute", "krappy.spark.source", "krappy.spark.pyspark_krappy")


def program(folder: Path) -> str:
    """Makes the program, for PYSPARK_PYTHON; returns its path."""
    made = folder / "python"
    python, this = shlex.quote(sys.executable), shlex.quote(__file__)
    made.write_text(
        f'#!/bin/sh\n[ "$1" = -m ] && OPENBLAS_NUM_THREADS=1 exec {python} {this} "$@"\nexec {python} "$@"\n'
    )
    made.chmod(0o755)
    return str(made)


def main() -> None:
    module = sys.argv[2]
    here = [each for each in sys.path[1:] if Path(each).parts[-3:-1] != ("python", "lib")]  # without Spark's zips
    sys.path[:] = [os.getcwd(), *here]
    if module == "pyspark.daemon":
        for name in (*MODULES, *sys.argv[3:4]):
            importlib.import_module(name)
        gc.freeze()
    sys.argv[1:3] = []
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
