"""The settings of Kafka's share groups (KIP-932)."""

from __future__ import annotations

from dataclasses import dataclass

from krappy.settings.spec import number

# Kafka's names of these settings.
SHARE_NAMES = {
    "group.share.delivery.count.limit": "group_share_delivery_count_limit",
    "group.share.heartbeat.interval.ms": "group_share_heartbeat_interval_ms",
    "group.share.max.share.sessions": "group_share_max_share_sessions",
    "group.share.max.size": "group_share_max_size",
    "group.share.partition.max.record.locks": "group_share_partition_max_record_locks",
    "group.share.record.lock.duration.ms": "group_share_record_lock_duration_ms",
    "group.share.session.timeout.ms": "group_share_session_timeout_ms",
}


@dataclass(frozen=True, kw_only=True)  # no slots: only one base of ServerConfig may have them
class ShareSettings:
    """The part of a broker's settings that concerns share groups."""

    group_share_session_timeout_ms: int = number(
        45_000, "ms without a heartbeat after which a member of a share group is out", 1, 2**31 - 1
    )
    group_share_heartbeat_interval_ms: int = number(
        5_000, "ms between two heartbeats of a member of a share group", 1, 2**31 - 1
    )
    group_share_record_lock_duration_ms: int = number(
        30_000, "ms for which a member of a share group acquires a record", 1000, 3_600_000
    )
    group_share_delivery_count_limit: int = number(5, "how often a share group delivers a record at most", 2, 100)
    group_share_partition_max_record_locks: int = number(
        2_000, "most records of a partition that a share group has acquired, or is to deliver again", 100, 10_000
    )
    group_share_max_size: int = number(200, "members of one share group", 1, 1000)
    group_share_max_share_sessions: int = number(2_000, "most share sessions at this broker", 1, 1_000_000)
