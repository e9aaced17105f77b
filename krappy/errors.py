"""Every error that Krappy raises, as one tree.

    KrappyError
    ├── ConfigError                      a setting is unknown or out of range
    │   └── Unavailable                  the setting is right, but this machine lacks what it needs
    ├── ConnectionLost          retry    the peer went away; clients reconnect by themselves first
    ├── RequestTimeout          retry    no answer in the time allowed
    ├── ProtocolError                    bytes that are not the protocol; closes the connection
    │   └── FrameTooLarge
    ├── BrokerError                      the broker refused a request; has a wire code
    │   ├── InvalidRequest               wrong field, wrong type, unknown message
    │   ├── UnknownTopic, UnknownPartition, TopicExists, InvalidTopic, InvalidPartitions,
    │   │   InvalidReplicationFactor, InvalidConfig, PolicyViolation
    │   ├── NotLeader            retry    another broker leads this partition, or none does now
    │   ├── NotEnoughReplicas, NotEnoughReplicasAfterAppend, NotCoordinator (retry)
    │   ├── CoordinatorNotAvailable      retry
    │   │   └── CoordinatorLoading
    │   ├── OffsetOutOfRange, UnknownHandle, ViewDisabled, ShuttingDown (retry), Overloaded (retry)
    │   ├── RecordTooLarge, OffsetMismatch, UnsupportedCompression
    │   ├── InvalidRecord
    │   │   └── InvalidTimestamp         of a record; `index` is its place in the batch
    │   ├── SnapshotGone                 the snapshot has ended, or this broker never had it
    │   ├── OutOfOrderSequence, ProducerFenced
    │   ├── InvalidTransaction, UnknownProducerMapping, InvalidTransactionTimeout, TransactionFenced,
    │   │   TransactionPending (retry), CoordinatorFenced
    │   │   └── TransactionAbortable     what was sent is not part of the transaction
    │   ├── AuthorizationFailed          the principal may not do this
    │   │   └── TopicAuthorizationFailed, GroupAuthorizationFailed, ClusterAuthorizationFailed,
    │   │       TransactionalIdAuthorizationFailed
    │   ├── SecurityDisabled             it concerns ACLs, and the broker has no authorizer
    │   ├── UnknownGroup, WrongGroupKind, GroupNotEmpty, GroupFull, UnknownMember, LeaseLost
    │   ├── AuthenticationFailed, UnsupportedMechanism, IllegalLogin, UnknownUser
    │   └── StagingFenced, StagingExpired, StagingCommitted, UnknownStaging, StagingFull
    └── StorageError            retry    the disk refused; the request was not applied
        └── CorruptBatch                 bytes on disk or on the wire whose checksum or structure is wrong

Each class has its `code` and its `name` on the wire, and tells whether the same request may be sent again
(`retriable`). Codes below 1000 are Kafka's (`Errors.java`), so that both protocols agree; codes from 1000 on are the
native protocol's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Self

LONGEST_TEXT = 1000  # characters: a text may repeat thousands of names that a client sent


class KrappyError(Exception):
    """The root of the tree.

    `details` holds the error's own facts (such as the current offset) as msgpack values. They travel over the wire, and
    are attributes of the error, on the client's side too.
    """

    code: ClassVar[int] = -1
    name: ClassVar[str] = "UNKNOWN_SERVER_ERROR"
    retriable: ClassVar[bool] = False

    def __init__(self, text: str = "", /, **details: Any) -> None:
        self.text = text[:LONGEST_TEXT] or self.name
        super().__init__(self.text)
        self.details = details

    def copy(self) -> Self:
        """The same error, to be kept or raised another time: one that was raised keeps its traceback, and all that this
        refers to."""
        return type(self)(self.text, **self.details)

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("_") or attribute == "details":
            raise AttributeError(attribute)
        try:
            return self.details[attribute]
        except KeyError:
            raise AttributeError(f"{type(self).__name__} has no {attribute!r}") from None


class ConfigError(KrappyError):
    code, name = 1007, "BAD_SETTING"


class Unavailable(ConfigError):
    """The machine lacks something: a port is taken, or a package or a Java is not installed."""


class ConnectionLost(KrappyError):
    code, name, retriable = 13, "NETWORK_EXCEPTION", True


class RequestTimeout(KrappyError):
    code, name, retriable = 7, "REQUEST_TIMED_OUT", True


class ProtocolError(KrappyError):
    """Bytes that the protocol does not allow. The only error that a decoder raises."""

    code, name = 1000, "PROTOCOL_ERROR"


class FrameTooLarge(ProtocolError):
    code, name = 1005, "FRAME_TOO_LARGE"


class BrokerError(KrappyError):
    """The broker understood the request and refused it."""


class InvalidRequest(BrokerError):
    code, name = 42, "INVALID_REQUEST"


class UnknownTopic(BrokerError):
    code, name = 3, "UNKNOWN_TOPIC"


class UnknownPartition(BrokerError):
    code, name = 1010, "UNKNOWN_PARTITION"


class NotLeader(BrokerError):
    """This broker does not lead the partition. `details`: topic, partition, leader (a broker's id; -1: nobody) and
    leader_epoch, as far as this broker knows."""

    code, name, retriable = 6, "NOT_LEADER_OR_FOLLOWER", True


class CoordinatorNotAvailable(BrokerError):
    """The broker that coordinates this group, transactional id or job is away, or not chosen yet."""

    code, name, retriable = 15, "COORDINATOR_NOT_AVAILABLE", True


class CoordinatorLoading(CoordinatorNotAvailable):
    """This broker has just become the coordinator, and is reading what the one before knew."""

    code, name = 14, "COORDINATOR_LOAD_IN_PROGRESS"


class NotCoordinator(BrokerError):
    """Another broker coordinates this group, transactional id or job. `details`: coordinator, its id."""

    code, name, retriable = 16, "NOT_COORDINATOR", True


class NotEnoughReplicas(BrokerError):
    """Fewer replicas are in sync than `min.insync.replicas` demands. Nothing was written."""

    code, name, retriable = 19, "NOT_ENOUGH_REPLICAS", True


class NotEnoughReplicasAfterAppend(BrokerError):
    """As NotEnoughReplicas, but the events are in the leader's log already. They may be committed later."""

    code, name, retriable = 20, "NOT_ENOUGH_REPLICAS_AFTER_APPEND", True


class TopicExists(BrokerError):
    code, name = 36, "TOPIC_ALREADY_EXISTS"


class InvalidTopic(BrokerError):
    code, name = 17, "INVALID_TOPIC"


class InvalidPartitions(BrokerError):
    code, name = 37, "INVALID_PARTITIONS"


class InvalidReplicationFactor(BrokerError):
    code, name = 38, "INVALID_REPLICATION_FACTOR"


class InvalidConfig(BrokerError):
    code, name = 40, "INVALID_CONFIG"


class PolicyViolation(BrokerError):
    """A topic's cleanup.policy does not allow the request, or it asks for more than is allowed at once."""

    code, name = 44, "POLICY_VIOLATION"


class OffsetOutOfRange(BrokerError):
    """`details`: start, end (offsets that may be read: start <= offset <= end), topic and partition."""

    code, name = 1, "OFFSET_OUT_OF_RANGE"


class UnknownHandle(BrokerError):
    code, name = 1001, "UNKNOWN_HANDLE"


class ViewDisabled(BrokerError):
    code, name = 1006, "VIEW_DISABLED"


class ShuttingDown(BrokerError):
    code, name, retriable = 1004, "SHUTTING_DOWN", True


class Overloaded(BrokerError):
    code, name, retriable = 89, "THROTTLING_QUOTA_EXCEEDED", True


class RecordTooLarge(BrokerError):
    code, name = 10, "MESSAGE_TOO_LARGE"


class InvalidRecord(BrokerError):
    code, name = 87, "INVALID_RECORD"


class InvalidTimestamp(InvalidRecord):
    code, name = 32, "INVALID_TIMESTAMP"


class OffsetMismatch(BrokerError):
    """A conditional write found its key at another offset. `details`: current (int, or None for absent)."""

    code, name = 1002, "OFFSET_MISMATCH"


class UnsupportedCompression(BrokerError):
    code, name = 76, "UNSUPPORTED_COMPRESSION_TYPE"


class SnapshotGone(BrokerError):
    """The snapshot has expired or was closed, its topic was deleted, or the broker was restarted."""

    code, name = 1020, "SNAPSHOT_GONE"


class OutOfOrderSequence(BrokerError):
    code, name = 45, "OUT_OF_ORDER_SEQUENCE_NUMBER"


class ProducerFenced(BrokerError):
    code, name = 47, "INVALID_PRODUCER_EPOCH"


class UnknownProducer(BrokerError):
    """A producer id that this broker has not given out; the producer must ask for a new one."""

    code, name = 59, "UNKNOWN_PRODUCER_ID"


class InvalidTransaction(BrokerError):
    """The transaction's state does not allow the request, or the partition is not part of the transaction."""

    code, name = 48, "INVALID_TXN_STATE"


class TransactionAbortable(InvalidTransaction):
    """What was sent is not part of the transaction. The producer may abort that, and go on (KIP-1050)."""

    code, name = 120, "TRANSACTION_ABORTABLE"


class CoordinatorFenced(BrokerError):
    """A newer coordinator has ended a transaction of this producer: the one that asks was deposed."""

    code, name = 52, "TRANSACTION_COORDINATOR_FENCED"


class UnknownProducerMapping(BrokerError):
    """This producer id does not belong to this transactional id."""

    code, name = 49, "INVALID_PRODUCER_ID_MAPPING"


class InvalidTransactionTimeout(BrokerError):
    code, name = 50, "INVALID_TRANSACTION_TIMEOUT"


class TransactionPending(BrokerError):
    """The request must wait for a transaction that is not decided or not completed yet."""

    code, name, retriable = 51, "CONCURRENT_TRANSACTIONS", True


class TransactionFenced(BrokerError):
    """A newer producer has taken over this transactional id."""

    code, name = 90, "PRODUCER_FENCED"


class AuthorizationFailed(BrokerError):
    """The principal may not do this. The error does not tell whether what it names exists."""


class TopicAuthorizationFailed(AuthorizationFailed):
    code, name = 29, "TOPIC_AUTHORIZATION_FAILED"


class GroupAuthorizationFailed(AuthorizationFailed):
    code, name = 30, "GROUP_AUTHORIZATION_FAILED"


class ClusterAuthorizationFailed(AuthorizationFailed):
    code, name = 31, "CLUSTER_AUTHORIZATION_FAILED"


class TransactionalIdAuthorizationFailed(AuthorizationFailed):
    """The principal may not use a transactional id; or a staged job, whose name counts as one."""

    code, name = 53, "TRANSACTIONAL_ID_AUTHORIZATION_FAILED"


class SecurityDisabled(BrokerError):
    """The request concerns ACLs, and the broker has no authorizer."""

    code, name = 54, "SECURITY_DISABLED"


class UnknownGroup(BrokerError):
    code, name = 69, "GROUP_ID_NOT_FOUND"


class WrongGroupKind(BrokerError):
    """The name is a Kafka group's, and the request is for native groups."""

    code, name = 23, "INCONSISTENT_GROUP_PROTOCOL"


class GroupNotEmpty(BrokerError):
    code, name = 68, "NON_EMPTY_GROUP"


class GroupFull(BrokerError):
    code, name = 81, "GROUP_MAX_SIZE_REACHED"


class UnknownMember(BrokerError):
    code, name = 25, "UNKNOWN_MEMBER_ID"


class LeaseLost(BrokerError):
    """An ack, nack or extend named events that this member does not hold any more."""

    code, name = 1003, "LEASE_LOST"


class AuthenticationFailed(BrokerError):
    """The user or the password is wrong, or nobody has logged in."""

    code, name = 58, "SASL_AUTHENTICATION_FAILED"


class UnsupportedMechanism(BrokerError):
    """The broker does not have this mechanism of SASL; the text names those that it has."""

    code, name = 33, "UNSUPPORTED_SASL_MECHANISM"


class IllegalLogin(BrokerError):
    """A message of a login at a moment, or on a listener, where it does not belong."""

    code, name = 34, "ILLEGAL_SASL_STATE"


class UnknownUser(BrokerError):
    code, name = 91, "RESOURCE_NOT_FOUND"


class StagingFenced(BrokerError):
    """The job was aborted: nothing more is staged for it, and nothing of it is ever published."""

    code, name = 1030, "STAGING_FENCED"


class StagingExpired(BrokerError):
    """The job was silent for longer than its time to live; what it had staged was dropped."""

    code, name = 1031, "STAGING_EXPIRED"


class StagingCommitted(BrokerError):
    """The job was committed: nothing more is staged for it, and it can't be aborted."""

    code, name = 1032, "STAGING_COMMITTED"


class UnknownStaging(BrokerError):
    """There is no such staged attempt. One that is not sealed ends when the broker stops."""

    code, name = 1033, "UNKNOWN_STAGING"


class StagingFull(BrokerError):
    """All staged events together take as many bytes on disk as allowed (`staging_bytes`), or those of one user as many
    as are left for others."""

    code, name = 1034, "STAGING_FULL"


class StorageError(KrappyError):
    code, name, retriable = 56, "STORAGE_ERROR", True


class CorruptBatch(StorageError):
    code, name, retriable = 2, "CORRUPT_BATCH", False


class TopicDiffers(UserWarning):
    """A topic existed already (`create_topic(…, if_absent=True)`), and differs from what was asked for. `differs`: by
    setting, or "partitions": what was asked for, and what is."""

    def __init__(self, topic: str, differs: dict[str, tuple[Any, Any]]) -> None:
        told = "; ".join(f"{name} is {there}, not {asked}" for name, (asked, there) in differs.items())
        super().__init__(f"the topic '{topic}' was there already, and differs: {told}")
        self.differs = differs


class StillRefused(UserWarning):
    """A reader, a member of a group or a watch waits because its broker refuses to give events, and tries again."""

    def __init__(self, error: KrappyError) -> None:
        super().__init__(f"the broker gives no events for now, and is asked again and again: {error.text}")


UNCHANGED = ": nothing was changed"  # how the text of a ConnectionLost ends that was raised before anything was written


@contextmanager
def after_steps(made: str) -> Iterator[None]:
    """Around one step of a change that is made in several steps. `made`: what the steps before it have changed; empty:
    nothing. If this step was not sent because the connection was lost, the ConnectionLost tells what was made."""
    try:
        yield
    except ConnectionLost as error:
        if not made or error.details.get("sent") is not False:
            raise
        why = error.text.removesuffix(UNCHANGED)
        raise ConnectionLost(f"{made}, and no more than that: {why}", sent=True) from error


def _tree(root: type[KrappyError]) -> list[type[KrappyError]]:
    return [root] + [leaf for child in root.__subclasses__() for leaf in _tree(child)]


BY_NAME: dict[str, type[KrappyError]] = {cls.name: cls for cls in reversed(_tree(KrappyError))}


def from_wire(name: str, text: str, details: dict[str, Any]) -> KrappyError:
    """The exception for an error frame; an unknown name (a newer broker's) becomes a plain BrokerError."""
    return BY_NAME.get(name, BrokerError)(text, **details)
