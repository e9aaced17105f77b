"""What holds for the suite itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.process import ROOT
from tests.rewritten import kept, rewrite
from tests.workers import FIRST, TOGETHER

STARTS_ONE = """
import subprocess, sys
import tests.conftest
SLEEPS = "import time; print(flush=True); time.sleep(60)"
with subprocess.Popen([sys.executable, "-c", SLEEPS], stdout=-1) as process:
    process.stdout.readline()
    process.send_signal(int(sys.argv[1]))
    print(process.wait(30))
"""


@pytest.mark.parametrize("number", [1, 2])
def test_a_suite_in_the_background_can_end_what_it_starts(number: int) -> None:
    """`nohup make test &` ignores SIGHUP (1) and SIGINT (2); what a test starts does not."""
    command = ["sh", "-c", 'trap "" HUP INT; exec "$@"', "sh", sys.executable, "-c", STARTS_ONE, str(number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert int(done.stdout) in (-number, 1), done.stderr  # by KeyboardInterrupt, or by the signal


def test_what_begins_first_is_there() -> None:
    """Each file that is to begin first exists. One that was renamed would begin last, and end last."""
    assert all((ROOT / unit).exists() for unit in {*FIRST, *TOGETHER})


def test_pytest_finds_a_file_rewritten(
    tmp_path: Path, pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    file = tmp_path / "test_one.py"
    file.write_text("def test_one():\n    assert 1 + 1 == 2\n")
    rewrite(pytestconfig, [file])
    before = kept(file).stat()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(file)]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    subprocess.run(command, cwd=tmp_path, env=environ, check=True, capture_output=True, timeout=120)
    assert list(kept(file).parent.iterdir()) == [kept(file)]
    assert kept(file).stat().st_ino == before.st_ino, "pytest has rewritten it again"
