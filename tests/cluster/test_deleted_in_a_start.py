"""Topics that are deleted, made anew, and given more partitions while a broker opens its topics at its start."""

from __future__ import annotations

from pathlib import Path

from krappy import blocking
from tests.cluster.brokers import SharedProcesses, brokers
from tests.cluster.held_start import held, holding
from tests.cluster.zookeeper import ZooKeeperServer
from tests.process import wait_until


def test_a_broker_starts_while_its_topics_change(tmp_path: Path, shared_zookeeper: ZooKeeperServer) -> None:
    with brokers(tmp_path, shared=SharedProcesses(shared_zookeeper, held)) as cluster:
        topics = dict.fromkeys("abcde", 3)
        with blocking.connect(cluster.native) as client:
            for name in topics:
                client.create_topic(name, 3, replication_factor=2)  # each broker has two
                cluster.until_in_sync(name)
        broker = cluster.brokers[3]
        broker.kill()
        servers = ",".join(str(cluster.brokers[id].settings["listen_native"]) for id in (1, 2))
        with blocking.connect(servers, timeout=60.0) as client:
            wait_until(
                lambda: all(each["leader"] in (1, 2) for name in topics for each in cluster.states(name)), "others lead"
            )
            with holding(broker, topics) as opened:
                gone, anew, grown, stays = sorted(topics.keys() - {opened})
                for name in (opened, gone, anew):
                    client.delete_topic(name)
                    del topics[name]
                client.create_topic(anew, 4, replication_factor=2)
                client.alter_topic(grown, partitions=5)
                topics |= {anew: 4, grown: 5}
        for name in (grown, stays):
            cluster.until_in_sync(name)
        for name in (opened, gone):
            wait_until(lambda name=name: not [*(broker.data / "topics").glob(f"{name}-*")], f"'{name}' is gone")  # type: ignore[misc]
        with blocking.connect(str(broker.settings["listen_native"])) as client:
            wait_until(
                lambda: topics == {each.name: len(each.partitions) for each in client.topics() if each.name[:1] != "_"},
                "it has the topics that there are",
            )
        for event in ("internal_error", "topic_strayed", "deletion_unfinished"):
            assert not cluster.events(3, event), broker.last_words()
