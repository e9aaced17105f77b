"""Creating, extending, shortening and deleting topics."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.CREATE_TOPICS: Shape(
        Versions(2, 7, flexible=5),
        request="""
        topics                []
          name                string
          num_partitions      int32
          replication_factor  int16
          assignments         []
            partition_index   int32
            broker_ids        []int32
          configs             []
            name              string
            value             string?
        timeout_ms            int32    = 60000
        validate_only         bool
        """,
        response="""
        throttle_time_ms           int32
        topics                     []
          name                     string
          topic_id                 uuid     7+
          error_code               int16
          error_message            string?
          topic_config_error_code  int16    5+        tag 0
          num_partitions           int32    5+  = -1
          replication_factor       int16    5+  = -1
          configs                  []?      5+
            name                   string
            value                  string?
            read_only              bool
            config_source          int8         = -1
            is_sensitive           bool
        """,
    ),
    ApiKey.DELETE_TOPICS: Shape(
        Versions(1, 6, flexible=4),
        request="""
        topics       []        6+
          name       string?
          topic_id   uuid
        topic_names  []string  -5
        timeout_ms   int32
        """,
        response="""
        throttle_time_ms  int32
        responses         []
          name            string?6+
          topic_id        uuid       6+
          error_code      int16
          error_message   string?    5+
        """,
    ),
    ApiKey.DELETE_RECORDS: Shape(
        Versions(0, 2, flexible=2),
        request="""
        topics               []  once name
          name               string
          partitions         []  once partition_index
            partition_index  int32
            offset           int64
        timeout_ms           int32
        """,
        response="""
        throttle_time_ms     int32
        topics               []
          name               string
          partitions         []
            partition_index  int32
            low_watermark    int64
            error_code       int16
        """,
    ),
    ApiKey.CREATE_PARTITIONS: Shape(
        Versions(0, 3, flexible=2),
        request="""
        topics          []
          name          string
          count         int32
          assignments   []?
            broker_ids  []int32
        timeout_ms      int32
        validate_only   bool
        """,
        response="""
        throttle_time_ms  int32
        results           []
          name            string
          error_code      int16
          error_message   string?
        """,
    ),
}
