"""Staged jobs: writes of many tasks that are published together, once.

May import: topics and partitions, producers' ids.
"""
