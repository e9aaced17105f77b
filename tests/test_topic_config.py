"""Topic settings: Kafka's names, defaults and limits, and errors that help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krappy.errors import InvalidConfig, InvalidTopic
from krappy.settings.topic import TopicConfig, check_topic_name, merge
from krappy.settings.topic_table import DEFAULTS, FOREVER, SETTINGS, Given, effective, normalise


def test_the_defaults_are_kafkas() -> None:
    config = TopicConfig.parse({})
    assert config == TopicConfig()
    assert effective({}) == DEFAULTS
    assert DEFAULTS == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "delete.retention.ms": "86400000",
        "file.delete.delay.ms": "60000",
        "flush.messages": "9223372036854775807",
        "flush.ms": "9223372036854775807",
        "follower.replication.throttled.replicas": "",
        "index.interval.bytes": "4096",
        "latest.ahead.enable": "false",  # Krappy's own
        "leader.replication.throttled.replicas": "",
        "local.retention.bytes": "-2",
        "local.retention.ms": "-2",
        "max.compaction.lag.ms": "9223372036854775807",
        "max.message.bytes": "1048588",
        "message.timestamp.after.max.ms": "3600000",
        "message.timestamp.before.max.ms": "9223372036854775807",
        "message.timestamp.type": "CreateTime",
        "min.cleanable.dirty.ratio": "0.5",
        "min.compaction.lag.ms": "0",
        "min.insync.replicas": "1",
        "preallocate": "false",
        "remote.storage.enable": "false",
        "retention.bytes": "-1",
        "retention.ms": "-1",
        "segment.bytes": "1073741824",
        "segment.index.bytes": "10485760",
        "segment.jitter.ms": "0",
        "segment.ms": "604800000",
        "unclean.leader.election.enable": "false",
        "view.enable": "true",
    }


def test_every_setting_has_one_line_of_words() -> None:
    assert all(doc and "\n" not in doc for doc in (setting.doc for setting in SETTINGS.values()))


@pytest.mark.parametrize(
    ("name", "given", "attribute", "value"),
    [
        ("cleanup.policy", "compact", "compact", True),
        ("cleanup.policy", "compact", "delete", False),
        ("cleanup.policy", "delete, compact", "compact", True),
        ("cleanup.policy", "delete, compact", "delete", True),
        ("retention.ms", -1, "retention_ms", None),
        ("retention.ms", "1000", "retention_ms", 1000),
        ("retention.ms", FOREVER, "retention_ms", None),
        ("retention.ms", None, "retention_ms", None),
        ("retention.bytes", 5.0, "retention_bytes", 5),
        ("segment.bytes", " 1048576 ", "segment_bytes", 1 << 20),
        ("segment.ms", 1, "segment_ms", 1),
        ("min.cleanable.dirty.ratio", "0.1", "min_dirty_ratio", 0.1),
        ("min.cleanable.dirty.ratio", 1, "min_dirty_ratio", 1.0),
        ("min.compaction.lag.ms", 7, "min_compaction_lag_ms", 7),
        ("max.compaction.lag.ms", 7, "max_compaction_lag_ms", 7),
        ("max.compaction.lag.ms", FOREVER, "max_compaction_lag_ms", None),
        ("delete.retention.ms", 0, "delete_retention_ms", 0),
        ("max.message.bytes", 2000, "max_message_bytes", 2000),
        ("message.timestamp.type", "LogAppendTime", "log_append_time", True),
        ("message.timestamp.after.max.ms", 0, "timestamp_after_ms", 0),
        ("message.timestamp.after.max.ms", None, "timestamp_after_ms", 3_600_000),
        ("message.timestamp.after.max.ms", FOREVER, "timestamp_after_ms", None),
        ("message.timestamp.before.max.ms", 7, "timestamp_before_ms", 7),
        ("message.timestamp.before.max.ms", None, "timestamp_before_ms", None),
        ("index.interval.bytes", 0, "index_interval_bytes", 0),
        ("view.enable", "False", "view", False),
        ("view.enable", False, "view", False),
        ("compression.type", "producer", "view", True),
    ],
)
def test_what_is_given_is_what_is_used(name: str, given: Given, attribute: str, value: object) -> None:
    assert getattr(TopicConfig.parse({name: given}), attribute) == value


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("cleanup.policy", "erase"),
        ("cleanup.policy", ""),
        ("cleanup.policy", "compact,"),
        ("cleanup.policy", 1),
        ("compression.type", "none"),
        ("min.insync.replicas", 0),
        ("remote.storage.enable", "true"),
        ("message.timestamp.after.max.ms", -1),
        ("message.timestamp.before.max.ms", "1 hour"),
        ("local.retention.ms", -3),
        ("follower.replication.throttled.replicas", "1:a"),
        ("retention.ms", -2),
        ("retention.ms", "a week"),
        ("retention.ms", "1_000"),
        ("retention.ms", 1.5),
        ("retention.ms", float("nan")),
        ("retention.ms", True),
        ("retention.ms", 2**63),
        ("retention.ms", "9" * 1000),
        ("segment.bytes", 13),
        ("segment.bytes", 2**31),
        ("segment.ms", 0),
        ("min.cleanable.dirty.ratio", 1.01),
        ("min.cleanable.dirty.ratio", -0.1),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", True),
        ("max.compaction.lag.ms", 0),
        ("message.timestamp.type", "createtime"),
        ("view.enable", "yes"),
        ("view.enable", 1),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, given: Given) -> None:
    with pytest.raises(InvalidConfig, match=name.replace(".", r"\.")) as caught:
        TopicConfig.parse({name: given})
    assert caught.value.details == {"setting": name}
    assert len(caught.value.text) < 300


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("min.insync.replicas", 1, "1"),
        ("min.insync.replicas", 2, "2"),
        ("min.insync.replicas", " 1 ", "1"),
        ("remote.storage.enable", "FALSE", "false"),
        ("unclean.leader.election.enable", True, "true"),
        ("preallocate", "true", "true"),
        ("flush.messages", 1, "1"),
        ("segment.jitter.ms", "100", "100"),
        ("message.timestamp.before.max.ms", FOREVER, str(FOREVER)),
        ("local.retention.ms", -2, "-2"),
    ],
)
def test_what_holds_anyway_is_taken_and_shown(name: str, given: Given, kept: str) -> None:
    assert normalise({name: given}) == {name: kept}
    assert effective({name: kept}) == {**DEFAULTS, name: kept}
    assert TopicConfig.parse({name: given}) == TopicConfig()


def test_every_setting_reads_its_own_default() -> None:
    assert normalise(DEFAULTS) == DEFAULTS


@pytest.mark.parametrize("value", [[1], {"a": 1}, b"1", [], {}])
@pytest.mark.parametrize("name", sorted(DEFAULTS))
def test_values_of_other_kinds_are_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidConfig):
        TopicConfig.parse({name: value})  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("retention", "retention.ms"),
        ("Cleanup.Policy", "cleanup.policy"),
        ("clean.policy", "cleanup.policy"),
        ("segment_bytes", "segment.bytes"),
        ("view.enabled", "view.enable"),
    ],
)
def test_an_unknown_name_gets_the_nearest(wrong: str, near: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        normalise({wrong: 1})
    assert f"'{wrong}'" in caught.value.text
    assert f"'{near}'" in caught.value.text


def test_an_unknown_name_without_a_near_one() -> None:
    with pytest.raises(InvalidConfig) as caught:
        normalise({"zzzzzz": 1})
    assert "nearest" not in caught.value.text


def test_settings_that_contradict_each_other() -> None:
    with pytest.raises(InvalidConfig, match="view"):
        TopicConfig.parse({"cleanup.policy": "compact", "view.enable": False})
    with pytest.raises(InvalidConfig, match="lag"):
        TopicConfig.parse({"min.compaction.lag.ms": 10, "max.compaction.lag.ms": 9})


def test_a_change_merges_and_none_takes_back() -> None:
    held = normalise({"retention.ms": 5, "segment.ms": 6})
    assert merge(held, {"retention.ms": None, "view.enable": False}) == {"segment.ms": "6", "view.enable": "false"}
    with pytest.raises(InvalidConfig):
        merge(held, {"cleanup.policy": "compact", "view.enable": "false"})
    with pytest.raises(InvalidConfig):
        merge({"view.enable": "false"}, {"cleanup.policy": "compact"})


numbers = st.integers(1, 2**31 - 1)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "cleanup.policy": st.sampled_from(["compact", "delete", "compact,delete"]),
            "retention.ms": st.integers(-1, FOREVER),
            "retention.bytes": st.integers(-1, 2**40),
            "segment.bytes": st.integers(14, 2**31 - 1),
            "segment.ms": numbers,
            "min.cleanable.dirty.ratio": st.floats(0, 1),
            "delete.retention.ms": numbers,
            "message.timestamp.type": st.sampled_from(["CreateTime", "LogAppendTime"]),
        },
    )
)
def test_settings_read_back_as_the_same(given: dict[str, Given]) -> None:
    config = TopicConfig.parse(given)
    assert TopicConfig.parse({**normalise(given)}) == config
    assert TopicConfig.parse({**effective(normalise(given))}) == config


@pytest.mark.parametrize("name", ["a", "my-topic", "A.b_c-9", "...", "a" * 249])
def test_names_that_a_topic_may_have(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "empty"),
        (".", r"'\.'"),
        ("..", r"'\.\.'"),
        ("a" * 250, "249"),
        ("a b", "' '"),
        ("a/b", "'/'"),
        ("ä", "'ä'"),
        ("a\n", r"\\n"),
        ("a\0", r"\\x00"),
    ],
)
def test_names_that_it_may_not(name: str, said: str) -> None:
    with pytest.raises(InvalidTopic, match=said):
        check_topic_name(name)


def test_throttled_replicas() -> None:
    followers = TopicConfig.parse({"follower.replication.throttled.replicas": "0:1,12:3"}).throttled_followers
    assert followers.has(0, 1)
    assert followers.has(12, 3)
    assert not followers.has(1, 1)
    assert not followers.has(0, 3)
    leaders = TopicConfig.parse({"leader.replication.throttled.replicas": "*"}).throttled_leaders
    assert leaders.has(7, 8)
    assert not TopicConfig().throttled_leaders.has(0, 0)
