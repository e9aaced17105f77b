"""What the Python processes import that Spark starts to plan queries: each of them starts anew, and pays
for all of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from krappy.blocking import Client

# Modules of Krappy's, of its dependencies' and of Arrow's that only tasks, or only the broker, need.
# `importlib.metadata` comes with crc32c, and brings a parser of mail.
HEAVY = {
    "anyio",
    "crc32c",
    "cramjam",
    "difflib",
    "importlib.metadata",
    "krappy.app",
    "krappy.records.batch",
    "krappy.clients.consuming",
    "krappy.clients.producing",
    "krappy.records.codecs",
    "krappy.spark.by_key",
    "krappy.spark.join",
    "lz4",
    "pandas",
    "pyarrow.compute",
    "re2",
    "rocksdict",
    "trio",
}

SCRIPT = """
import sys
from pyspark.sql.datasource import CaseInsensitiveDict
import pyspark.sql.worker.plan_data_source_read  # what is there before Krappy is asked anything
try:
    import pyspark.sql.streaming.python_streaming_source_runner
except ModuleNotFoundError:  # PySpark 4.0 has it elsewhere
    pass
before = set(sys.modules)
from krappy.spark.source import KrappyDataSource
from pyspark.sql.types import StringType, StructType, TimestampType
schema = StructType().add("key", StringType()).add("value", StringType()).add("timestamp", TimestampType())
def source(**options):
    return KrappyDataSource(CaseInsensitiveDict({"address": sys.argv[1], **options}))
%s
print(*sorted(set(sys.modules) - before))
"""
USES = {
    "a log": "made = source(subscribe=sys.argv[2]); found = made.reader(made.schema()).partitions()",
    "a table": 'made = source(subscribe=sys.argv[2], mode="table"); found = made.reader(made.schema()).partitions()',
    "keys": 'made = source(subscribe=sys.argv[2], key="u1"); found = made.reader(made.schema()).partitions()',
    "a stream": """
made = source(subscribe=sys.argv[2], startingOffsets="earliest")
reader = made.streamReader(made.schema())
begin = reader.initialOffset()
found = reader.partitions(begin, reader.latestOffset())
""",
    "a stream that begins with the table": """
made = source(subscribe=sys.argv[2], startingOffsets="snapshot")
reader = made.streamReader(made.schema())
begin = reader.initialOffset()
found = reader.partitions(begin, reader.latestOffset())
""",
    "a write": """
found = [source(topic=sys.argv[2]).writer(schema, False)]
""",
    "a stream's write": """
found = [source(topic=sys.argv[2]).streamWriter(schema, False)]
""",
}


@pytest.mark.parametrize("use", USES)
def test_to_plan_needs_nothing_heavy(use: str, client: Client, address: str) -> None:
    client.create_topic("planned", 2, if_absent=True)
    with client.producer("planned") as producer:
        producer.send("v", key="u1").result()
    script = SCRIPT % (USES[use] + "\nassert found")
    done = subprocess.run(
        [sys.executable, "-c", script, address, "planned"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stdout.split())
    assert "krappy.spark.source" in loaded
    assert not (found := loaded & HEAVY), found
