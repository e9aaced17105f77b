"""k8s/README.md as the tests type it in: they run its blocks of shell as they are written."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.k8s.cluster import parts
from tests.k8s.cluster.sandbox import INSIDE

K8S = parts.ROOT / "k8s"
GUIDE = (K8S / "README.md").read_text()
BLOCK_S = 900


def blocks(heading: str, language: str = "sh") -> list[str]:
    """The code blocks below a heading."""
    _, _, text = GUIDE.partition(f"\n## {heading}\n")
    assert text, f"the guide has no heading {heading!r}"
    return re.findall(rf"^```{language}\n(.*?)^```", text.partition("\n## ")[0], re.MULTILINE | re.DOTALL)


class Desk:
    """A folder with k8s/ in it and the overlay `my-krappy` beside it, as the guide shows it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(K8S, folder / "k8s")
        (folder / "my-krappy").mkdir()
        self.overlay = folder / "my-krappy" / "kustomization.yaml"
        [text] = blocks("Install", "yaml")
        self.overlay.write_text(text)

    def type(self, commands: str) -> str:
        """Runs the commands in bash, which stops at the first one that fails; returns what they have written."""
        environ = {
            **os.environ,
            "KUBECONFIG": str(INSIDE / "kubeconfig"),
            "PATH": f"{parts.GO}:{os.environ['PATH']}",
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=self.folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=BLOCK_S,
        )
        assert done.returncode == 0, f"{commands}\n{done.stdout}"
        return done.stdout

    def replace(self, file: str, old: str, new: str) -> None:
        """Edits a file, in which `old` stands once."""
        path = self.folder / file
        text = path.read_text()
        assert text.count(old) == 1, f"{old!r} in {text}"
        path.write_text(text.replace(old, new))
