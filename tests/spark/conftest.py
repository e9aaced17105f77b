"""One Spark session and one broker for all tests of the Spark data source: a session costs 8 s and 1 GB."""

from __future__ import annotations

import os
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import krappy.spark.pyspark_krappy
from krappy import blocking
from krappy.blocking import Client
from krappy.cli.spawn import spawn_broker
from krappy.errors import ConfigError
from krappy.spark.session import java_home, session
from tests.served import BROKERS, serving
from tests.spark import warm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",  # short queries: half the CPU time
}


def need_java() -> None:
    """Skips the test where there is no Java. With CI=true the test fails."""
    try:
        java_home()
    except ConfigError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


def python_path(folder: Path) -> str:
    """PYTHONPATH for Spark's Python processes: PySpark finds the data source in it as if the package were installed.

    An editable install keeps packages where PySpark does not search; a link in `folder` makes up for that.
    """
    if "pyspark_krappy" not in {module.name for module in pkgutil.iter_modules()}:
        (folder / "pyspark_krappy").symlink_to(Path(krappy.spark.pyspark_krappy.__path__[0]).resolve())
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, address: str) -> Iterator[SparkSession]:
    """A session with two cores, which tries a task twice. PySpark finds the data source by itself.

    The session's tasks have the broker's address in KRAPPY_ADDRESS, as on a cluster; the tests' own process has not.
    """
    need_java()
    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KRAPPY_ADDRESS", address)
        patch.setenv("PYTHONPATH", python_path(folder))
        patch.setenv("PYSPARK_PYTHON", warm.program(folder))
        patch.setenv("JAVA_HOME", os.environ.get("JAVA_HOME", ""))  # session() may set it: undone at the end
        if not os.environ["JAVA_HOME"]:
            del os.environ["JAVA_HOME"]
        started = session(
            "local[2,2]", app="tests", config={**SETTINGS, "spark.sql.warehouse.dir": str(folder / "sql")}
        )
        started.sparkContext.setLogLevel("OFF")
        patch.delenv("KRAPPY_ADDRESS")
        try:
            yield started
        finally:
            gateway: Any = started.sparkContext._gateway
            started.stop()
            gateway.shutdown()
            gateway.proc.stdin.close()
            gateway.proc.wait(60)


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A broker for all tests of the package. It deletes and compacts nothing by itself, since tests send old events.

    It is a process of its own, since a broker holds a file for each partition. Py4J waits by select(2), which knows
    only the first 1,024 descriptors of a process. With more of them, its thread for the JVM ends, and its callers wait
    for ever.
    """
    never = {"retention_check_ms": 86_400_000, "cleaner_backoff_ms": 86_400_000}
    folder = tmp_path_factory.mktemp("broker")
    if BROKERS > 1:
        with serving(folder, **never) as several:
            yield several.address
    else:
        with spawn_broker(folder / "data", {"durability": "os", **never}) as broker:
            yield broker.address


@pytest.fixture(scope="session")
def client(address: str) -> Iterator[Client]:
    with blocking.connect(address) as connected:
        yield connected


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic name of the test's own."""
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    return name[:200]
