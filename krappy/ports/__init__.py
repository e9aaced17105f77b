"""The interfaces through which handlers use the broker and the server. They are narrow, so that a handler can be read
and tested alone.

The broker's own classes implement these without inheriting from them; mypy checks that in app.py. Handlers, the
console, the server and the broker import them from here.
"""

from krappy.ports.access import AccessPort
from krappy.ports.broker import (
    BackupHold,
    BrokerPort,
    ClockPort,
    ClusterPort,
    MachinePort,
    MovingPort,
    TopicNamesPort,
)
from krappy.ports.groups import (
    DescribedGroup,
    GroupMember,
    GroupPolled,
    GroupSettingsPort,
    GroupsPort,
    KafkaGroupPort,
    KafkaGroupsAdminPort,
    KafkaGroupsPort,
    KafkaOffsetsPort,
    Listed,
    MemberPort,
    Position,
)
from krappy.ports.partitions import (
    ActiveProducer,
    PartitionPort,
    Raw,
    SourcePort,
    SourceTopicPort,
    StoredAt,
    TopicPort,
)
from krappy.ports.sessions import (
    KafkaSessionPort,
    NodeInfo,
    PacedPort,
    Registered,
    RequestTimesPort,
    ServerPort,
    SessionPort,
    StreamPort,
)
from krappy.ports.settings import BrokerSetting, DynamicPort, Layer, SettingsPort
from krappy.ports.tables import (
    Bound,
    Emit,
    FoldedPort,
    RowsPort,
    ScanPage,
    ScanPort,
    SnapshotPort,
    SnapshotsPort,
    WatchPort,
)
from krappy.ports.transactions import AttemptPort, StagedJobRow, StageOpened, StagingPort, TransactionsPort

__all__ = [
    "AccessPort",
    "ActiveProducer",
    "AttemptPort",
    "BackupHold",
    "Bound",
    "BrokerPort",
    "BrokerSetting",
    "ClockPort",
    "ClusterPort",
    "DescribedGroup",
    "DynamicPort",
    "Emit",
    "FoldedPort",
    "GroupMember",
    "GroupPolled",
    "GroupSettingsPort",
    "GroupsPort",
    "KafkaGroupPort",
    "KafkaGroupsAdminPort",
    "KafkaGroupsPort",
    "KafkaOffsetsPort",
    "KafkaSessionPort",
    "Layer",
    "Listed",
    "MachinePort",
    "MemberPort",
    "MovingPort",
    "NodeInfo",
    "PacedPort",
    "PartitionPort",
    "Position",
    "Raw",
    "Registered",
    "RequestTimesPort",
    "RowsPort",
    "ScanPage",
    "ScanPort",
    "ServerPort",
    "SessionPort",
    "SettingsPort",
    "SnapshotPort",
    "SnapshotsPort",
    "SourcePort",
    "SourceTopicPort",
    "StageOpened",
    "StagedJobRow",
    "StagingPort",
    "StoredAt",
    "StreamPort",
    "TopicNamesPort",
    "TopicPort",
    "TransactionsPort",
    "WatchPort",
]
