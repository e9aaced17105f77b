"""Versions, topics, brokers, coordinators, disks."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.METADATA: Shape(
        Versions(0, 13, flexible=9),
        request="""
        topics                                 []?1+  once name,topic_id
          topic_id                             uuid        10+
          name                                 string?10+
        allow_auto_topic_creation              bool        4+    = true
        include_cluster_authorized_operations  bool        8-10
        include_topic_authorized_operations    bool        8+
        """,
        response="""
        throttle_time_ms               int32       3+
        brokers                        []
          node_id                      int32
          host                         string
          port                         int32
          rack                         string?     1+
        cluster_id                     string?     2+
        controller_id                  int32       1+    = -1
        topics                         []
          error_code                   int16
          name                         string?12+
          topic_id                     uuid        10+
          is_internal                  bool        1+
          partitions                   []
            error_code                 int16
            partition_index            int32
            leader_id                  int32
            leader_epoch               int32       7+    = -1
            replica_nodes              []int32
            isr_nodes                  []int32
            offline_replicas           []int32     5+
          topic_authorized_operations  int32       8+    = -2147483648
        cluster_authorized_operations  int32       8-10  = -2147483648
        error_code                     int16       13+
        """,
    ),
    ApiKey.FIND_COORDINATOR: Shape(
        Versions(0, 6, flexible=3),
        request="""
        key               string    -3
        key_type          int8      1+
        coordinator_keys  []string  4+  once
        """,
        response="""
        throttle_time_ms  int32    1+
        error_code        int16    -3
        error_message     string?  1-3
        node_id           int32    -3
        host              string   -3
        port              int32    -3
        coordinators      []       4+
          key             string
          node_id         int32
          host            string
          port            int32
          error_code      int16
          error_message   string?
        """,
    ),
    ApiKey.API_VERSIONS: Shape(
        Versions(0, 4, flexible=3),
        request="""
        client_software_name     string  3+
        client_software_version  string  3+
        """,
        response="""
        error_code                int16
        api_keys                  []
          api_key                 int16
          min_version             int16
          max_version             int16
        throttle_time_ms          int32   1+
        supported_features        []      3+        tag 0
          name                    string
          min_version             int16
          max_version             int16
        finalized_features_epoch  int64   3+  = -1  tag 1
        finalized_features        []      3+        tag 2
          name                    string
          max_version_level       int16
          min_version_level       int16
        zk_migration_ready        bool    3+        tag 3
        """,
    ),
    ApiKey.DESCRIBE_CLUSTER: Shape(
        Versions(0, 2, flexible=0),
        request="""
        include_cluster_authorized_operations  bool
        endpoint_type                          int8  1+  = 1
        include_fenced_brokers                 bool  2+
        """,
        response="""
        throttle_time_ms               int32
        error_code                     int16
        error_message                  string?
        endpoint_type                  int8     1+  = 1
        cluster_id                     string
        controller_id                  int32        = -1
        brokers                        []
          broker_id                    int32
          host                         string
          port                         int32
          rack                         string?
          is_fenced                    bool     2+
        cluster_authorized_operations  int32        = -2147483648
        """,
    ),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        topics                    []  once name
          name                    string
        response_partition_limit  int32   = 2000
        cursor                    {}?
          topic_name              string
          partition_index         int32
        """,
        response="""
        throttle_time_ms               int32
        topics                         []
          error_code                   int16
          name                         string?
          topic_id                     uuid
          is_internal                  bool
          partitions                   []
            error_code                 int16
            partition_index            int32
            leader_id                  int32
            leader_epoch               int32     = -1
            replica_nodes              []int32
            isr_nodes                  []int32
            eligible_leader_replicas   []int32?
            last_known_elr             []int32?
            offline_replicas           []int32
          topic_authorized_operations  int32     = -2147483648
        next_cursor                    {}?
          topic_name                   string
          partition_index              int32
        """,
    ),
    ApiKey.DESCRIBE_LOG_DIRS: Shape(
        Versions(1, 4, flexible=2),
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
    ApiKey.LIST_PARTITION_REASSIGNMENTS: Shape(
        Versions(0, 0, flexible=0),
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
    ApiKey.ALTER_REPLICA_LOG_DIRS: Shape(
        Versions(1, 2, flexible=2),
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
    ApiKey.ELECT_LEADERS: Shape(
        Versions(0, 2, flexible=2),
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
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: Shape(
        Versions(0, 0, flexible=0),
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
    ApiKey.DESCRIBE_QUORUM: Shape(
        Versions(0, 2, flexible=0),
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
    ApiKey.UPDATE_FEATURES: Shape(
        Versions(0, 2, flexible=0),
        request="""
        timeout_ms           int32       = 60000
        feature_updates      []
          feature            string
          max_version_level  int16
          allow_downgrade    bool    0
          upgrade_type       int8    1+  = 1
        validate_only        bool    1+
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        error_message     string?
        results           []       0-1
          feature         string
          error_code      int16
          error_message   string?
        """,
    ),
}
