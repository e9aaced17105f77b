"""What each version of PySpark offers to a Python data source, in one table."""

from __future__ import annotations

from typing import NamedTuple

import pyspark

OLDEST = (4, 0)
OLDEST_JAVA = 17


class Features(NamedTuple):
    """`push_filters`: DataSourceReader.pushFilters. `arrow_stream_writer`: DataSourceStreamArrowWriter. `arrow_udf`:
    arrow_udf and arrow_udtf. `admission_control`: latestOffset(start, limit), ReadLimits, reportLatestOffset,
    SupportsTriggerAvailableNow. `arrow_timezone`: to_arrow_schema takes a `timezone`. `newest_java`: PySpark runs on
    Java 17 to this one."""

    push_filters: bool
    arrow_stream_writer: bool
    arrow_udf: bool
    admission_control: bool
    arrow_timezone: bool
    newest_java: int


#               push   stream arrow  admission arrow     newest
#               Filters writer udf    control   timezone  Java
FEATURES = {
    (4, 0): Features(False, False, False, False, False, 21),
    (4, 1): Features(True, True, True, False, False, 21),
    (4, 2): Features(True, True, True, True, True, 25),
    (4, 3): Features(True, True, True, True, True, 25),
}


def version() -> tuple[int, int]:
    """The version of the installed PySpark, such as (4, 3)."""
    major, minor = pyspark.__version__.split(".")[:2]
    return int(major), int(minor)


def features() -> Features:
    """What the installed PySpark offers; a version newer than all in FEATURES counts as the newest of these.

    Raises ImportError for PySpark before 4.0, which has no Python data sources.
    """
    found = version()
    if found < OLDEST:
        raise ImportError(f"krappy.spark needs PySpark 4.0 or newer, and this is {pyspark.__version__}")
    return FEATURES[max(each for each in FEATURES if each <= found)]
