"""The handlers of Kafka's protocol, one file for each API, and the list of them all."""

from __future__ import annotations

from krappy.handlers.kafka.add_offsets_to_txn import add_offsets_to_txn
from krappy.handlers.kafka.add_partitions_to_txn import add_partitions_to_txn
from krappy.handlers.kafka.alter_client_quotas import alter_client_quotas
from krappy.handlers.kafka.alter_configs import alter_configs
from krappy.handlers.kafka.alter_partition_reassignments import alter_partition_reassignments
from krappy.handlers.kafka.alter_replica_log_dirs import alter_replica_log_dirs
from krappy.handlers.kafka.api_versions import ApiVersions
from krappy.handlers.kafka.consumer_group_describe import consumer_group_describe
from krappy.handlers.kafka.consumer_group_heartbeat import consumer_group_heartbeat
from krappy.handlers.kafka.create_acls import create_acls
from krappy.handlers.kafka.create_partitions import create_partitions
from krappy.handlers.kafka.create_topics import create_topics
from krappy.handlers.kafka.delegation_tokens import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from krappy.handlers.kafka.delete_acls import delete_acls
from krappy.handlers.kafka.delete_groups import delete_groups
from krappy.handlers.kafka.delete_records import delete_records
from krappy.handlers.kafka.delete_topics import delete_topics
from krappy.handlers.kafka.describe_acls import describe_acls
from krappy.handlers.kafka.describe_client_quotas import describe_client_quotas
from krappy.handlers.kafka.describe_cluster import describe_cluster
from krappy.handlers.kafka.describe_configs import describe_configs
from krappy.handlers.kafka.describe_groups import describe_groups
from krappy.handlers.kafka.describe_log_dirs import describe_log_dirs
from krappy.handlers.kafka.describe_producers import describe_producers
from krappy.handlers.kafka.describe_quorum import describe_quorum
from krappy.handlers.kafka.describe_topic_partitions import describe_topic_partitions
from krappy.handlers.kafka.describe_transactions import describe_transactions
from krappy.handlers.kafka.describe_user_scram_credentials import describe_user_scram_credentials
from krappy.handlers.kafka.elect_leaders import elect_leaders
from krappy.handlers.kafka.end_txn import end_txn
from krappy.handlers.kafka.fetch import fetch
from krappy.handlers.kafka.find_coordinator import find_coordinator
from krappy.handlers.kafka.heartbeat import heartbeat
from krappy.handlers.kafka.incremental_alter_configs import incremental_alter_configs
from krappy.handlers.kafka.init_producer_id import init_producer_id
from krappy.handlers.kafka.join_group import join_group
from krappy.handlers.kafka.leave_group import leave_group
from krappy.handlers.kafka.list_config_resources import list_config_resources
from krappy.handlers.kafka.list_groups import list_groups
from krappy.handlers.kafka.list_offsets import list_offsets
from krappy.handlers.kafka.list_partition_reassignments import list_partition_reassignments
from krappy.handlers.kafka.list_transactions import list_transactions
from krappy.handlers.kafka.metadata import metadata
from krappy.handlers.kafka.offset_commit import offset_commit
from krappy.handlers.kafka.offset_delete import offset_delete
from krappy.handlers.kafka.offset_fetch import offset_fetch
from krappy.handlers.kafka.offset_for_leader_epoch import offset_for_leader_epoch
from krappy.handlers.kafka.produce import produce
from krappy.handlers.kafka.registry import KafkaRegistry
from krappy.handlers.kafka.sasl_authenticate import sasl_authenticate
from krappy.handlers.kafka.sasl_handshake import sasl_handshake
from krappy.handlers.kafka.sync_group import sync_group
from krappy.handlers.kafka.txn_offset_commit import txn_offset_commit
from krappy.handlers.kafka.update_features import UpdateFeatures
from krappy.wire.kafka import ApiKey


