"""Krappy: an event broker whose topics are also tables.

    async with krappy.connect("127.0.0.1:7092") as client: ...      the async client, under trio and asyncio
    with krappy.blocking.connect("127.0.0.1:7092") as client: ...   the same without an event loop
    async with krappy.Broker("data") as broker: ...                 a broker inside a program, under trio

Names are loaded when they are first used. So importing this package is cheap, and a client needs none of the broker's
dependencies.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from krappy import blocking as blocking
    from krappy.app import Broker as Broker
    from krappy.client import Client as Client
    from krappy.client import Consumer as Consumer
    from krappy.client import Delivery as Delivery
    from krappy.client import Producer as Producer
    from krappy.client import connect as connect
    from krappy.clients.blocks import ColumnBlock as ColumnBlock
    from krappy.clients.events import EventBatch as EventBatch
    from krappy.clients.receipts import Stored as Stored
    from krappy.clients.snapshots import KeyRange as KeyRange
    from krappy.clients.snapshots import Snapshot as Snapshot
    from krappy.clients.watch_progress import SnapshotEnd as SnapshotEnd
    from krappy.errors import AuthenticationFailed as AuthenticationFailed
    from krappy.errors import AuthorizationFailed as AuthorizationFailed
    from krappy.errors import BrokerError as BrokerError
    from krappy.errors import ClusterAuthorizationFailed as ClusterAuthorizationFailed
    from krappy.errors import ConfigError as ConfigError
    from krappy.errors import ConnectionLost as ConnectionLost
    from krappy.errors import CoordinatorFenced as CoordinatorFenced
    from krappy.errors import CoordinatorLoading as CoordinatorLoading
    from krappy.errors import CoordinatorNotAvailable as CoordinatorNotAvailable
    from krappy.errors import CorruptBatch as CorruptBatch
    from krappy.errors import FrameTooLarge as FrameTooLarge
    from krappy.errors import GroupAuthorizationFailed as GroupAuthorizationFailed
    from krappy.errors import GroupFull as GroupFull
    from krappy.errors import GroupNotEmpty as GroupNotEmpty
    from krappy.errors import IllegalLogin as IllegalLogin
    from krappy.errors import InvalidConfig as InvalidConfig
    from krappy.errors import InvalidPartitions as InvalidPartitions
    from krappy.errors import InvalidRecord as InvalidRecord
    from krappy.errors import InvalidReplicationFactor as InvalidReplicationFactor
    from krappy.errors import InvalidRequest as InvalidRequest
    from krappy.errors import InvalidTimestamp as InvalidTimestamp
    from krappy.errors import InvalidTopic as InvalidTopic
    from krappy.errors import InvalidTransaction as InvalidTransaction
    from krappy.errors import InvalidTransactionTimeout as InvalidTransactionTimeout
    from krappy.errors import KrappyError as KrappyError
    from krappy.errors import LeaseLost as LeaseLost
    from krappy.errors import NotCoordinator as NotCoordinator
    from krappy.errors import NotEnoughReplicas as NotEnoughReplicas
    from krappy.errors import NotEnoughReplicasAfterAppend as NotEnoughReplicasAfterAppend
    from krappy.errors import NotLeader as NotLeader
    from krappy.errors import OffsetMismatch as OffsetMismatch
    from krappy.errors import OffsetOutOfRange as OffsetOutOfRange
    from krappy.errors import OutOfOrderSequence as OutOfOrderSequence
    from krappy.errors import Overloaded as Overloaded
    from krappy.errors import PolicyViolation as PolicyViolation
    from krappy.errors import ProducerFenced as ProducerFenced
    from krappy.errors import ProtocolError as ProtocolError
    from krappy.errors import RecordTooLarge as RecordTooLarge
    from krappy.errors import RequestTimeout as RequestTimeout
    from krappy.errors import SecurityDisabled as SecurityDisabled
    from krappy.errors import ShuttingDown as ShuttingDown
    from krappy.errors import SnapshotGone as SnapshotGone
    from krappy.errors import StagingCommitted as StagingCommitted
    from krappy.errors import StagingExpired as StagingExpired
    from krappy.errors import StagingFenced as StagingFenced
    from krappy.errors import StagingFull as StagingFull
    from krappy.errors import StillRefused as StillRefused
    from krappy.errors import StorageError as StorageError
    from krappy.errors import TopicAuthorizationFailed as TopicAuthorizationFailed
    from krappy.errors import TopicDiffers as TopicDiffers
    from krappy.errors import TopicExists as TopicExists
    from krappy.errors import TransactionAbortable as TransactionAbortable
    from krappy.errors import TransactionalIdAuthorizationFailed as TransactionalIdAuthorizationFailed
    from krappy.errors import TransactionFenced as TransactionFenced
    from krappy.errors import TransactionPending as TransactionPending
    from krappy.errors import Unavailable as Unavailable
    from krappy.errors import UnknownGroup as UnknownGroup
    from krappy.errors import UnknownHandle as UnknownHandle
    from krappy.errors import UnknownMember as UnknownMember
    from krappy.errors import UnknownPartition as UnknownPartition
    from krappy.errors import UnknownProducer as UnknownProducer
    from krappy.errors import UnknownProducerMapping as UnknownProducerMapping
    from krappy.errors import UnknownStaging as UnknownStaging
    from krappy.errors import UnknownTopic as UnknownTopic
    from krappy.errors import UnknownUser as UnknownUser
    from krappy.errors import UnsupportedCompression as UnsupportedCompression
    from krappy.errors import UnsupportedMechanism as UnsupportedMechanism
    from krappy.errors import ViewDisabled as ViewDisabled
    from krappy.errors import WrongGroupKind as WrongGroupKind
    from krappy.types import Entry as Entry
    from krappy.types import Event as Event
    from krappy.types import Receipt as Receipt
    from krappy.types import Record as Record
    from krappy.types import TopicPartition as TopicPartition

_ERRORS = (
    "AuthenticationFailed AuthorizationFailed BrokerError ClusterAuthorizationFailed ConfigError ConnectionLost "
    "CoordinatorFenced CoordinatorLoading CoordinatorNotAvailable CorruptBatch FrameTooLarge "
    "GroupAuthorizationFailed GroupFull GroupNotEmpty IllegalLogin InvalidConfig InvalidPartitions InvalidRecord "
    "InvalidReplicationFactor InvalidRequest InvalidTimestamp InvalidTopic InvalidTransaction "
    "InvalidTransactionTimeout KrappyError LeaseLost NotCoordinator NotEnoughReplicas "
    "NotEnoughReplicasAfterAppend NotLeader OffsetMismatch OffsetOutOfRange OutOfOrderSequence Overloaded "
    "PolicyViolation ProducerFenced ProtocolError RecordTooLarge RequestTimeout SecurityDisabled ShuttingDown "
    "SnapshotGone StagingCommitted StagingExpired StagingFenced StagingFull StillRefused StorageError "
    "TopicAuthorizationFailed TopicDiffers TopicExists TransactionAbortable TransactionFenced TransactionPending "
    "TransactionalIdAuthorizationFailed Unavailable UnknownGroup UnknownHandle UnknownMember UnknownPartition "
    "UnknownProducer UnknownProducerMapping UnknownStaging UnknownTopic UnknownUser UnsupportedCompression "
    "UnsupportedMechanism ViewDisabled WrongGroupKind"
)
_HOMES = {
    **dict.fromkeys(_ERRORS.split(), "krappy.errors"),
    **dict.fromkeys(["Entry", "Event", "Receipt", "Record", "TopicPartition"], "krappy.types"),
    **dict.fromkeys(["Client", "Consumer", "Delivery", "Producer", "connect"], "krappy.client"),
    "Broker": "krappy.app",
    "ColumnBlock": "krappy.clients.blocks",
    "EventBatch": "krappy.clients.events",
    "KeyRange": "krappy.clients.snapshots",
    "Snapshot": "krappy.clients.snapshots",
    "SnapshotEnd": "krappy.clients.watch_progress",
    "Stored": "krappy.clients.receipts",
}

__all__ = sorted([*_HOMES, "blocking"])


def __getattr__(name: str) -> Any:
    if name in ("blocking", "testing"):
        return importlib.import_module(f"krappy.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'krappy' has no attribute {name!r}")
    found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return __all__
