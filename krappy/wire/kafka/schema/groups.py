"""Classic groups, and tools for all groups."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.JOIN_GROUP: Shape(
        Versions(0, 9, flexible=6),
        request="""
        group_id              string
        session_timeout_ms    int32
        rebalance_timeout_ms  int32    1+  = -1
        member_id             string
        group_instance_id     string?  5+
        protocol_type         string
        protocols             []
          name                string
          metadata            bytes
        reason                string?  8+
        """,
        response="""
        throttle_time_ms     int32      2+
        error_code           int16
        generation_id        int32          = -1
        protocol_type        string?    7+
        protocol_name        string?7+
        leader               string
        skip_assignment      bool       9+
        member_id            string
        members              []
          member_id          string
          group_instance_id  string?    5+
          metadata           bytes
        """,
    ),
    ApiKey.HEARTBEAT: Shape(
        Versions(0, 4, flexible=4),
        request="""
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+
        """,
        response="""
        throttle_time_ms  int32  1+
        error_code        int16
        """,
    ),
    ApiKey.LEAVE_GROUP: Shape(
        Versions(0, 5, flexible=4),
        request="""
        group_id             string
        member_id            string   -2
        members              []       3+  once member_id,group_instance_id
          member_id          string
          group_instance_id  string?
          reason             string?  5+
        """,
        response="""
        throttle_time_ms     int32    1+
        error_code           int16
        members              []       3+
          member_id          string
          group_instance_id  string?
          error_code         int16
        """,
    ),
    ApiKey.SYNC_GROUP: Shape(
        Versions(0, 5, flexible=4),
        request="""
        group_id           string
        generation_id      int32
        member_id          string
        group_instance_id  string?  3+
        protocol_type      string?  5+
        protocol_name      string?  5+
        assignments        []  once member_id
          member_id        string
          assignment       bytes
        """,
        response="""
        throttle_time_ms  int32    1+
        error_code        int16
        protocol_type     string?  5+
        protocol_name     string?  5+
        assignment        bytes
        """,
    ),
    ApiKey.DESCRIBE_GROUPS: Shape(
        Versions(0, 6, flexible=5),
        request="""
        groups                         []string  once
        include_authorized_operations  bool      3+
        """,
        response="""
        throttle_time_ms         int32    1+
        groups                   []
          error_code             int16
          error_message          string?  6+
          group_id               string
          group_state            string
          protocol_type          string
          protocol_data          string
          members                []
            member_id            string
            group_instance_id    string?  4+
            client_id            string
            client_host          string
            member_metadata      bytes
            member_assignment    bytes
          authorized_operations  int32    3+  = -2147483648
        """,
    ),
    ApiKey.LIST_GROUPS: Shape(
        Versions(0, 5, flexible=3),
        request="""
        states_filter  []string  4+  once
        types_filter   []string  5+  once
        """,
        response="""
        throttle_time_ms  int32   1+
        error_code        int16
        groups            []
          group_id        string
          protocol_type   string
          group_state     string  4+
          group_type      string  5+
        """,
    ),
    ApiKey.DELETE_GROUPS: Shape(
        Versions(0, 2, flexible=2),
        request="""
        groups_names  []string  once
        """,
        response="""
        throttle_time_ms  int32
        results           []
          group_id        string
          error_code      int16
        """,
    ),
}
