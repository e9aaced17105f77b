"""Authentication, ACLs, quotas."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.SASL_HANDSHAKE: Shape(
        Versions(0, 1),  # after version 0 the mechanism's messages come without a head (KIP-43)
        request="""
        mechanism  string
        """,
        response="""
        error_code  int16
        mechanisms  []string
        """,
    ),
    ApiKey.SASL_AUTHENTICATE: Shape(
        Versions(0, 2, flexible=2),
        request="""
        auth_bytes  bytes
        """,
        response="""
        error_code           int16
        error_message        string?
        auth_bytes           bytes
        session_lifetime_ms  int64    1+
        """,
    ),
    ApiKey.DESCRIBE_ACLS: Shape(
        Versions(1, 3, flexible=2),
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
    ApiKey.CREATE_ACLS: Shape(
        Versions(1, 3, flexible=2),
        request="""
        creations                []
          resource_type          int8
          resource_name          string
          resource_pattern_type  int8     = 3
          principal              string
          host                   string
          operation              int8
          permission_type        int8
        """,
        response="""
        throttle_time_ms  int32
        results           []
          error_code      int16
          error_message   string?
        """,
    ),
    ApiKey.DELETE_ACLS: Shape(
        Versions(1, 3, flexible=2),
        request="""
        filters                 []
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
        filter_results       []
          error_code         int16
          error_message      string?
          matching_acls      []
            error_code       int16
            error_message    string?
            resource_type    int8
            resource_name    string
            pattern_type     int8     = 3
            principal        string
            host             string
            operation        int8
            permission_type  int8
        """,
    ),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Shape(
        Versions(0, 0, flexible=0),
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
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Shape(
        Versions(0, 0, flexible=0),
        request="""
        deletions          []
          name             string
          mechanism        int8
        upsertions         []
          name             string
          mechanism        int8
          iterations       int32
          salt             bytes
          salted_password  bytes
        """,
        response="""
        throttle_time_ms  int32
        results           []
          user            string
          error_code      int16
          error_message   string?
        """,
    ),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: Shape(
        Versions(0, 1, flexible=1),
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
    ApiKey.ALTER_CLIENT_QUOTAS: Shape(
        Versions(0, 1, flexible=1),
        request="""
        entries          []
          entity         []
            entity_type  string
            entity_name  string?
          ops            []
            key          string
            value        float64
            remove       bool
        validate_only    bool
        """,
        response="""
        throttle_time_ms  int32
        entries           []
          error_code      int16
          error_message   string?
          entity          []
            entity_type   string
            entity_name   string?
        """,
    ),
}
