"""Apache Kafka's own tools, as its shell scripts start them: `KafkaTools(address)("topics", "--list")`."""

from __future__ import annotations

import subprocess

from tests.compat import tools
from tests.compat.clients.base import PATIENCE

CLASSES = {
    "acls": "org.apache.kafka.tools.AclCommand",
    "topics": "org.apache.kafka.tools.TopicCommand",
    "configs": "kafka.admin.ConfigCommand",
    "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "transactions": "org.apache.kafka.tools.TransactionsCommand",
    "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "cluster": "org.apache.kafka.tools.ClusterTool",
    "api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "features": "org.apache.kafka.tools.FeatureCommand",
    "groups": "org.apache.kafka.tools.GroupsCommand",
    "share-groups": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "console-share-consumer": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "replica-verification": "org.apache.kafka.tools.ReplicaVerificationTool",
}
SERVER_LAST = {"cluster"}  # the tools that take --bootstrap-server behind their subcommand
NO_SERVER = {"dump-log", "producer-perf-test"}
OTHER_NAMES = {"replica-verification": "--broker-list"}  # the tools that call --bootstrap-server otherwise


class KafkaTools:
    """Runs a tool: (name, *arguments, stdin="") -> stdout. Raises AssertionError if the tool fails. With `fails`,
    raises it if the tool does not fail; and then stderr is returned, too. The constructor raises Missing."""

    def __init__(self, address: str) -> None:
        tools.wanted("Kafka's console tools")
        self._java, self._path = tools.java("kafka")
        self.address = address

    def command(self, name: str, *arguments: str) -> list[str]:
        """The command as the scripts begin it, with little memory."""
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"
        where = (OTHER_NAMES.get(name, "--bootstrap-server"), self.address)
        if name not in NO_SERVER:
            arguments = (*arguments, *where) if name in SERVER_LAST else (*where, *arguments)
        java = [self._java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", quiet]
        return [*java, "-cp", self._path, CLASSES[name], *arguments]

    def __call__(self, name: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        done = subprocess.run(
            self.command(name, *arguments), input=stdin, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr if fails else done.stdout
