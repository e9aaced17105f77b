"""Which files of a folder this process has open. Files and connections of other tests may be closed meanwhile, so these
don't count."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def open_files(folder: Path) -> int:
    found = 0
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{name}").startswith(f"{folder}/")
    return found