def registry() -> KafkaRegistry:
    """Every API that is served, by its key, with the versions that are."""
    found = KafkaRegistry()
    found.features["group.version"] = 1  # KIP-848
    register = found.register
    register(ApiKey.PRODUCE, produce, 3, 13)
    register(ApiKey.FETCH, fetch, 4, 17)
    register(ApiKey.LIST_OFFSETS, list_offsets, 1, 9)
    register(ApiKey.METADATA, metadata, 0, 13)
    register(ApiKey.OFFSET_COMMIT, offset_commit, 2, 10)
    register(ApiKey.OFFSET_FETCH, offset_fetch, 1, 10)
    register(ApiKey.FIND_COORDINATOR, find_coordinator, 0, 6)
    register(ApiKey.JOIN_GROUP, join_group, 0, 9)
    register(ApiKey.HEARTBEAT, heartbeat, 0, 4)
    register(ApiKey.LEAVE_GROUP, leave_group, 0, 5)
    register(ApiKey.SYNC_GROUP, sync_group, 0, 5)
    register(ApiKey.DESCRIBE_GROUPS, describe_groups, 0, 6)
    register(ApiKey.LIST_GROUPS, list_groups, 0, 5)
    register(ApiKey.SASL_HANDSHAKE, sasl_handshake, 0, 1)
    register(ApiKey.API_VERSIONS, ApiVersions(found), 0, 4)
    register(ApiKey.CREATE_TOPICS, create_topics, 2, 7)
    register(ApiKey.DELETE_TOPICS, delete_topics, 1, 6)
    register(ApiKey.DELETE_RECORDS, delete_records, 0, 2)
    register(ApiKey.INIT_PRODUCER_ID, init_producer_id, 0, 5)
    register(ApiKey.OFFSET_FOR_LEADER_EPOCH, offset_for_leader_epoch, 2, 4)
    register(ApiKey.ADD_PARTITIONS_TO_TXN, add_partitions_to_txn, 0, 3)
    register(ApiKey.ADD_OFFSETS_TO_TXN, add_offsets_to_txn, 0, 4)
    register(ApiKey.END_TXN, end_txn, 0, 4)
    register(ApiKey.TXN_OFFSET_COMMIT, txn_offset_commit, 0, 4)
    register(ApiKey.DESCRIBE_ACLS, describe_acls, 1, 3)
    register(ApiKey.CREATE_ACLS, create_acls, 1, 3)
    register(ApiKey.DELETE_ACLS, delete_acls, 1, 3)
    register(ApiKey.DESCRIBE_CONFIGS, describe_configs, 1, 4)
    register(ApiKey.ALTER_CONFIGS, alter_configs, 0, 2)
    register(ApiKey.ALTER_REPLICA_LOG_DIRS, alter_replica_log_dirs, 1, 2)
    register(ApiKey.DESCRIBE_LOG_DIRS, describe_log_dirs, 1, 4)
    register(ApiKey.SASL_AUTHENTICATE, sasl_authenticate, 0, 2)
    register(ApiKey.CREATE_PARTITIONS, create_partitions, 0, 3)
    register(ApiKey.CREATE_DELEGATION_TOKEN, create_delegation_token, 1, 3)
    register(ApiKey.RENEW_DELEGATION_TOKEN, renew_delegation_token, 1, 2)
    register(ApiKey.EXPIRE_DELEGATION_TOKEN, expire_delegation_token, 1, 2)
    register(ApiKey.DESCRIBE_DELEGATION_TOKEN, describe_delegation_token, 1, 3)
    register(ApiKey.DELETE_GROUPS, delete_groups, 0, 2)
    register(ApiKey.ELECT_LEADERS, elect_leaders, 0, 2)
    register(ApiKey.INCREMENTAL_ALTER_CONFIGS, incremental_alter_configs, 0, 1)
    register(ApiKey.ALTER_PARTITION_REASSIGNMENTS, alter_partition_reassignments, 0, 0)
    register(ApiKey.LIST_PARTITION_REASSIGNMENTS, list_partition_reassignments, 0, 0)
    register(ApiKey.OFFSET_DELETE, offset_delete, 0, 0)
    register(ApiKey.DESCRIBE_CLIENT_QUOTAS, describe_client_quotas, 0, 1)
    register(ApiKey.ALTER_CLIENT_QUOTAS, alter_client_quotas, 0, 1)
    register(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, describe_user_scram_credentials, 0, 0)
    register(ApiKey.DESCRIBE_QUORUM, describe_quorum, 0, 2)
    register(ApiKey.UPDATE_FEATURES, UpdateFeatures(found.features), 0, 2)
    register(ApiKey.DESCRIBE_CLUSTER, describe_cluster, 0, 2)
    register(ApiKey.DESCRIBE_PRODUCERS, describe_producers, 0, 0)
    register(ApiKey.DESCRIBE_TRANSACTIONS, describe_transactions, 0, 0)
    register(ApiKey.LIST_TRANSACTIONS, list_transactions, 0, 1)
    register(ApiKey.CONSUMER_GROUP_HEARTBEAT, consumer_group_heartbeat, 0, 1)
    register(ApiKey.CONSUMER_GROUP_DESCRIBE, consumer_group_describe, 0, 1)
    register(ApiKey.LIST_CONFIG_RESOURCES, list_config_resources, 0, 1)
    register(ApiKey.DESCRIBE_TOPIC_PARTITIONS, describe_topic_partitions, 0, 0)
    return found
