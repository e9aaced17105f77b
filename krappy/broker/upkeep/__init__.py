"""What keeps house: retention, compaction, room on the disk, backups, and what the broker asks of its machine.

May enter: everything below the broker itself.
"""
