"""pytest rewrites the assertions of each test file when it imports it, and keeps the result in __pycache__. In a fresh
checkout that is more than half of the work before the first test. All workers of `make test` come to the same file at
the same time, and each would rewrite it. So `rewrite` does that before they start."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.assertion.rewrite import PYC_TAIL, _read_pyc, _rewrite_test, _write_pyc, assertstate_key, get_cache_dir


def files(config: pytest.Config) -> list[Path]:
    """The files that pytest rewrites for this run."""
    found: list[Path] = []
    for path in (Path(each.partition("::")[0]) for each in config.args):
        found += [path] if path.is_file() else [*path.rglob("conftest.py"), *path.rglob("test_*.py")]
    return found


def rewrite(config: pytest.Config, files: Iterable[Path]) -> None:
    """Rewrites the files that have changed since they were rewritten, in as many processes as there are cores."""
    if sys.dont_write_bytecode or config.getoption("assertmode") != "rewrite":
        return
    changed = [each for each in files if _read_pyc(each, kept(each)) is None]
    cores = os.cpu_count() or 1
    fork = multiprocessing.get_context("fork")
    processes = [fork.Process(target=_rewrite, args=(config, changed[n::cores])) for n in range(cores)]
    for each in processes:
        each.start()
    for each in processes:
        each.join()


def kept(file: Path) -> Path:
    """Where pytest keeps what it has made of the file."""
    return get_cache_dir(file) / f"{file.stem}{PYC_TAIL}"


def _rewrite(config: pytest.Config, files: Iterable[Path]) -> None:
    for file in files:
        kept(file).parent.mkdir(exist_ok=True)
        source_hash, code = _rewrite_test(file, config)
        _write_pyc(config.stash[assertstate_key], code, source_hash, kept(file))
