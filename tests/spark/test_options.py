"""Options: names and defaults of Spark's Kafka source, and what is said to those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

import krappy.spark
from krappy.errors import ConfigError
from krappy.spark.broker_at import BrokerAt
from krappy.spark.keys import Keys
from krappy.spark.option_table import OPTIONS, Use
from krappy.spark.options import parse, texts
from krappy.spark.places import StartPlace, offsets_text
from krappy.spark.topics import TopicChoice

S = {"subscribe": "t"}


def test_the_defaults_are_those_of_the_kafka_source() -> None:
    batch, stream = parse(S, "log"), parse(S, "stream")
    assert (batch.start, batch.end, stream.start) == (
        StartPlace("earliest"),
        StartPlace("latest"),
        StartPlace("latest"),
    )
    assert (batch.fail_on_data_loss, batch.min_partitions, batch.max_records) == (True, None, None)
    assert (stream.max_offsets_per_trigger, stream.min_offsets_per_trigger, stream.max_trigger_delay) == (
        None,
        None,
        900,
    )
    assert batch.columns == ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")
    assert parse({**S, "includeHeaders": "TRUE"}, "log").columns == (*batch.columns, "headers")
    assert (batch.mode, batch.key_type, batch.pushdown, batch.broker) == ("log", "binary", False, BrokerAt())


def test_a_table_has_columns_of_its_own() -> None:
    table = parse({**S, "mode": "table"}, "log")
    assert table.columns == ("key", "value", "topic", "partition", "offset", "timestamp")
    assert parse({**S, "mode": "table", "tombstones": "true"}, "log").columns == (*table.columns, "deleted")
    assert parse({**S, "mode": "table", "columns": "offset, key"}, "log").columns == ("offset", "key")
    assert parse({**S, "key": "u1"}, "log").mode == "table"


def test_names_in_any_case() -> None:
    assert parse({"SUBSCRIBE": "t", "minpartitions": "3"}, "log").min_partitions == 3


def test_topics() -> None:
    assert parse({"subscribe": " a, b,a"}, "log").topics == TopicChoice(names=("a", "b"))
    assert parse({"subscribePattern": "a.*"}, "log").topics == TopicChoice(pattern="a.*")
    assert parse({"assign": '{"a":[2,0,2]}'}, "log").topics == TopicChoice(assigned={"a": (0, 2)})


def test_places() -> None:
    given = {**S, "startingOffsets": '{"t":{"0":5,"1":-2}}', "endingOffsets": '{"t":{"0":-1,"1":9}}'}
    found = parse(given, "log")
    assert found.start == StartPlace("offsets", {"t": {0: 5, 1: -2}})
    assert found.end == StartPlace("offsets", {"t": {0: -1, 1: 9}})
    given |= {"startingOffsetsByTimestamp": '{"t":{"0":7}}', "endingTimestamp": "8"}
    assert parse(given, "log").start == StartPlace("timestamps", {"t": {0: 7}})
    assert parse(given, "log").end == StartPlace("timestamp", timestamp=8)
    assert parse({**given, "startingTimestamp": "9"}, "log").start == StartPlace("timestamp", timestamp=9)
    assert parse({**S, "startingOffsets": "snapshot"}, "stream").start == StartPlace("snapshot")
    text = offsets_text({"t": {0: 5, 1: -2}})
    assert parse({**S, "startingOffsets": text}, "log").start == StartPlace("offsets", {"t": {0: 5, 1: -2}})


def test_keys() -> None:
    assert parse({**S, "key": " a "}, "log").keys == Keys(exact=(b" a ",))
    assert parse({**S, "key": "ä"}, "log").keys == Keys(exact=("ä".encode(),))
    assert parse({**S, "keys": '["a","b","a"]'}, "log").keys == Keys(exact=(b"a", b"b"))
    assert parse({**S, "keys": "[]"}, "log").keys == Keys(exact=())
    assert parse({**S, "keyPrefix": "ff00", "keyEncoding": "hex"}, "log").keys == Keys(prefix=b"\xff\x00")
    given = {**S, "keyFrom": "YQ==", "keyTo": "Yg==", "keyEncoding": "base64"}
    assert parse(given, "log").keys == Keys(start=b"a", end=b"b")


@pytest.mark.parametrize(("text", "seconds"), [("30", 30), ("250ms", 0.25), ("10 m", 600), ("2h", 7200), ("1d", 86400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse({**S, "mode": "table", "snapshotTtl": text}, "log").snapshot_ttl == seconds


WRONG: list[tuple[dict[str, str], Use, str]] = [
    ({}, "log", "exactly one of the options subscribe='a,b', .* there is none of them. .* CREATE TEMPORARY VIEW"),
    ({**S, "assign": '{"t":[0]}'}, "log", "there is subscribe and assign"),
    ({"subscribe": " , "}, "log", "option subscribe: topics are needed"),
    ({"subscribePattern": "("}, "log", r"option subscribePattern='\(': not a regular expression"),
    ({"assign": '{"t":0}'}, "log", "partitions by topic are needed"),
    ({"assign": '{"t":[-1]}'}, "log", "partitions by topic are needed"),
    ({"assign": "t"}, "log", "partitions by topic are needed"),
    ({**S, "startingOffset": "earliest"}, "any", "no option 'startingoffset'; the nearest is 'startingOffsets'"),
    ({**S, "zzz": "1"}, "log", "no option 'zzz'$"),
    (
        {**S, "kafka.bootstrap.servers": "h:9092"},
        "any",
        "of kafka.* options it has those of security alone: give address=HOST:PORT",
    ),
    ({**S, "path": "/x"}, "any", "load\\(\\) and save\\(\\) take no path"),
    ({**S, "mode": "tabel"}, "log", "option mode='tabel': give log or table or snapshot"),
    ({**S, "includeHeaders": "yes"}, "log", "option includeHeaders='yes': give true or false"),
    ({**S, "minPartitions": "0"}, "log", "option minPartitions='0': a whole number from 1 to 2147483647 is needed"),
    ({**S, "minPartitions": "2147483648"}, "log", "option minPartitions='2147483648': a whole number from 1 to"),
    ({**S, "limit": str(2**63)}, "log", "option limit='9223372036854775808': a whole number from 1 to"),
    ({**S, "limit": "9" * 5000}, "log", "option limit='999.*: a whole number from 1 to"),
    ({**S, "startingTimestamp": "9" * 5000}, "log", "ms since the epoch are needed"),
    ({"owner": "me", "provider": "krappy"}, "any", "CREATE TEMPORARY VIEW users USING krappy"),
    ({**S, "limit": "ten"}, "log", "option limit='ten': a whole number"),
    ({**S, "startingOffsets": "latest"}, "log", "a batch can't start at latest"),
    ({**S, "startingOffsets": '{"t":{"0":-1}}'}, "log", "a batch can't start at latest"),
    ({**S, "startingOffsets": "snapshot"}, "log", "startingOffsets=snapshot is for readStream"),
    ({**S, "endingOffsets": "earliest"}, "log", "a read can't end at earliest"),
    ({**S, "endingOffsets": '{"t":{"0":-2}}'}, "log", "a read can't end at earliest"),
    ({**S, "startingOffsets": "soon"}, "log", "earliest, latest or offsets by topic and partition are needed"),
    ({**S, "startingOffsets": '{"t":5}'}, "log", "earliest, latest or offsets by topic and partition are needed"),
    ({**S, "startingOffsets": '{"t":{"0":-3}}'}, "log", "earliest, latest or offsets by topic and partition"),
    ({**S, "startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "log", "times in ms by topic and partition are needed"),
    ({**S, "startingTimestamp": "2024-01-01"}, "log", "ms since the epoch are needed"),
    ({**S, "endingOffsets": "latest"}, "stream", "'endingOffsets' is for reading a log .* and this is readStream"),
    ({**S, "maxOffsetsPerTrigger": "5"}, "log", "'maxOffsetsPerTrigger' is for readStream, and this is reading a log"),
    ({**S, "mode": "table"}, "stream", "'mode' is for .* and this is readStream"),
    ({**S, "mode": "table", "startingOffsets": "earliest"}, "any", "and this is reading a table"),
    ({**S, "mode": "log", "key": "u1"}, "log", "'key' is for reading a table .* and this is reading a log"),
    ({**S, "key": "u1", "keyPrefix": "u"}, "log", "options key and keyPrefix: give one of key, keys, keyPrefix"),
    ({**S, "keys": "u1"}, "log", "a JSON list of texts is needed"),
    ({**S, "keys": "[1]"}, "log", "a JSON list of texts is needed"),
    ({**S, "key": "xy", "keyEncoding": "hex"}, "log", "option key='xy': 'xy' is not written as keyEncoding=hex"),
    ({**S, "columns": "key,val"}, "log", "there is no column 'val'; there are key, value"),
    ({**S, "columns": "deleted"}, "log", "no column 'deleted'; there are mode=log has key"),
    ({**S, "columns": "key,key"}, "log", "a column is named twice"),
    ({**S, "columns": "key", "includeHeaders": "true"}, "log", "name headers among the columns"),
    ({**S, "mode": "table", "snapshotTtl": "soon"}, "log", "a duration is needed"),
    ({**S, "mode": "table", "snapshotTtl": "2d"}, "log", "snapshotTtl='2d': a duration is needed, .* no more than 1d"),
    ({"topic": "t", "stagingTtl": "25d"}, "write", "stagingTtl='25d': a duration is needed, .* no more than 24d"),
    ({"topic": "t", "stagingTtl": "9" * 5000}, "write", "stagingTtl='999.*: a duration is needed"),
    ({**S, "mode": "table", "limit": "1", "pushdown": "true"}, "log", "options limit and pushdown"),
    ({**S, "mode": "table", "snapshot": "{}"}, "log", "options snapshot and subscribe"),
    ({**S, "topic": "t"}, "log", "'topic' is for write and writeStream, and this is reading a log"),
    ({**S}, "write", "'subscribe' is for .* and this is write$"),
    ({"topic": "t", "checkpointLocation": "c"}, "write", "'checkpointLocation' is for writeStream, and this is write$"),
    ({"topic": "t", "jobId": "j"}, "writeStream", "'jobId' is for write, and this is writeStream"),
    ({"topic": "t", "jobId": " "}, "write", "option jobId is empty: give it a value, or leave it out"),
    ({**S, "startingOffsets": ""}, "log", "option startingOffsets is empty"),
    ({"snapshot": ""}, "log", "option snapshot is empty"),
    ({**S, "mode": "table", "keyEncoding": "hex"}, "log", "keyEncoding only changes key, keys, .* or keyTo: give one"),
    (
        {**S, "startingOffsetsByTimestampStrategy": "latest"},
        "any",
        "changes startingTimestamp or startingOffsetsByTimest",
    ),
    ({**S, "maxTriggerDelay": "1m"}, "any", "maxTriggerDelay only changes minOffsetsPerTrigger: give one"),
    ({**S, "limit": "1", "minPartitions": "2"}, "log", "limit and minPartitions: so few rows are read in one task"),
    ({**S, "limit": "1", "maxRecordsPerPartition": "2"}, "log", "limit and maxRecordsPerPartition: so few rows"),
    ({**S, "snapshotTtl": "1m"}, "stream", "snapshotTtl: give startingOffsets=snapshot too"),
    (
        {**S, "startingOffsets": "snapshot", "startingTimestamp": "1"},
        "stream",
        "startingOffsets=snapshot and startingTimestamp: a stream starts at one of them",
    ),
]


@pytest.mark.parametrize(("given", "use", "said"), WRONG)
def test_what_is_wrong_is_told(given: dict[str, str], use: Use, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse(given, use)


@pytest.mark.parametrize(("name", "value"), [("key", b"u1"), ("keys", ["u1", b"u2"]), ("keyTo", bytearray(b"z"))])
def test_bytes_are_no_text(name: str, value: object) -> None:
    """It would be the text of str(b"u1"), which is a key that nobody has."""
    with pytest.raises(ConfigError, match=f"option {name}=.*: write bytes with keyEncoding=hex"):
        texts({name: value})


def test_every_option_is_documented_once() -> None:
    names = [option.name.lower() for option in OPTIONS]
    assert len(set(names)) == len(names)
    readme = (Path(krappy.spark.__path__[0]) / "README.md").read_text("utf-8")
    for name, default, uses, doc in OPTIONS:
        assert f"| `{name}` | {default or ''} | {', '.join(uses)} | {doc} |".replace("|  |", "| |") in readme


# --- how the broker is reached

JAAS = 'org.apache.kafka.common.security.scram.ScramLoginModule required username=\'ada\' password="a \\"b\\" c";'


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"ssl.ca.location": "ca.pem"}, BrokerAt(ca="ca.pem")),
        ({"security.protocol": "sasl_ssl"}, BrokerAt(tls=True)),
        (
            {"sasl.username": "ada", "sasl.password": " b ", "security.protocol": "SASL_PLAINTEXT"},
            BrokerAt(tls=False, user="ada", password=" b "),
        ),
        (
            {"kafka.sasl.username": "ada", "kafka.sasl.password.file": "f", "kafka.sasl.mechanism": "plain"},
            BrokerAt(user="ada", password_file="f", mechanism="PLAIN"),
        ),
        ({"kafka.sasl.jaas.config": JAAS}, BrokerAt(user="ada", password='a "b" c')),
        ({"kafka.sasl.jaas.config": JAAS, "sasl.jaas.config": JAAS}, BrokerAt(user="ada", password='a "b" c')),
    ],
)
def test_how_the_broker_is_reached(given: dict[str, str], wanted: BrokerAt) -> None:
    for use in ("any", "log", "stream"):
        assert parse({**S, **given}, use).broker == wanted
    assert parse({"topic": "t", **given}, "write").broker == wanted


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sasl.username": "ada"}, "give both"),
        ({"sasl.password": "hidden"}, "give both"),
        ({"sasl.username": "ada", "sasl.password": "hidden", "sasl.password.file": "f"}, "give one of them"),
        ({"sasl.jaas.config": JAAS, "sasl.password": "hidden"}, "leave out sasl.username"),
        ({"sasl.jaas.config": 'Krb5LoginModule required keyTab="hidden";'}, "user and password are read from it"),
        ({"sasl.username": "a", "sasl.password": "hidden", "security.protocol": "SSL"}, "SASL_SSL, or SASL_PLAINTEXT"),
        ({"ssl.ca.location": "ca", "security.protocol": "PLAINTEXT"}, "SSL or SASL_SSL"),
        ({"security.protocol": "TLS"}, "give PLAINTEXT or SSL"),
        ({"sasl.mechanism": "GSSAPI"}, "give SCRAM-SHA-512"),
        ({"sasl.password": "hidden", "kafka.sasl.password": "hidden too"}, "differ: give one of them"),
        ({"kafka.sasl.login.class": "x"}, "those of security alone"),
    ],
)
def test_a_broker_that_can_not_be_reached_so(given: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        parse({**S, **given}, "log")
    assert "hidden" not in str(error.value)


def test_a_password_is_not_shown() -> None:
    assert "hidden" not in repr(parse({**S, "sasl.username": "ada", "sasl.password": "hidden"}, "log"))
