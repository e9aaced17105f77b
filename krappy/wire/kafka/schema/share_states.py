"""What brokers ask of the broker that keeps the states of a share group (KIP-932).

The fields with tags from 10000 on are not Kafka's; by them Krappy's brokers tell each other more. The tagged
`error_code` and `error_message` are of the whole request. `version` is that of a state. `lineage` has the leader epochs
of the records before the state's end: the offset from which on they are known, then each epoch and its first offset.
`whole`: all of the group is meant. `owner`: the user for whom a broker asks (`krappy.ports.audit.whose`).
"""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

_REFUSED = """
        results            []
          topic_id         uuid
          partitions       []
            partition      int32
            error_code     int16
            error_message  string?
        error_code         int16    = 0  tag 10000
        error_message      string?  tag 10001
        """

TABLE: dict[ApiKey, Shape] = {
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: Shape(
        Versions(0, 0, flexible=0),
        request="""
        group_id          string
        topics            []  once topic_id
          topic_id        uuid
          partitions      []  once partition
            partition     int32
            state_epoch   int32
            start_offset  int64
        owner             string  tag 10000
        """,
        response=_REFUSED,
    ),
    ApiKey.READ_SHARE_GROUP_STATE: Shape(
        Versions(0, 0, flexible=0),
        request="""
        group_id          string
        topics            []  once topic_id
          topic_id        uuid
          partitions      []  once partition
            partition     int32
            leader_epoch  int32
        owner             string  tag 10000
        """,
        response="""
        results             []
          topic_id          uuid
          partitions        []
            partition       int32
            error_code      int16
            error_message   string?
            state_epoch     int32
            start_offset    int64
            state_batches   []
              first_offset    int64
              last_offset     int64
              delivery_state  int8
              delivery_count  int16
            version         int64    = 0  tag 10000
            lineage         []int64  tag 10001
        error_code          int16    = 0  tag 10000
        error_message       string?  tag 10001
        """,
    ),
    ApiKey.WRITE_SHARE_GROUP_STATE: Shape(
        Versions(0, 1, flexible=0),
        request="""
        group_id            string
        topics              []  once topic_id
          topic_id          uuid
          partitions        []  once partition
            partition       int32
            state_epoch     int32
            leader_epoch    int32
            start_offset    int64
            delivery_complete_count  int32  1+  = -1
            state_batches   []
              first_offset    int64
              last_offset     int64
              delivery_state  int8
              delivery_count  int16
            version         int64    = 0  tag 10000
            lineage         []int64  tag 10001
        """,
        response=_REFUSED,
    ),
    ApiKey.DELETE_SHARE_GROUP_STATE: Shape(
        Versions(0, 0, flexible=0),
        request="""
        group_id      string
        topics        []  once topic_id
          topic_id    uuid
          partitions  []  once partition
            partition  int32
        whole         bool  tag 10000
        """,
        response=_REFUSED.rstrip()
        + """
        found              bool     tag 10002
        """,
    ),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: Shape(
        Versions(0, 1, flexible=0),
        request="""
        group_id          string
        topics            []  once topic_id
          topic_id        uuid
          partitions      []  once partition
            partition     int32
            leader_epoch  int32
        """,
        response="""
        results            []
          topic_id         uuid
          partitions       []
            partition      int32
            error_code     int16
            error_message  string?
            state_epoch    int32
            leader_epoch   int32
            start_offset   int64
            delivery_complete_count  int32  1+  = -1
        error_code         int16    = 0  tag 10000
        error_message      string?  tag 10001
        """,
    ),
}
