"""Tables: scans, watches, snapshots and histories over the views of a topic's partitions, and the repair of views.

May import: partitions and the runtime.
"""
