"""Positions of groups."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.OFFSET_COMMIT: Shape(
        Versions(2, 10, flexible=8),
        request="""
        group_id                       string
        generation_id_or_member_epoch  int32         = -1
        member_id                      string
        group_instance_id              string?  7+
        retention_time_ms              int64    -4   = -1
        topics                         []  once name,topic_id
          name                         string   -9
          topic_id                     uuid     10+
          partitions                   []  once partition_index
            partition_index            int32
            committed_offset           int64
            committed_leader_epoch     int32    6+   = -1
            committed_metadata         string?
        """,
        response="""
        throttle_time_ms     int32   3+
        topics               []
          name               string  -9
          topic_id           uuid    10+
          partitions         []
            partition_index  int32
            error_code       int16
        """,
    ),
    ApiKey.OFFSET_FETCH: Shape(
        Versions(1, 10, flexible=6),
        request="""
        group_id               string   -7
        topics                 []?2-7   -7  once name
          name                 string
          partition_indexes    []int32  once
        groups                 []       8+  once group_id
          group_id             string
          member_id            string?  9+
          member_epoch         int32    9+   = -1
          topics               []?  once name,topic_id
            name               string   8-9
            topic_id           uuid     10+
            partition_indexes  []int32  once
        require_stable         bool     7+
        """,
        response="""
        throttle_time_ms              int32    3+
        topics                        []       -7
          name                        string
          partitions                  []
            partition_index           int32
            committed_offset          int64
            committed_leader_epoch    int32    5-7  = -1
            metadata                  string?
            error_code                int16
        error_code                    int16    2-7
        groups                        []       8+
          group_id                    string
          topics                      []
            name                      string   8-9
            topic_id                  uuid     10+
            partitions                []
              partition_index         int32
              committed_offset        int64
              committed_leader_epoch  int32         = -1
              metadata                string?
              error_code              int16
          error_code                  int16
        """,
    ),
    ApiKey.OFFSET_DELETE: Shape(
        Versions(0, 0),
        request="""
        group_id             string
        topics               []  once name
          name               string
          partitions         []  once partition_index
            partition_index  int32
        """,
        response="""
        error_code           int16
        throttle_time_ms     int32
        topics               []
          name               string
          partitions         []
            partition_index  int32
            error_code       int16
        """,
    ),
}
