"""What is installed is what is in the tree, under one import name, and the clients stay light."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from krappy.version import VERSION

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SETUPTOOLS = PROJECT["tool"]["setuptools"]


FOUND_BY_PYSPARK = "krappy.spark.pyspark_krappy"  # installed as a top-level package: there PySpark looks


def packages_in_tree() -> dict[str, Path]:
    """Import name -> folder, for each folder that holds a package."""
    found = {}
    for top, name in (("krappy", "krappy"), ("store", "krappy.store"), ("handlers", "krappy.handlers")):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / top).parts
            if name != "krappy" or parts[:1] not in (("store",), ("handlers",)):
                found[".".join([name, *parts])] = init.parent
    found["pyspark_krappy"] = found.pop(FOUND_BY_PYSPARK)
    return found


def test_every_package_of_the_tree_is_listed() -> None:
    assert sorted(SETUPTOOLS["packages"]) == sorted(packages_in_tree())


def test_every_package_is_listed_with_its_folder() -> None:
    """setuptools finds krappy.x in krappy/x by itself; what lies elsewhere needs a line."""
    for name, folder in packages_in_tree().items():
        default = "/".join([SETUPTOOLS["package-dir"]["krappy"], *name.split(".")[1:]])
        assert ROOT / SETUPTOOLS["package-dir"].get(name, default) == folder, name


def test_no_folder_of_modules_lacks_an_init() -> None:
    listed = {folder.resolve() for folder in packages_in_tree().values()}
    for top in ("krappy", "store", "handlers"):
        for module in (ROOT / top).rglob("*.py"):
            assert module.parent.resolve() in listed, f"{module.parent} has modules but no __init__.py"


def test_the_links_for_static_tools_are_relative() -> None:
    for name in ("store", "handlers"):
        link = ROOT / "krappy" / name
        assert link.is_symlink()
        assert str(link.readlink()) == f"../{name}"


def test_the_version_is_told_once_more() -> None:
    assert PROJECT["project"]["version"] == VERSION


def test_each_dependency_says_what_it_is_for() -> None:
    """One line of comment beside each."""
    lines = (ROOT / "pyproject.toml").read_text().splitlines()
    extras = PROJECT["project"]["optional-dependencies"].values()
    for need in [*PROJECT["project"]["dependencies"], *(need for extra in extras for need in extra)]:
        if not need.startswith("krappy["):
            [line] = [line for line in lines if line.strip().startswith(f'"{need}"')]
            assert "#" in line, f"{need}: why?"


HEAVY = ("rocksdict", "trio", "click", "rich", "pandas", "numpy")
LIGHT_IMPORTS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {heavy!r}:
            raise ModuleNotFoundError(f"{{name}} is not installed here", name=name)

sys.meta_path.insert(0, Blocker())
import krappy
import krappy.blocking
import krappy.testing.plugin
print(krappy.connect, krappy.Producer, krappy.KrappyError, krappy.blocking.connect)
print(sorted({{name.split(".")[0] for name in sys.modules}} & set({heavy!r})))
"""


def test_clients_import_without_the_broker_s_libraries() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", LIGHT_IMPORTS.format(heavy=HEAVY)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_blocker_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIGHT_IMPORTS.format(heavy=HEAVY) + "\nimport trio"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "trio is not installed here" in done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and, built from it, the wheel."""
    folder = tmp_path_factory.mktemp("built")
    source = folder / "source"
    skipped = shutil.ignore_patterns(".venv", ".git", "__pycache__", "*.egg-info", "dist", "build", ".*_cache")
    shutil.copytree(ROOT, source, symlinks=True, ignore=skipped)
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder / "dist"), str(source)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode and any(sign in said for sign in ("No matching distribution", "Could not find a version")):
        pytest.skip("building needs setuptools from a package index, and none can be reached")
    assert done.returncode == 0, said
    return folder / "dist"


def test_the_wheel_holds_everything_under_one_name(built: Path) -> None:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    assert {name.split("/")[0] for name in held} == {
        "krappy",
        "pyspark_krappy",
        f"krappy-{PROJECT['project']['version']}.dist-info",
    }
    for name, folder in packages_in_tree().items():
        for module in folder.glob("*.py"):
            assert f"{name.replace('.', '/')}/{module.name}" in held
    assert "krappy/py.typed" in held
    documents = {
        str(path.relative_to(ROOT))
        for top in ("krappy/wire", "krappy/spark", "store")
        for path in (ROOT / top).glob("*.md")
    }
    assert {name if name.startswith("krappy/") else f"krappy/{name}" for name in documents} <= held


def test_the_sdist_holds_what_a_build_needs(built: Path) -> None:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "README.md", "LICENSE", "store/__init__.py", "handlers/__init__.py"} <= held


def test_the_wheel_imports_from_elsewhere(built: Path, tmp_path: Path) -> None:
    """Unpacked into a folder of its own, with the checkout out of sight."""
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path)
    code = (
        "import pkgutil, krappy.store, krappy.handlers, krappy.cli.main; print(krappy.store.__file__); "
        "print('pyspark_krappy' in {each.name for each in pkgutil.iter_modules(['.'])})"  # as PySpark looks for it
    )
    # -P and PYTHONPATH: the unpacked wheel goes before the editable install's own finder
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path))
    assert done.stdout.splitlines()[1] == "True"
