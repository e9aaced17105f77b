"""Topics: their registry, how they are created, changed and deleted, and Kafka's internal topics.

May import: the runtime, partitions, the store. Nothing here knows groups, transactions or staging.
"""
