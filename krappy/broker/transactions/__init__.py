"""Transactions of Kafka's producers, and the ids that producers are given.

May import: topics and partitions, Kafka's groups for the offsets that a transaction commits.
"""
