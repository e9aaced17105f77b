"""Data pipelines between topics and files, on Spark: `krappy pipeline` runs them, and they are examples for your own.

archive     writes a topic's events to Parquet, by topic and date, each once
backfill    writes Parquet files to a topic, once
rollup      keeps an aggregate of a topic up to date in a compacted topic
reconcile   checks that a topic's table has the last event of each key of its archived log
scd2        writes the history of a topic's keys, as rows that are valid from … to …

Each takes a Spark session of any kind, and reports its progress to `tell`. Needs `pip install 'krappy[spark]'`.
"""
