"""Writing and reading records."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.PRODUCE: Shape(
        Versions(3, 13, flexible=9),
        request="""
        transactional_id  string?
        acks              int16
        timeout_ms        int32
        topic_data        []
          name            string    -12
          topic_id        uuid      13+
          partition_data  []
            index         int32
            records       records?
        """,
        response="""
        responses                        []
          name                           string   -12
          topic_id                       uuid     13+
          partition_responses            []
            index                        int32
            error_code                   int16
            base_offset                  int64
            log_append_time_ms           int64         = -1
            log_start_offset             int64    5+   = -1
            record_errors                []       8+
              batch_index                int32
              batch_index_error_message  string?
            error_message                string?  8+
            current_leader               {}       10+        tag 0
              leader_id                  int32         = -1
              leader_epoch               int32         = -1
        throttle_time_ms                 int32
        node_endpoints                   []       10+        tag 0
          node_id                        int32
          host                           string
          port                           int32
          rack                           string?
        """,
    ),
    ApiKey.FETCH: Shape(
        Versions(4, 18, flexible=12),
        request="""
        cluster_id                string?  12+                 tag 0
        replica_id                int32    -14   = -1
        replica_state             {}       15+                 tag 1
          replica_id              int32          = -1
          replica_epoch           int64          = -1
        max_wait_ms               int32
        min_bytes                 int32
        max_bytes                 int32          = 2147483647
        isolation_level           int8
        session_id                int32    7+
        session_epoch             int32    7+    = -1
        topics                    []  once topic,topic_id
          topic                   string   -12
          topic_id                uuid     13+
          partitions              []  once partition
            partition             int32
            current_leader_epoch  int32    9+    = -1
            fetch_offset          int64
            last_fetched_epoch    int32    12+   = -1
            log_start_offset      int64    5+    = -1
            partition_max_bytes   int32
            replica_directory_id  uuid     17+                 tag 0
            high_watermark        int64    18+   = 9223372036854775807  tag 1
        forgotten_topics_data     []       7+  once topic,topic_id
          topic                   string   7-12
          topic_id                uuid     13+
          partitions              []int32  once
        rack_id                   string   11+
        """,
        response="""
        throttle_time_ms            int32
        error_code                  int16     7+
        session_id                  int32     7+
        responses                   []
          topic                     string    -12
          topic_id                  uuid      13+
          partitions                []
            partition_index         int32
            error_code              int16
            high_watermark          int64
            last_stable_offset      int64          = -1
            log_start_offset        int64     5+   = -1
            diverging_epoch         {}        12+        tag 0
              epoch                 int32          = -1
              end_offset            int64          = -1
            current_leader          {}        12+        tag 1
              leader_id             int32          = -1
              leader_epoch          int32          = -1
            snapshot_id             {}        12+        tag 2
              end_offset            int64          = -1
              epoch                 int32          = -1
            aborted_transactions    []?
              producer_id           int64
              first_offset          int64
            preferred_read_replica  int32     11+  = -1
            records                 records?
        node_endpoints              []        16+        tag 0
          node_id                   int32
          host                      string
          port                      int32
          rack                      string?
        """,
    ),
    ApiKey.LIST_OFFSETS: Shape(
        Versions(1, 9, flexible=6),
        request="""
        replica_id                int32
        isolation_level           int8    2+
        topics                    []
          name                    string
          partitions              []
            partition_index       int32
            current_leader_epoch  int32   4+  = -1
            timestamp             int64
        """,
        response="""
        throttle_time_ms     int32   2+
        topics               []
          name               string
          partitions         []
            partition_index  int32
            error_code       int16
            timestamp        int64       = -1
            offset           int64       = -1
            leader_epoch     int32   4+  = -1
        """,
    ),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: Shape(
        Versions(2, 4, flexible=4),
        request="""
        replica_id                int32   3+  = -2
        topics                    []  once topic
          topic                   string
          partitions              []  once partition
            partition             int32
            current_leader_epoch  int32       = -1
            leader_epoch          int32
        """,
        response="""
        throttle_time_ms  int32
        topics            []
          topic           string
          partitions      []
            error_code    int16
            partition     int32
            leader_epoch  int32   = -1
            end_offset    int64   = -1
        """,
    ),
}
