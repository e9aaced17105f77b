"""The options of the data source in one table: names, defaults, where each may be given, and with which others.

An option that would have no effect is an error, which says what to give instead.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from krappy.errors import ConfigError
from krappy.settings.topic_table import nearest

Use = Literal["any", "log", "stream", "write", "writeStream"]
READS = ("log", "table", "stream")
WRITES = ("write", "writeStream")
EVERYWHERE = (*READS, "snapshot", *WRITES)


class Option(NamedTuple):
    """One option, for the check and for README.md. `uses`: where it may be given; `doc`: what it does."""

    name: str
    default: str
    uses: tuple[str, ...]
    doc: str


OPTIONS = [
    Option("address", "$KRAPPY_ADDRESS, else 127.0.0.1:7092", EVERYWHERE, "HOST:PORT of the broker"),
    Option(
        "security.protocol",
        "as $KRAPPY_TLS, $KRAPPY_CA and $KRAPPY_USER say",
        EVERYWHERE,
        "`PLAINTEXT`, `SSL`, `SASL_PLAINTEXT` or `SASL_SSL`: of the broker's native listener",
    ),
    Option("ssl.ca.location", "", EVERYWHERE, "PEM file, on each machine, of those who vouch for the broker"),
    Option("sasl.username", "$KRAPPY_USER", EVERYWHERE, "the user that logs in"),
    Option("sasl.password", "", EVERYWHERE, "the user's password"),
    Option("sasl.password.file", "$KRAPPY_PASSWORD_FILE", EVERYWHERE, "file, on each machine, that holds the password"),
    Option(
        "sasl.mechanism",
        "the best that the broker has",
        EVERYWHERE,
        "`SCRAM-SHA-512`, `SCRAM-SHA-256`, or over TLS `PLAIN` or `OAUTHBEARER`",
    ),
    Option("sasl.token", "", EVERYWHERE, "a token of an identity provider, in place of user and password"),
    Option("sasl.token.file", "$KRAPPY_TOKEN_FILE", EVERYWHERE, "file, on each machine, that holds the token"),
    Option("sasl.jaas.config", "", EVERYWHERE, "user and password, as Kafka's clients for Java have them"),
    Option(
        "mode",
        "log; table when a key option is given",
        ("log", "table", "snapshot"),
        "`log`: events; `table`: the latest of each key; `snapshot`: takes a snapshot and returns its offsets",
    ),
    Option("subscribe", "", (*READS, "snapshot"), "topics, separated by commas"),
    Option(
        "subscribePattern",
        "",
        (*READS, "snapshot"),
        "a regular expression, found anywhere in a topic's name; ^orders$ matches a whole name",
    ),
    Option("assign", "", (*READS, "snapshot"), 'partitions: {"orders":[0,2]}'),
    Option("columns", "all but headers", READS, "columns to read, separated by commas, in their order"),
    Option("includeHeaders", "false", READS, "adds the column `headers`"),
    Option("keyType", "binary", READS, "`string`: the column `key` is text (UTF-8)"),
    Option(
        "startingOffsets",
        "earliest; a stream: latest",
        ("log", "stream"),
        '`earliest`, `latest` or offsets {"orders":{"0":23,"1":-2}}: -2 earliest, -1 latest; a stream: `snapshot` too',
    ),
    Option("endingOffsets", "latest", ("log",), "`latest`, or offsets as above: the first offset that is not read"),
    Option("startingTimestamp", "", ("log", "stream"), "ms since the epoch: from the first event at or after it"),
    Option("endingTimestamp", "", ("log",), "ms since the epoch: to before the first event at or after it"),
    Option("startingOffsetsByTimestamp", "", ("log", "stream"), 'by partition: {"orders":{"0":1735689600000}}'),
    Option("endingOffsetsByTimestamp", "", ("log",), "the same, for the end"),
    Option(
        "startingOffsetsByTimestampStrategy",
        "error",
        ("log", "stream"),
        "if a partition has no event at or after the starting time: `error`, or start at `latest`",
    ),
    Option(
        "failOnDataLoss",
        "true",
        ("log", "stream"),
        "`true`: offsets that are gone are an error; `false`: they are skipped",
    ),
    Option(
        "minPartitions",
        "",
        (*READS, "snapshot"),
        "at least this many Spark partitions (for a table about this many), if there is enough to read",
    ),
    Option("maxRecordsPerPartition", "", ("log", "stream"), "offsets of a Spark partition at most"),
    Option("maxOffsetsPerTrigger", "", ("stream",), "offsets of a micro-batch at most, over all partitions"),
    Option("minOffsetsPerTrigger", "", ("stream",), "offsets that a micro-batch waits for"),
    Option("maxTriggerDelay", "15m", ("stream",), "how long a micro-batch waits for minOffsetsPerTrigger at most"),
    Option("tombstones", "false", ("table",), "includes deleted keys, and adds a column `deleted`"),
    Option("key", "", ("table",), "this key only"),
    Option("keys", "", ("table",), 'these keys only: ["u1","u2"]'),
    Option("keyPrefix", "", ("table", "snapshot"), "keys with this prefix"),
    Option("keyFrom", "", ("table", "snapshot"), "keys from this one on"),
    Option("keyTo", "", ("table", "snapshot"), "keys before this one"),
    Option("keyEncoding", "utf8", ("table", "snapshot"), "how the five above are written: `utf8`, `hex` or `base64`"),
    Option("limit", "", ("log", "table"), "at most this many rows, read in one task"),
    Option("pushdown", "false", ("table",), "take Spark's own filter pushdown: wrong in some queries, see above"),
    Option("snapshot", "", ("table",), "reads a snapshot that is held: the column `snapshot` of mode=snapshot"),
    Option(
        "snapshotTtl",
        "10m",
        ("table", "snapshot", "stream"),
        "how long the broker holds a snapshot that nobody reads: a day at most",
    ),
    Option("topic", "", WRITES, "the topic to write to; without it, the rows need a column `topic`"),
    Option("jobId", "", ("write",), "the job's name: under it, one job is published, once"),
    Option("awaitTable", "false", ("write",), "the write returns when the table has all of its rows"),
    Option("stagingTtl", "6h", WRITES, "how long the broker keeps staged rows after the last of them: 24 days at most"),
    Option("checkpointLocation", "", ("writeStream",), "Spark's own: the folder of the query's checkpoint"),
    Option("queryName", "", ("writeStream",), "Spark's own: the query's name"),
    Option("compression", "none", WRITES, "of record batches: `none`, `gzip`, `snappy`, `lz4` or `zstd`"),
]
BY_NAME = {option.name.lower(): option for option in OPTIONS}
USES = {
    "log": "reading a log (mode=log)",
    "table": "reading a table (mode=table)",
    "snapshot": "taking a snapshot (mode=snapshot)",
    "stream": "readStream",
    "write": "write",
    "writeStream": "writeStream",
}
KEY_OPTIONS = ("key", "keys", "keyPrefix", "keyFrom", "keyTo")
KEYS_AS_THEY_ARE = ("key", "keyprefix", "keyfrom", "keyto")  # these may be empty, and keep blanks at their ends
AS_THEY_ARE = (
    *KEYS_AS_THEY_ARE,
    "sasl.password",
    "kafka.sasl.password",
    "sasl.token",
    "kafka.sasl.token",
)  # and so do these, which may not be empty
TIMES = ("startingTimestamp", "startingOffsetsByTimestamp")
NEEDS = [  # an option, and options of which at least one must be given, too
    ("keyEncoding", KEY_OPTIONS),
    ("startingOffsetsByTimestampStrategy", TIMES),
    ("maxTriggerDelay", ("minOffsetsPerTrigger",)),
]
NO_CATALOG = (
    "Spark keeps the OPTIONS of CREATE TABLE from data sources made in Python; a view has them: "
    "CREATE TEMPORARY VIEW users USING krappy OPTIONS (subscribe 'users', mode 'table')"
)
NEVER_BOTH = [  # an option, the options that exclude it, and why
    ("limit", ("minPartitions", "maxRecordsPerPartition"), "so few rows are read in one task"),
    ("columns", ("includeHeaders",), "name headers among the columns, and leave the other out"),
    (
        "snapshot",
        ("subscribe", "subscribePattern", "assign", "minPartitions", "snapshotTtl"),
        "the snapshot has them already, give one of them",
    ),
]


def check(texts: Mapping[str, str], use: Use, mode: str) -> None:
    """Checks options (names in lower case): each has an effect in this use, and they go together.

    Raises ConfigError.
    """
    _for_use(texts, use, mode)
    _together(texts, use)


def check_names(texts: Mapping[str, str]) -> None:
    """Raises ConfigError for an unknown option, or an empty one."""
    if "provider" in texts:  # Spark gives the properties of the table that CREATE TABLE makes, not its options
        raise ConfigError(NO_CATALOG)
    for name, text in texts.items():
        if name not in BY_NAME:
            raise _unknown(name)
        if not text and name not in KEYS_AS_THEY_ARE:
            raise ConfigError(f"option {BY_NAME[name].name} is empty: give it a value, or leave it out", option=name)


def _unknown(name: str) -> ConfigError:
    if name.startswith("kafka."):
        said = (
            f"option '{name}': format('krappy') speaks Krappy's own protocol, and of kafka.* options it has those of "
            "security alone: give address=HOST:PORT (native port, by default 7092)"
        )
    elif name == "path":
        said = "load() and save() take no path: name topics with the option subscribe, or topic"
    else:
        close = re.search("'(.*)'", nearest(name, BY_NAME))
        near = f"; the nearest is '{BY_NAME[close[1]].name}'" if close else ""
        said = f"format('krappy') has no option '{name}'{near}"
    return ConfigError(said, option=name)


def _for_use(texts: Mapping[str, str], use: Use, mode: str) -> None:
    if use in ("any", "log") and mode != "log":
        uses: tuple[str, ...] = (mode,)
    else:
        uses = ("log", "stream") if use == "any" else (use,)
    for name in texts:
        option = BY_NAME[name]
        if not set(option.uses) & set(uses):
            good = " and ".join(USES[each] for each in option.uses)
            now = " or ".join(USES[each] for each in uses)
            raise ConfigError(f"option '{option.name}' is for {good}, and this is {now}", option=option.name)


def _together(texts: Mapping[str, str], use: Use) -> None:
    for name, some in NEEDS:
        if name.lower() in texts and not _given(texts, some):
            raise ConfigError(f"option {name} only changes {_or(some)}: give one of them too, or leave it out")
    for name, some, why in NEVER_BOTH:
        if name.lower() in texts and (found := _given(texts, some)):
            raise ConfigError(f"options {name} and {found[0]}: {why}")
    if "limit" in texts and texts.get("pushdown", "false") != "false":
        raise ConfigError("options limit and pushdown: rows are counted before Spark filters them, so give one of them")
    if texts.get("startingoffsets", "").lower() == "snapshot":
        if found := _given(texts, TIMES):
            raise ConfigError(f"options startingOffsets=snapshot and {found[0]}: a stream starts at one of them only")
    elif use == "stream" and "snapshotttl" in texts:
        raise ConfigError("option snapshotTtl: give startingOffsets=snapshot too, or leave it out")


def _given(texts: Mapping[str, str], names: Sequence[str]) -> list[str]:
    return [name for name in names if name.lower() in texts]


def _or(names: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
