"""Requests of admin tools and web consoles."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape

TABLE: dict[ApiKey, Shape] = {
    ApiKey.DESCRIBE_ACLS: Shape(
        request="""
        resource_type_filter  int8
        resource_name_filter  string?
        pattern_type_filter   int8     = 3
        principal_filter      string?
        host_filter           string?
        operation             int8
        permission_type       int8
        """,
        response="""
        throttle_time_ms     int32
        error_code           int16
        error_message        string?
        resources            []
          resource_type      int8
          resource_name      string
          pattern_type       int8     = 3
          acls               []
            principal        string
            host             string
            operation        int8
            permission_type  int8
        """,
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Shape(
        request="""
        topics        []?  once topic
          topic       string
          partitions  []int32  once
        """,
        response="""
        throttle_time_ms       int32
        error_code             int16   3+
        results                []
          error_code           int16
          log_dir              string
          topics               []
            name               string
            partitions         []
              partition_index  int32
              partition_size   int64
              offset_lag       int64
              is_future_key    bool
          total_bytes          int64   4+  = -1
          usable_bytes         int64   4+  = -1
        """,
    ),
    ApiKey.ALTER_REPLICA_LOG_DIRS: Shape(
        request="""
        dirs            []  once path
          path          string
          topics        []  once name
            name        string
            partitions  []int32  once
        """,
        response="""
        throttle_time_ms     int32
        results              []
          topic_name         string
          partitions         []
            partition_index  int32
            error_code       int16
        """,
    ),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Shape(
        request="""
        timeout_ms           int32      = 60000
        topics               []
          name               string
          partitions         []
            partition_index  int32
            replicas         []int32?   = null
        """,
        response="""
        throttle_time_ms     int32
        error_code           int16
        error_message        string?
        responses            []
          name               string
          partitions         []
            partition_index  int32
            error_code       int16
            error_message    string?
        """,
    ),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Shape(
        request="""
        timeout_ms           int32    = 60000
        topics               []?  once name
          name               string
          partition_indexes  []int32  once
        """,
        response="""
        throttle_time_ms       int32
        error_code             int16
        error_message          string?
        topics                 []
          name                 string
          partitions           []
            partition_index    int32
            replicas           []int32
            adding_replicas    []int32
            removing_replicas  []int32
        """,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Shape(
        request="""
        components     []
          entity_type  string
          match_type   int8
          match        string?
        strict         bool
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        error_message     string?
        entries           []?
          entity          []
            entity_type   string
            entity_name   string?
          values          []
            key           string
            value         float64
        """,
    ),
    ApiKey.DESCRIBE_QUORUM: Shape(
        request="""
        topics               []  once topic_name
          topic_name         string
          partitions         []  once partition_index
            partition_index  int32
        """,
        response="""
        error_code                      int16
        error_message                   string?  2+
        topics                          []
          topic_name                    string
          partitions                    []
            partition_index             int32
            error_code                  int16
            error_message               string?  2+
            leader_id                   int32
            leader_epoch                int32
            high_watermark              int64
            current_voters              []
              replica_id                int32
              replica_directory_id      uuid     2+
              log_end_offset            int64
              last_fetch_timestamp      int64    1+  = -1
              last_caught_up_timestamp  int64    1+  = -1
            observers                   []
              replica_id                int32
              replica_directory_id      uuid     2+
              log_end_offset            int64
              last_fetch_timestamp      int64    1+  = -1
              last_caught_up_timestamp  int64    1+  = -1
        nodes                           []       2+
          node_id                       int32
          listeners                     []
            name                        string
            host                        string
            port                        uint16
        """,
    ),
    ApiKey.ELECT_LEADERS: Shape(
        request="""
        election_type     int8        1+
        topic_partitions  []?  once topic
          topic           string
          partitions      []int32  once
        timeout_ms        int32           = 60000
        """,
        response="""
        throttle_time_ms           int32
        error_code                 int16    1+
        replica_election_results   []
          topic                    string
          partition_result         []
            partition_id           int32
            error_code             int16
            error_message          string?
        """,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Shape(
        request="""
        users   []?
          name  string
        """,
        response="""
        throttle_time_ms    int32
        error_code          int16
        error_message       string?
        results             []
          user              string
          error_code        int16
          error_message     string?
          credential_infos  []
            mechanism       int8
            iterations      int32
        """,
    ),
    ApiKey.LIST_CONFIG_RESOURCES: Shape(
        request="""
        resource_types  []int8  1+  once
        """,
        response="""
        throttle_time_ms   int32
        error_code         int16
        config_resources   []
          resource_name    string
          resource_type    int8    1+  = 16
        """,
    ),
}
