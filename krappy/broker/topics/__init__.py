"""Topics: the registry of them, how they come, change and go, and what Kafka's clients read like one.

May enter: the runtime, partitions, the store. Nothing here knows groups, transactions or staging.
"""
