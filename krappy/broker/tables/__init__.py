"""Tables: scans, watches, snapshots and histories over the views of a topic's partitions, and who keeps these whole.

May enter: partitions and the runtime.
"""
