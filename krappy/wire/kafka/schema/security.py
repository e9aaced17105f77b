"""ACLs, delegation tokens, quotas."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape

TABLE: dict[ApiKey, Shape] = {
    ApiKey.CREATE_ACLS: Shape(
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
    ApiKey.CREATE_DELEGATION_TOKEN: Shape(
        request="""
        owner_principal_type  string?  3+
        owner_principal_name  string?  3+
        renewers              []
          principal_type      string
          principal_name      string
        max_lifetime_ms       int64
        """,
        response="""
        error_code                      int16
        principal_type                  string
        principal_name                  string
        token_requester_principal_type  string  3+
        token_requester_principal_name  string  3+
        issue_timestamp_ms              int64
        expiry_timestamp_ms             int64
        max_timestamp_ms                int64
        token_id                        string
        hmac                            bytes
        throttle_time_ms                int32
        """,
    ),
    ApiKey.RENEW_DELEGATION_TOKEN: Shape(
        request="""
        hmac             bytes
        renew_period_ms  int64
        """,
        response="""
        error_code           int16
        expiry_timestamp_ms  int64
        throttle_time_ms     int32
        """,
    ),
    ApiKey.EXPIRE_DELEGATION_TOKEN: Shape(
        request="""
        hmac                   bytes
        expiry_time_period_ms  int64
        """,
        response="""
        error_code           int16
        expiry_timestamp_ms  int64
        throttle_time_ms     int32
        """,
    ),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: Shape(
        request="""
        owners            []?
          principal_type  string
          principal_name  string
        """,
        response="""
        error_code                        int16
        tokens                            []
          principal_type                  string
          principal_name                  string
          token_requester_principal_type  string  3+
          token_requester_principal_name  string  3+
          issue_timestamp                 int64
          expiry_timestamp                int64
          max_timestamp                   int64
          token_id                        string
          hmac                            bytes
          renewers                        []
            principal_type                string
            principal_name                string
        throttle_time_ms                  int32
        """,
    ),
    ApiKey.ALTER_CLIENT_QUOTAS: Shape(
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
