"""A small file system of its own, for tests of full disks."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest


class Tmpfs:
    """A mounted tmpfs. `size`: as the option of mount, such as "8m". Skips the test if it can't be mounted."""

    def __init__(self, folder: Path, size: str) -> None:
        self.log = folder / "broker.log"
        self.folder = folder / "tmpfs"
        self._others = self.folder / "others"
        self.folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self.folder)]
        if subprocess.run(command, capture_output=True, check=False).returncode:
            pytest.skip("no tmpfs can be mounted here")

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.folder)], check=True)

    def fill(self) -> None:
        """Fills it to the last byte, as other programs may do. That includes room that the broker frees meanwhile."""
        with self._others.open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return

    def clear(self) -> None:
        """Takes away what `fill` has written."""
        self._others.unlink(missing_ok=True)

    def close(self) -> None:
        subprocess.run(["umount", "-l", str(self.folder)], check=True)
