"""Native groups: members that lease events, their positions, dead letters.

Other packages use `groups.GroupCoordinator`. May import: topics and partitions, the runtime, the names of Kafka's
groups.
"""
