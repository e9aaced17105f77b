"""Native groups: members that lease events, their positions, dead letters.

`groups.GroupCoordinator` is the face. May enter: topics and partitions, the runtime, and the names of Kafka's groups.
"""
