"""What is refused, and what it says: by Spark's planner, before anything runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from pyspark.errors import AnalysisException

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_an_unknown_option_is_refused_by_load(spark: SparkSession) -> None:
    """And with that, the data source is found without having been registered by anybody."""
    with pytest.raises(AnalysisException, match="has no option 'startingoffset'; the nearest is 'startingOffsets'"):
        spark.read.format("krappy").option("startingOffset", "earliest").load()
