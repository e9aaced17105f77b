"""Reading and changing settings."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape

TABLE: dict[ApiKey, Shape] = {
    ApiKey.DESCRIBE_CONFIGS: Shape(
        request="""
        resources              []  once resource_type,resource_name
          resource_type        int8
          resource_name        string
          configuration_keys   []string?  once
        include_synonyms       bool
        include_documentation  bool       3+
        """,
        response="""
        throttle_time_ms   int32
        results            []
          error_code       int16
          error_message    string?
          resource_type    int8
          resource_name    string
          configs          []
            name           string
            value          string?
            read_only      bool
            config_source  int8         = -1
            is_sensitive   bool
            synonyms       []
              name         string
              value        string?
              source       int8
            config_type    int8     3+
            documentation  string?  3+
        """,
    ),
    ApiKey.ALTER_CONFIGS: Shape(
        request="""
        resources        []
          resource_type  int8
          resource_name  string
          configs        []
            name         string
            value        string?
        validate_only    bool
        """,
        response="""
        throttle_time_ms  int32
        responses         []
          error_code      int16
          error_message   string?
          resource_type   int8
          resource_name   string
        """,
    ),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: Shape(
        request="""
        resources             []
          resource_type       int8
          resource_name       string
          configs             []
            name              string
            config_operation  int8
            value             string?
        validate_only         bool
        """,
        response="""
        throttle_time_ms  int32
        responses         []
          error_code      int16
          error_message   string?
          resource_type   int8
          resource_name   string
        """,
    ),
}
