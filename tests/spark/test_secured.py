"""Spark and a broker with TLS and users: batch, stream and lookups; and nobody is shown the password."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from krappy.cli.spawn import spawn_broker
from tests.security.authority import Authority
from tests.security.identity import identity_provider

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECRET = "battery-staple-41"
LOGIN = f'org.apache.kafka.common.security.scram.ScramLoginModule required username="ada" password="{SECRET}";'


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The options for a broker that has both."""
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    users = folder / "users"
    users.mkdir()
    (users / "ada").write_text(SECRET + "\n")
    settings = {
        "tls_certificate": authority.issue("127.0.0.1"),
        "users_dir": str(users),
        "super_users": "User:ada",
        "sasl_enabled_mechanisms": "SCRAM-SHA-256,PLAIN,OAUTHBEARER",
        "listen_native": "SASL_SSL://127.0.0.1:0",
    }
    with (
        identity_provider() as provider,
        spawn_broker(folder / "data", {**settings, **provider.settings}) as broker,
    ):
        (folder / "token").write_text(provider.token() + "\n")
        yield {
            "token": provider.token(),
            "token file": str(folder / "token"),
            "address": broker.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": authority.ca,
            "sasl.username": "ada",
            "sasl.password": SECRET,
            "file": str(users / "ada"),
        }


def options(secured: dict[str, str], how: str) -> dict[str, str]:
    """The options, with another way to say who one is."""
    given = {name: value for name, value in secured.items() if "file" not in name and name != "token"}
    if how.startswith("token"):
        del given["sasl.username"], given["sasl.password"]
        name = "kafka.sasl.token.file" if how == "token file" else "kafka.sasl.token"
        return {**given, "kafka.sasl.mechanism": "OAUTHBEARER", name: secured[how]}
    if how == "jaas":
        del given["sasl.username"], given["sasl.password"]
        return {**given, "kafka.sasl.jaas.config": LOGIN}
    if how == "file":
        del given["sasl.password"]
        return {**given, "sasl.password.file": secured["file"], "sasl.mechanism": "PLAIN"}
    return {name if name == "address" else f"kafka.{name}": value for name, value in given.items()}


@pytest.mark.parametrize("how", ["kafka", "file", "jaas", "token", "token file"])
def test_a_batch(spark: SparkSession, secured: dict[str, str], how: str) -> None:
    given, topic = options(secured, how), f"batch-{how.replace(' ', '-')}"
    rows = spark.createDataFrame([(f"k{number}", f"v{number}") for number in range(50)], "key string, value string")
    rows.write.format("krappy").options(**given).option("topic", topic).mode("append").save()
    events = spark.read.format("krappy").options(**given).option("subscribe", topic).load()
    assert events.count() == 50
    [found] = spark.read.format("krappy").options(**given, subscribe=topic, key="k7").load().collect()
    assert found.value == b"v7"
    hidden(events)
    hidden(events, secured["token"])


def hidden(frame: Any, secret: str = SECRET) -> None:
    """Asserts that no plan of it has the password."""
    execution = frame._jdf.queryExecution()
    shown = [repr(frame), execution.logical().treeString(), execution.logical().toJSON()]
    if frame.isStreaming:
        shown.append(execution.analyzed().treeString())
    else:
        shown += [execution.toString(), execution.simpleString(), execution.executedPlan().treeString()]
    assert not [each for each in shown if secret in each]


def test_a_stream(spark: SparkSession, secured: dict[str, str], tmp_path: Path) -> None:
    given, topic = options(secured, "jaas"), "stream"
    rows = spark.createDataFrame([(f"k{number}", f"v{number}") for number in range(50)], "key string, value string")
    rows.write.format("krappy").options(**given).option("topic", topic).mode("append").save()
    stream = spark.readStream.format("krappy").options(**given, subscribe=topic, startingOffsets="earliest").load()
    hidden(stream)
    query = (
        stream.select("key", "value")
        .writeStream.format("krappy")
        .options(**given, topic=f"{topic}-copy", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120)
    execution = query._jsq.streamingQuery().lastExecution()
    assert SECRET not in execution.toString() + execution.logical().treeString() + str(query.lastProgress)
    copied = spark.read.format("krappy").options(**given, subscribe=f"{topic}-copy").load()
    assert copied.count() == 50
    kept = [each.read_bytes() for each in (tmp_path / "checkpoint").rglob("*") if each.is_file()]
    assert kept
    assert not [each for each in kept if SECRET.encode() in each]


def test_a_wrong_password_is_said_and_not_shown(
    spark: SparkSession, secured: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    """The password is also not in the output of the driver, the executor and their Python processes."""
    wrong = "not-" + SECRET
    given = {**options(secured, "kafka"), "kafka.sasl.password": wrong}
    log = spark.sparkContext
    log.setLogLevel("INFO")
    try:
        with pytest.raises(Exception, match="invalid credentials") as error:
            spark.read.format("krappy").options(**given, subscribe="batch-kafka").load().collect()
        with contextlib.suppress(Exception):
            spark.createDataFrame([("k", "v")], "key string, value string").write.format("krappy").options(
                **given, topic="t"
            ).mode("append").save()
        good = options(secured, "jaas")
        spark.createDataFrame([("k", "v")], "key string, value string").write.format("krappy").options(
            **good, topic="right"
        ).mode("append").save()
        assert spark.read.format("krappy").options(**good, subscribe="right").load().count() == 1
    finally:
        log.setLogLevel("OFF")
    out, err = capfd.readouterr()
    said = [str(error.value), out, err]
    assert not [each for each in said if SECRET in each]
