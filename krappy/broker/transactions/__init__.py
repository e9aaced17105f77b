"""Transactions of Kafka's producers, and the ids that producers are given.

May enter: topics and partitions, Kafka's groups for the offsets that a transaction commits.
"""
