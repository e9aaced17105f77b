"""Housekeeping: retention, compaction, room on the disk, backups, and the state of the machine.

May import: everything below the broker itself.
"""
