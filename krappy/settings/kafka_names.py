"""Kafka's names ("Broker Configs") of the broker's settings that Kafka has, too. The units are the same as ours."""

from krappy.settings.authorization import AUTHORIZATION_NAMES
from krappy.settings.inter_broker import INTER_BROKER_NAMES
from krappy.settings.oauth import OAUTH_NAMES
from krappy.settings.security import SECURITY_NAMES
from krappy.settings.share import SHARE_NAMES
from krappy.settings.zookeeper import ZOOKEEPER_NAMES

KAFKA_NAMES = {
    "advertised.listeners": "advertised_listeners",
    "auto.create.topics.enable": "auto_create_topics",
    "broker.id": "broker_id",
    "broker.rack": "rack",
    "default.replication.factor": "default_replication_factor",
    "connections.max.idle.ms": "idle_timeout_ms",
    "group.consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval_ms",
    "group.consumer.migration.policy": "group_consumer_migration_policy",
    "group.consumer.session.timeout.ms": "group_consumer_session_timeout_ms",
    "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay_ms",
    "group.max.session.timeout.ms": "group_max_session_timeout_ms",
    "group.min.session.timeout.ms": "group_min_session_timeout_ms",
    "listeners": "listen_kafka",
    "log.cleaner.backoff.ms": "cleaner_backoff_ms",
    "log.cleaner.io.max.bytes.per.second": "cleaner_io_max_bytes_per_second",
    "log.dir": "data",
    "log.dirs": "data",
    "log.retention.check.interval.ms": "retention_check_ms",
    "max.connections": "max_connections",
    "max.connections.per.ip": "max_connections_per_ip",
    "max.connections.per.ip.overrides": "max_connections_per_ip_overrides",
    "node.id": "broker_id",
    "num.partitions": "default_partitions",
    "replica.lag.time.max.ms": "replica_lag_time_max_ms",
    "auto.leader.rebalance.enable": "auto_leader_rebalance_enable",
    "leader.imbalance.check.interval.seconds": "leader_imbalance_check_interval_seconds",
    "leader.imbalance.per.broker.percentage": "leader_imbalance_per_broker_percentage",
    "producer.id.expiration.ms": "producer_id_expiration_ms",
    "socket.request.max.bytes": "max_frame_bytes",
    "transaction.max.timeout.ms": "transaction_max_timeout_ms",
    "transaction.state.log.min.isr": "transaction_state_log_min_isr",
    "transaction.state.log.num.partitions": "transaction_state_log_num_partitions",
    "transaction.state.log.replication.factor": "transaction_state_log_replication_factor",
    "transactional.id.expiration.ms": "transactional_id_expiration_ms",
    **AUTHORIZATION_NAMES,
    **INTER_BROKER_NAMES,
    **OAUTH_NAMES,
    **SECURITY_NAMES,
    **SHARE_NAMES,
    **ZOOKEEPER_NAMES,
}
