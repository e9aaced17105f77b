"""What handlers may ask of the rest: narrow interfaces, so that a handler can be read, and tested, alone.

The broker's own classes satisfy these by shape; mypy checks it in app.py. Handlers, the console, the server and the
broker import them from here.
"""

from krappy.ports.access import AccessPort
from krappy.ports.broker import BrokerPort, ClusterPort, MachinePort, SettingsPort, TopicNamesPort
from krappy.ports.groups import GroupMember, GroupsPort, KafkaGroupsPort, MemberPort, Position
from krappy.ports.partitions import ActiveProducer, LaterPort, PartitionPort, SourcePort, TopicPort
from krappy.ports.sessions import (
    Handler,
    KafkaSessionPort,
    NodeInfo,
    PacedPort,
    Registered,
    RequestTimesPort,
    ServerPort,
    SessionPort,
    StreamPort,
)
from krappy.ports.tables import Bound, FoldedPort, ScanPage, ScanPort, SnapshotPort, SnapshotsPort
from krappy.ports.transactions import AttemptPort, StagedJobRow, StageOpened, StagingPort, TransactionsPort

__all__ = [
    "AccessPort",
    "ActiveProducer",
    "AttemptPort",
    "Bound",
    "BrokerPort",
    "ClusterPort",
    "FoldedPort",
    "GroupMember",
    "GroupsPort",
    "Handler",
    "KafkaGroupsPort",
    "KafkaSessionPort",
    "LaterPort",
    "MachinePort",
    "MemberPort",
    "NodeInfo",
    "PacedPort",
    "PartitionPort",
    "Position",
    "Registered",
    "RequestTimesPort",
    "ScanPage",
    "ScanPort",
    "ServerPort",
    "SessionPort",
    "SettingsPort",
    "SnapshotPort",
    "SnapshotsPort",
    "SourcePort",
    "StageOpened",
    "StagedJobRow",
    "StagingPort",
    "StreamPort",
    "TopicNamesPort",
    "TopicPort",
    "TransactionsPort",
]
