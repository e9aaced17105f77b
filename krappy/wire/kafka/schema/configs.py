"""Reading and changing settings."""

from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.notation import Shape, Versions

TABLE: dict[ApiKey, Shape] = {
    ApiKey.DESCRIBE_CONFIGS: Shape(
        Versions(1, 4, flexible=4),
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
        Versions(0, 2, flexible=2),
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
        Versions(0, 1, flexible=1),
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
    ApiKey.LIST_CONFIG_RESOURCES: Shape(
        Versions(0, 1, flexible=0),
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
