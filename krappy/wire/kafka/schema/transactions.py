"""Producer ids and transactions.

The fields `transaction_number` and `owner` are not Kafka's: by them Krappy's brokers tell each other which of an id's
transactions is meant, and for which user they ask (`krappy.ports.audit.whose`). Their tags are far above those that
Kafka gives.
"""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.INIT_PRODUCER_ID: Shape(
        Versions(0, 5, flexible=2),
        request="""
        transactional_id        string?
        transaction_timeout_ms  int32
        producer_id             int64    3+  = -1
        producer_epoch          int16    3+  = -1
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        producer_id       int64  = -1
        producer_epoch    int16
        """,
    ),
    ApiKey.ADD_PARTITIONS_TO_TXN: Shape(
        Versions(0, 5, flexible=3),
        request="""
        transactions                   []  4+  once transactional_id
          transactional_id             string
          producer_id                  int64
          producer_epoch               int16
          verify_only                  bool
          topics                       []  once name
            name                       string
            partitions                 []int32  once
          owner                        string  tag 10000
        v3_and_below_transactional_id  string  0-3
        v3_and_below_producer_id       int64   0-3
        v3_and_below_producer_epoch    int16   0-3
        v3_and_below_topics            []  0-3  once name
          name                         string
          partitions                   []int32  once
        """,
        response="""
        throttle_time_ms               int32
        error_code                     int16  4+
        results_by_transaction         []  4+
          transactional_id             string
          transaction_number           int64  = -1  tag 10000
          topic_results                []
            name                       string
            results_by_partition       []
              partition_index          int32
              partition_error_code     int16
        results_by_topic_v3_and_below  []  0-3
          name                         string
          results_by_partition         []
            partition_index            int32
            partition_error_code       int16
        """,
    ),
    ApiKey.ADD_OFFSETS_TO_TXN: Shape(
        Versions(0, 4, flexible=3),
        request="""
        transactional_id  string
        producer_id       int64
        producer_epoch    int16
        group_id          string
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        """,
    ),
    ApiKey.END_TXN: Shape(
        Versions(0, 5, flexible=3),
        request="""
        transactional_id  string
        producer_id       int64
        producer_epoch    int16
        committed         bool
        """,
        response="""
        throttle_time_ms  int32
        error_code        int16
        producer_id       int64  5+  = -1
        producer_epoch    int16  5+  = -1
        """,
    ),
    ApiKey.WRITE_TXN_MARKERS: Shape(
        Versions(1, 2, flexible=1),
        request="""
        markers                []
          producer_id          int64
          producer_epoch       int16
          transaction_result   bool
          topics               []  once name
            name               string
            partition_indexes  []int32  once
          coordinator_epoch    int32
          transaction_version  int8   2+
          transaction_number   int64  = -1  tag 10000
        """,
        response="""
        markers               []
          producer_id         int64
          topics              []
            name              string
            partitions        []
              partition_index int32
              error_code      int16
        """,
    ),
    ApiKey.TXN_OFFSET_COMMIT: Shape(
        Versions(0, 5, flexible=3),
        request="""
        transactional_id            string
        group_id                    string
        producer_id                 int64
        producer_epoch              int16
        generation_id               int32    3+  = -1
        member_id                   string   3+
        group_instance_id           string?  3+
        topics                      []  once name
          name                      string
          partitions                []  once partition_index
            partition_index         int32
            committed_offset        int64
            committed_leader_epoch  int32    2+  = -1
            committed_metadata      string?
        """,
        response="""
        throttle_time_ms     int32
        topics               []
          name               string
          partitions         []
            partition_index  int32
            error_code       int16
        """,
    ),
    ApiKey.DESCRIBE_PRODUCERS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        topics               []  once name
          name               string
          partition_indexes  []int32  once
        """,
        response="""
        throttle_time_ms                int32
        topics                          []
          name                          string
          partitions                    []
            partition_index             int32
            error_code                  int16
            error_message               string?
            active_producers            []
              producer_id               int64
              producer_epoch            int32
              last_sequence             int32    = -1
              last_timestamp            int64    = -1
              coordinator_epoch         int32
              current_txn_start_offset  int64    = -1
        """,
    ),
    ApiKey.DESCRIBE_TRANSACTIONS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        transactional_ids  []string  once
        """,
        response="""
        throttle_time_ms             int32
        transaction_states           []
          error_code                 int16
          transactional_id           string
          transaction_state          string
          transaction_timeout_ms     int32
          transaction_start_time_ms  int64
          producer_id                int64
          producer_epoch             int16
          topics                     []
            topic                    string
            partitions               []int32
        """,
    ),
    ApiKey.LIST_TRANSACTIONS: Shape(
        Versions(0, 2, flexible=0),
        request="""
        state_filters             []string  once
        producer_id_filters       []int64  once
        duration_filter           int64     1+  = -1
        transactional_id_pattern  string?   2+
        """,
        response="""
        throttle_time_ms        int32
        error_code              int16
        unknown_state_filters   []string
        transaction_states      []
          transactional_id      string
          producer_id           int64
          transaction_state     string
        """,
    ),
}
