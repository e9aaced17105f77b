"""The overlays as kustomize builds them."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(path.name for path in (ROOT / "k8s" / "overlays").iterdir())

Manifest = dict[str, Any]


def kustomize() -> list[str]:
    """The command that builds a folder. Skips where there is none, but not in CI."""
    if shutil.which("kubectl"):
        return ["kubectl", "kustomize"]
    if shutil.which("kustomize"):
        return ["kustomize", "build"]
    if os.environ.get("CI") == "true":
        pytest.fail("CI needs kubectl or kustomize")
    pytest.skip("neither kubectl nor kustomize is installed")


@cache
def built(folder: str) -> list[Manifest]:
    done = subprocess.run([*kustomize(), str(ROOT / "k8s" / folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr.strip(), done.stderr  # deprecations
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def only(manifests: list[Manifest], kind: str) -> Manifest:
    [found] = [each for each in manifests if each["kind"] == kind]
    return found


def container(manifests: list[Manifest]) -> Manifest:
    [found] = only(manifests, "StatefulSet")["spec"]["template"]["spec"]["containers"]
    assert isinstance(found, dict)
    return found
