"""ACLs and logouts in a cluster: each broker follows a change within a second, whichever broker made the change."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from krappy import blocking
from krappy.clients.acls import AclInfo
from krappy.errors import AuthorizationFailed, TopicAuthorizationFailed
from krappy.wire.kafka import ApiKey
from tests.cluster.brokers import ClusterProcesses, SharedProcesses
from tests.process import Stopwatch, wait_until
from tests.security.guarded import filtered

SOON = 1.0  # seconds
PASSWORDS = {"admin": "admin-secret", "ada": "ada-secret", "bob": "bob-secret"}
READ = [AclInfo("topic", "shared", "User:ada", "read")]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, shared_processes: SharedProcesses) -> Iterator[ClusterProcesses]:
    """Users log in at the native listeners. At Kafka's listeners nobody logs in, and brokers reach each other there."""
    folder = tmp_path_factory.mktemp("acls")
    users = folder / "users"
    users.mkdir()
    for name, password in PASSWORDS.items():
        (users / name).write_text(password)
    made = ClusterProcesses(
        *(folder, shared_processes.zookeeper, 3, shared_processes.launch),
        users_dir=str(users),
        super_users="User:admin;User:ANONYMOUS",
    )
    for each in made.brokers.values():
        for listener in ("listen_native", "listen_http"):
            each.settings[listener] = f"SASL_PLAINTEXT://{each.settings[listener]}"
    try:
        made.start()
        yield made
    finally:
        made.kill()


def connect(cluster: ClusterProcesses, id: int, user: str) -> blocking.Client:
    address = str(cluster.brokers[id].settings["listen_native"]).removeprefix("SASL_PLAINTEXT://")
    return blocking.connect(address, user=user, password=PASSWORDS[user], timeout=30)


def soon(cluster: ClusterProcesses, condition: Callable[[], bool], what: str) -> None:
    watch = Stopwatch(cluster.zookeeper.pid, *(each.pid for each in cluster.brokers.values()))
    wait_until(condition, what)
    assert watch.seconds < SOON, what


def test_every_broker_follows(cluster: ClusterProcesses) -> None:
    with connect(cluster, 1, "admin") as admin:
        admin.create_topic("shared", 3, replication_factor=3, if_absent=True)
        cluster.until_in_sync("shared")
        clients = [connect(cluster, id, "ada") for id in cluster.brokers]
        for client in clients:
            client.open()
        try:
            assert all(client.topics() == [] for client in clients)
            for client in clients:
                for name in ("shared", "absent"):
                    with pytest.raises(TopicAuthorizationFailed):
                        client.table(name).get("k")
                    with pytest.raises(TopicAuthorizationFailed), client.producer(name) as producer:
                        producer.send("v").result()
                    with pytest.raises(TopicAuthorizationFailed), client.consumer(name) as consumer:
                        consumer.poll(1)
            admin.add_acls(READ)
            for client in clients:
                soon(cluster, lambda client=client: [each.name for each in client.topics()] == ["shared"], "it is seen")  # type: ignore[misc]
            admin.delete_acls(principal="User:ada")
            for client in clients:
                soon(cluster, lambda client=client: client.topics() == [], "it is not seen")  # type: ignore[misc]
        finally:
            for client in clients:
                client.close()


def test_a_poll_that_waits_at_another_broker_ends(cluster: ClusterProcesses) -> None:
    with connect(cluster, 1, "admin") as admin, connect(cluster, 2, "ada") as client:
        admin.create_topic("shared", 3, replication_factor=3, if_absent=True)
        admin.add_acls(READ)
        soon(cluster, lambda: client.topics() != [], "it may be read")
        ended: list[Any] = []
        with client.consumer("shared", start="latest") as consumer:

            def poll() -> None:
                try:
                    while True:
                        consumer.poll(30)
                except AuthorizationFailed as error:
                    ended.append(error)

            thread = threading.Thread(target=poll)
            thread.start()
            time.sleep(0.5)
            admin.delete_acls(principal="User:ada")
            soon(cluster, lambda: bool(ended), "the poll has ended")
            thread.join()
        assert isinstance(ended[0], TopicAuthorizationFailed)


def test_acls_outlive_the_brokers(cluster: ClusterProcesses, tmp_path: Path) -> None:
    with connect(cluster, 3, "admin") as admin:
        admin.add_acls(READ)
    for id in cluster.brokers:
        cluster.brokers[id].kill()
    for each in cluster.brokers.values():
        each.begin()
    for each in cluster.brokers.values():
        each.ready()
    for id in cluster.brokers:
        with cluster.asked(id) as raw:
            wait_until(
                lambda raw=raw: len(raw.ask(ApiKey.DESCRIBE_ACLS, filtered())["resources"]) == 1,  # type: ignore[misc]
                f"broker {id} has it",
            )
    with connect(cluster, 2, "admin") as admin:
        assert admin.delete_acls(principal="User:ada") == READ


def test_quotas_are_those_of_the_cluster(cluster: ClusterProcesses) -> None:
    with connect(cluster, 1, "admin") as admin, connect(cluster, 2, "admin") as other:
        admin.security.alter_quotas({"producer_byte_rate": 1e12}, user="ada")
        soon(
            cluster,
            lambda: [each.rates for each in other.security.quotas(user="ada")] == [{"producer_byte_rate": 1e12}],
            "set",
        )
        other.security.alter_quotas({"producer_byte_rate": None}, user="ada")
        soon(cluster, lambda: admin.security.quotas(user="ada") == [], "and removed")


def test_a_logout_everywhere_ends_the_sessions_at_every_broker(cluster: ClusterProcesses) -> None:
    with ExitStack() as stack:

        def browser(id: int, user: str) -> httpx.Client:
            address = str(cluster.brokers[id].settings["listen_http"]).removeprefix("SASL_PLAINTEXT://")
            http = httpx.Client(base_url=f"http://{address}/api/v1", trust_env=False, timeout=30)
            stack.enter_context(http)
            http.headers["Krappy-Request"] = "1"
            assert http.post("/login", json={"user": user, "password": PASSWORDS[user]}).status_code == 200
            return http

        def logged_in(some: list[httpx.Client]) -> set[bool]:
            return {each.get("/topics").status_code == 200 for each in some}

        adas, bobs = ([browser(id, user) for id in cluster.brokers] for user in ("ada", "bob"))
        assert logged_in(adas + bobs) == {True}
        assert adas[0].post("/logout", params={"all": "true"}).json() == {"logged_out": True, "ended": 1}
        soon(cluster, lambda: logged_in(adas) == {False}, "she is logged out at every broker")
        assert logged_in(bobs) == {True}
        adas = [browser(id, "ada") for id in cluster.brokers]
        assert logged_in(adas) == {True}
        admin = browser(2, "admin")
        assert admin.post("/logout", params={"all": "true"}).json()["ended"] == 3
        soon(cluster, lambda: logged_in([*adas, *bobs, admin]) == {False}, "all are logged out at every broker")
        assert logged_in([browser(id, "ada") for id in cluster.brokers]) == {True}
