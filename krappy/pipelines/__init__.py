"""Data pipelines between topics and files, on Spark: what `krappy pipeline` runs, and examples to write one's own by.

archive     a topic's events to Parquet, by topic and date, each once
backfill    Parquet back into a topic, once
rollup      a running aggregate of a topic, upserted into a compacted one
reconcile   whether a topic's table is the last event of each key of its archived log
scd2        the history of a topic's keys as rows that hold from … to …

Each takes a Spark session, of whatever kind, and says by `tell` how far it is. Needs `pip install 'krappy[spark]'`.
"""
