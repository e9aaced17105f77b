"""The Spark session of `krappy pipeline`, and Spark's errors in one line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession as Sessions

from krappy.errors import KrappyError
from krappy.spark import source
from krappy.spark.session import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "4",  # each costs a file and a task in every batch of a rollup
}


@contextmanager
def running(master: str | None, settings: Mapping[str, str], bars: bool = False) -> Iterator[SparkSession]:
    """A new session, which is stopped at the end; or the one that this process has, which is left as it is.

    Args:
        master: as in `krappy.spark.session`. With None or local… Spark listens only on this machine.
        settings: of Spark; they win over the defaults here.
        bars: whether Spark shows the progress of its stages on stderr.

    Raises KrappyError for errors of Spark inside the `with`, with only the cause as text.
    """
    there = Sessions.getActiveSession()
    spark = there or session(master, app="krappy pipeline", config=_config(master, settings, bars))
    try:
        if there is None:
            spark.sparkContext.setLogLevel(settings.get("spark.log.level", "OFF"))  # an error is raised at the end
        source.register(spark)
        yield spark
    except PySparkException as error:
        raise KrappyError(cause(str(error))) from error
    except Py4JJavaError as error:  # an error without a class in PySpark: a folder that can't be written to, say
        raise KrappyError(cause(str(error.java_exception))) from error
    finally:
        if there is None:
            spark.stop()


def _config(master: str | None, settings: Mapping[str, str], bars: bool) -> dict[str, str]:
    here = ON_THIS_MACHINE if master is None or master.startswith("local") else {}
    shown = {"spark.ui.showConsoleProgress": str(bars).lower()}
    return {"spark.sql.session.timeZone": "UTC", **here, **shown, **settings}


def cause(text: str) -> str:
    """The cause in the text of an error of Spark, which may be pages long: the last error of Krappy in it, else its
    first line."""
    ours: list[str] = re.findall(r"krappy\.errors\.\w+: (.+)", text)
    if ours:
        return ours[-1]
    return next((line for line in text.splitlines() if line.strip()), "Spark failed, and does not say why")
