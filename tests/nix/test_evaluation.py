"""What nix/package.nix and nix/shell.nix make of a package set. They are evaluated with names and versions only."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# As in nixos-25.11 or newer, except for packages that it has in too old a version (starlette, msgspec, pyjwt) or not at
# all (rocksdict).
OLD = {"starlette": "0.49.1", "msgspec": "0.19.0", "pyjwt": "2.10.1"}
NEEDED = [
    *PROJECT["dependencies"],
    *PROJECT["optional-dependencies"]["broker"],
    *PROJECT["optional-dependencies"]["console"],
    *PROJECT["optional-dependencies"]["oauth"],
]


def evaluate(versions: dict[str, str]) -> subprocess.CompletedProcess[str]:
    if shutil.which("nix-instantiate") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("CI needs Nix")
        pytest.skip("Nix is not installed")
    stub = Path(__file__).with_name("stub.nix")
    call = f'import {stub} {{ versions = builtins.fromJSON (builtins.getEnv "VERSIONS"); }}'
    command = ["nix-instantiate", "--store", "dummy://", "--eval", "--strict", "--json", "--expr", call]
    environ = {**os.environ, "VERSIONS": json.dumps(versions)}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)


def evaluated(versions: dict[str, str]) -> dict[str, Any]:
    done = evaluate(versions)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def names() -> set[str]:
    return {row.partition(">=")[0].partition("[")[0] for row in NEEDED} - {"krappy"}


def test_what_is_new_enough_is_taken_and_the_rest_are_wheels() -> None:
    found = evaluated({**dict.fromkeys(names() - {"rocksdict"}, "99"), **OLD})
    assert found["version"] == PROJECT["version"]
    taken = {each["pname"]: each for each in found["taken"]}
    assert set(taken) == names()
    wheels = {name: each["src"] for name, each in taken.items() if "src" in each}
    assert set(wheels) == {"rocksdict", "msgspec", "pyjwt", "starlette"}
    assert wheels["starlette"].startswith("py3/starlette-1.")
    assert wheels["pyjwt"].startswith("py3/pyjwt-2.")
    for name in ("starlette", "pyjwt"):
        assert "py3-none-any sha256-" in wheels[name]
    for name in ("rocksdict", "msgspec"):
        assert wheels[name].startswith(f"cp313/{name}-")
        assert "aarch64" in wheels[name]


def test_a_set_that_has_all_needs_no_wheel() -> None:
    found = evaluated(dict.fromkeys(names(), "99"))
    assert not [each for each in found["taken"] if "src" in each]


def test_what_is_too_old_and_has_no_wheel_is_told() -> None:
    done = evaluate({**dict.fromkeys(names(), "99"), "anyio": "3.0"})
    assert done.returncode != 0
    assert "Krappy needs anyio>=" in done.stderr
    assert "this package set has 3.0" in done.stderr


def test_the_wheels_are_as_new_as_the_project_needs() -> None:
    from packaging.requirements import Requirement

    taken = evaluated(dict.fromkeys(OLD, "0") | dict.fromkeys(names() - set(OLD) - {"rocksdict"}, "99"))["taken"]
    versions = {each["pname"]: each["version"] for each in taken}
    for row in NEEDED:
        requirement = Requirement(row)
        if requirement.name in ("rocksdict", *OLD):
            assert requirement.specifier.contains(versions[requirement.name]), row


def test_the_shell_has_what_make_needs() -> None:
    shell = evaluated(dict.fromkeys(names(), "99"))["shell"]
    brought = {path.rpartition("/")[2] for path in shell["packages"]}
    assert {"python3", "gnumake", "jdk17_headless", "chromium", "kcat", "kustomize", "prometheus-cli"} <= brought
    assert shell["shellHook"].strip() == "export PYTHON=/stub/python3/bin/python3"
    assert shell["LD_LIBRARY_PATH"] == "/stub/gcc-lib/lib:/stub/zlib/lib"
