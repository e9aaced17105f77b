"""Share groups (KIP-932): members that share partitions, and acknowledge record by record."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.SHARE_GROUP_HEARTBEAT: Shape(
        Versions(1, 1, flexible=0),
        request="""
        group_id                string
        member_id               string
        member_epoch            int32
        rack_id                 string?
        subscribed_topic_names  []string?  once
        """,
        response="""
        throttle_time_ms       int32
        error_code             int16
        error_message          string?
        member_id              string?
        member_epoch           int32
        heartbeat_interval_ms  int32
        assignment             {}?
          topic_partitions     []
            topic_id           uuid
            partitions         []int32
        """,
    ),
    ApiKey.SHARE_GROUP_DESCRIBE: Shape(
        Versions(1, 1, flexible=0),
        request="""
        group_ids                      []string  once
        include_authorized_operations  bool
        """,
        response="""
        throttle_time_ms            int32
        groups                      []
          error_code                int16
          error_message             string?
          group_id                  string
          group_state               string
          group_epoch               int32
          assignment_epoch          int32
          assignor_name             string
          members                   []
            member_id               string
            rack_id                 string?
            member_epoch            int32
            client_id               string
            client_host             string
            subscribed_topic_names  []string
            assignment              {}
              topic_partitions      []
                topic_id            uuid
                topic_name          string
                partitions          []int32
          authorized_operations     int32  = -2147483648
        """,
    ),
    ApiKey.SHARE_FETCH: Shape(
        Versions(1, 2, flexible=0),
        request="""
        group_id                   string?
        member_id                  string?
        share_session_epoch        int32
        max_wait_ms                int32
        min_bytes                  int32
        max_bytes                  int32       = 2147483647
        max_records                int32
        batch_size                 int32
        share_acquire_mode         int8    2+
        is_renew_ack               bool    2+
        topics                     []
          topic_id                 uuid
          partitions               []
            partition_index        int32
            acknowledgement_batches  []
              first_offset         int64
              last_offset          int64
              acknowledge_types    []int8
        forgotten_topics_data      []  once topic_id
          topic_id                 uuid
          partitions               []int32  once
        """,
        response="""
        throttle_time_ms             int32
        error_code                   int16
        error_message                string?
        acquisition_lock_timeout_ms  int32
        responses                    []
          topic_id                   uuid
          partitions                 []
            partition_index          int32
            error_code               int16
            error_message            string?
            acknowledge_error_code   int16
            acknowledge_error_message  string?
            current_leader           {}
              leader_id              int32
              leader_epoch           int32
            records                  records
            acquired_records         []
              first_offset           int64
              last_offset            int64
              delivery_count         int16
        node_endpoints               []
          node_id                    int32
          host                       string
          port                       int32
          rack                       string?
        """,
    ),
    ApiKey.SHARE_ACKNOWLEDGE: Shape(
        Versions(1, 2, flexible=0),
        request="""
        group_id                   string?
        member_id                  string?
        share_session_epoch        int32
        is_renew_ack               bool    2+
        topics                     []
          topic_id                 uuid
          partitions               []
            partition_index        int32
            acknowledgement_batches  []
              first_offset         int64
              last_offset          int64
              acknowledge_types    []int8
        """,
        response="""
        throttle_time_ms             int32
        error_code                   int16
        error_message                string?
        acquisition_lock_timeout_ms  int32   2+
        responses                    []
          topic_id                   uuid
          partitions                 []
            partition_index          int32
            error_code               int16
            error_message            string?
            current_leader           {}
              leader_id              int32
              leader_epoch           int32
        node_endpoints               []
          node_id                    int32
          host                       string
          port                       int32
          rack                       string?
        """,
    ),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: Shape(
        Versions(0, 1, flexible=0),
        request="""
        groups          []  once group_id
          group_id      string
          topics        []?  once topic_name
            topic_name  string
            partitions  []int32  once
        """,
        response="""
        throttle_time_ms     int32
        groups               []
          group_id           string
          topics             []
            topic_name       string
            topic_id         uuid
            partitions       []
              partition_index  int32
              start_offset   int64
              leader_epoch   int32
              lag            int64  1+  = -1
              error_code     int16
              error_message  string?
          error_code         int16
          error_message      string?
        """,
    ),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        group_id           string
        topics             []  once topic_name
          topic_name       string
          partitions       []  once partition_index
            partition_index  int32
            start_offset   int64
        """,
        response="""
        throttle_time_ms   int32
        error_code         int16
        error_message      string?
        responses          []
          topic_name       string
          topic_id         uuid
          partitions       []
            partition_index  int32
            error_code     int16
            error_message  string?
        """,
    ),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        group_id      string
        topics        []  once topic_name
          topic_name  string
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        error_message     string?
        responses         []
          topic_name      string
          topic_id        uuid
          error_code      int16
          error_message   string?
        """,
    ),
}
