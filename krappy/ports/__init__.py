"""The interfaces through which handlers use the broker and the server. They are narrow, so that a handler can be read
and tested alone.

The broker's own classes implement these without inheriting from them; mypy checks that in app.py. Handlers, the
console, the server and the broker import them from here.
"""

from krappy.ports.access import AccessPort as AccessPort
from krappy.ports.broker import BackupHold as BackupHold
from krappy.ports.broker import BrokerPort as BrokerPort
from krappy.ports.broker import ClockPort as ClockPort
from krappy.ports.broker import ClusterPort as ClusterPort
from krappy.ports.broker import MachinePort as MachinePort
from krappy.ports.broker import MovingPort as MovingPort
from krappy.ports.broker import TopicNamesPort as TopicNamesPort
from krappy.ports.gateway import GatewayPort as GatewayPort
from krappy.ports.gateway import PartitionTold as PartitionTold
from krappy.ports.groups import DescribedGroup as DescribedGroup
from krappy.ports.groups import GroupFacts as GroupFacts
from krappy.ports.groups import GroupMember as GroupMember
from krappy.ports.groups import GroupPolled as GroupPolled
from krappy.ports.groups import GroupSettingsPort as GroupSettingsPort
from krappy.ports.groups import GroupsPort as GroupsPort
from krappy.ports.groups import KafkaGroupPort as KafkaGroupPort
from krappy.ports.groups import KafkaGroupsAdminPort as KafkaGroupsAdminPort
from krappy.ports.groups import KafkaGroupsPort as KafkaGroupsPort
from krappy.ports.groups import KafkaOffsetsPort as KafkaOffsetsPort
from krappy.ports.groups import Listed as Listed
from krappy.ports.groups import MemberFacts as MemberFacts
from krappy.ports.groups import MemberPort as MemberPort
from krappy.ports.groups import Position as Position
from krappy.ports.groups import PositionFacts as PositionFacts
from krappy.ports.groups import Range as Range
from krappy.ports.lookout import LookoutPort as LookoutPort
from krappy.ports.partitions import ActiveProducer as ActiveProducer
from krappy.ports.partitions import PartitionPort as PartitionPort
from krappy.ports.partitions import Raw as Raw
from krappy.ports.partitions import SourcePort as SourcePort
from krappy.ports.partitions import SourceTopicPort as SourceTopicPort
from krappy.ports.partitions import StoredAt as StoredAt
from krappy.ports.partitions import TopicPort as TopicPort
from krappy.ports.partitions import TransactionalSender as TransactionalSender
from krappy.ports.partitions import TransactionEnd as TransactionEnd
from krappy.ports.registrations import Registered as Registered
from krappy.ports.registrations import RegistrationFacts as RegistrationFacts
from krappy.ports.replication import FollowerPort as FollowerPort
from krappy.ports.replication import LeaderPort as LeaderPort
from krappy.ports.sessions import ConnectionFacts as ConnectionFacts
from krappy.ports.sessions import KafkaSessionPort as KafkaSessionPort
from krappy.ports.sessions import LoginPort as LoginPort
from krappy.ports.sessions import NodeInfo as NodeInfo
from krappy.ports.sessions import PacedPort as PacedPort
from krappy.ports.sessions import RequestTimesPort as RequestTimesPort
from krappy.ports.sessions import ServerNumbers as ServerNumbers
from krappy.ports.sessions import ServerPort as ServerPort
from krappy.ports.sessions import SessionFacts as SessionFacts
from krappy.ports.sessions import SessionPort as SessionPort
from krappy.ports.sessions import StreamPort as StreamPort
from krappy.ports.settings import BrokerSetting as BrokerSetting
from krappy.ports.settings import DynamicPort as DynamicPort
from krappy.ports.settings import Layer as Layer
from krappy.ports.settings import SettingsPort as SettingsPort
from krappy.ports.tables import Bound as Bound
from krappy.ports.tables import Emit as Emit
from krappy.ports.tables import FoldedPort as FoldedPort
from krappy.ports.tables import RowsPort as RowsPort
from krappy.ports.tables import ScanPage as ScanPage
from krappy.ports.tables import ScanPort as ScanPort
from krappy.ports.tables import SnapshotPort as SnapshotPort
from krappy.ports.tables import SnapshotsPort as SnapshotsPort
from krappy.ports.tables import WatchPort as WatchPort
from krappy.ports.transactions import AttemptPort as AttemptPort
from krappy.ports.transactions import ParticipantPort as ParticipantPort
from krappy.ports.transactions import StagedJobRow as StagedJobRow
from krappy.ports.transactions import StageOpened as StageOpened
from krappy.ports.transactions import StagingPort as StagingPort
from krappy.ports.transactions import TransactionsPort as TransactionsPort
