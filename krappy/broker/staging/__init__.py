"""Staged jobs: writes that are published as a whole, once.

May enter: topics and partitions, producers' ids.
"""
