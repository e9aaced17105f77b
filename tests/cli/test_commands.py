"""Each command against a real broker: what it prints and which status it returns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import krappy.cli.commands.produce as produce_module
from krappy.cli import output
from krappy.testing.running import RunningBroker
from tests.cli.conftest import Krappy, make_kafka_group


def test_a_topic_is_made_shown_changed_and_deleted(krappy: Krappy) -> None:
    made = krappy("topic", "create", "life", "-p", "2", "-c", "cleanup.policy=compact", "--json")
    assert (made.status, made.json) == (0, {"topic": "life", "created": True})

    again = krappy("topic", "create", "life")
    assert again.status == 1
    assert again.err.startswith("krappy: ")
    assert krappy("topic", "create", "life", "--if-absent", "--json").json == {"topic": "life", "created": False}

    [row] = [row for row in krappy("topic", "list", "--json").json if row["topic"] == "life"]
    assert row == {"topic": "life", "partitions": 2, "events": 0, "size": 0, "cleanup": "compact", "view": True}
    assert "life" in krappy("topic", "list").out

    altered = krappy(
        "topic", "alter", "life", "-p", "3", "-c", "retention.ms=1000", "--unset", "cleanup.policy", "--json"
    )
    assert altered.json == {"topic": "life", "altered": True}
    described = krappy("topic", "describe", "life", "--json").json
    assert described["config"] == {"retention.ms": "1000"}
    assert described["settings"]["cleanup.policy"] == "delete"
    assert [partition["partition"] for partition in described["partitions"]] == [0, 1, 2]
    shown = krappy("topic", "describe", "life").out
    assert "retention.ms" in shown
    assert "cleanup.policy" not in shown
    assert "cleanup.policy" in krappy("topic", "describe", "life", "--all").out

    assert krappy("topic", "delete", "life", "--yes", "--json").json == {"topic": "life", "deleted": True}
    assert "life" not in krappy("topic", "list").out


def test_a_topic_that_is_there_already_tells_how_it_differs(krappy: Krappy, topic: str) -> None:
    asked = ("topic", "create", topic, "-p", "2", "-c", "cleanup.policy=compact", "--if-absent")
    told = krappy(*asked)
    differs = "partitions is 3, not 2; cleanup.policy is delete, not compact"
    assert (told.status, told.err) == (0, f"the topic '{topic}' was there already, and differs: {differs}\n")
    assert krappy(*asked, "--json").json["differs"] == {
        "partitions": {"asked": 2, "is": 3},
        "cleanup.policy": {"asked": "compact", "is": "delete"},
    }
    assert krappy("topic", "create", topic, "-p", "3", "--if-absent").err == f"{topic} was there already\n"


def test_a_topic_says_that_its_keys_are_scattered(krappy: Krappy) -> None:
    """Keys that were written before partitions were added stay where they are."""
    assert krappy("topic", "create", "astray").status == 0
    lines = "".join(f"k{number}\tv\n" for number in range(20))
    assert krappy("produce", "astray", "--sep", "\t", stdin=lines.encode()).status == 0
    assert krappy("topic", "describe", "astray", "--json").json["scattered"] is False
    assert "scattered" not in krappy("topic", "describe", "astray").out
    assert krappy("topic", "alter", "astray", "-p", "4").status == 0
    assert krappy("topic", "describe", "astray", "--json").json["scattered"] is True
    assert "(scattered)" in krappy("topic", "describe", "astray").out


@pytest.mark.parametrize(
    ("given", "kept"),
    [("7d", "604800000"), ("forever", "-1"), ("1.5h", "5400000"), ("5ms", "5"), ("0.1ms", "1")],
)
def test_how_long_a_topic_keeps_its_events(krappy: Krappy, given: str, kept: str) -> None:
    name = "kept-" + given
    assert krappy("topic", "create", name, "--retention", given).status == 0
    described = krappy("topic", "describe", name, "--json").json
    assert described["config"] == {"retention.ms": kept}
    assert krappy("topic", "alter", name, "--unset", "retention.ms").status == 0
    assert krappy("topic", "describe", name, "--json").json["settings"]["retention.ms"] == "-1"
    assert krappy("topic", "alter", name, "--retention", given).status == 0
    assert krappy("topic", "describe", name, "--json").json["config"] == {"retention.ms": kept}


@pytest.mark.parametrize("given", ["", "7", "0d", "-1d", "a week", "99999999999d", "7d "])
def test_how_long_a_topic_cannot_keep_its_events(krappy: Krappy, given: str) -> None:
    result = krappy("topic", "create", "never", "--retention", given)
    assert result.status == 2
    assert "is no time such as 90m, 12h or 7d, nor forever" in result.err
    twice = krappy("topic", "create", "never", "--retention", "7d", "-c", "retention.ms=5")
    assert (twice.status, "give one of the two" in twice.err) == (2, True)


def test_settings_of_topics_may_have_units(krappy: Krappy, topic: str) -> None:
    asked = ("-c", "retention.ms=7d", "-c", "segment.bytes=256M", "-c", "max.message.bytes=1.5MiB")
    assert krappy("topic", "alter", topic, *asked).status == 0
    assert krappy("topic", "describe", topic, "--json").json["config"] == {
        "retention.ms": "604800000",
        "segment.bytes": str(256 << 20),
        "max.message.bytes": str(3 << 19),
    }
    refused = krappy("topic", "alter", topic, "-c", "segment.bytes=256X")
    assert "'X' is no unit" in refused.err
    assert "such as 256M, 64KiB or 1.5G is needed" in krappy("topic", "alter", topic, "-c", "segment.bytes=much").err


def test_the_settings_of_topics_are_listed(run: Krappy) -> None:
    told = {each["name"]: each for each in run("topic", "settings", "--json").json}
    assert told["segment.bytes"] == {
        "name": "segment.bytes",
        "default": "1073741824",
        "meaning": "bytes after which a segment is closed",
    }
    assert "preallocate" not in told
    lines = run("topic", "settings", "--all").lines
    defaults = dict(line.split("\t")[:2] for line in lines)
    assert defaults["segment.bytes"] == "1073741824", "programs get what is stored"
    assert defaults["segment.ms"] == "604800000"
    assert "preallocate" in defaults


def test_a_table_in_a_pipe_is_lines_with_tabs_and_plain_numbers(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--partition", "0", stdin=b"x\n" * 1234)
    head, *rows = [line.split("\t") for line in krappy("topic", "list").lines]
    [row] = [dict(zip(head, row, strict=True)) for row in rows if row[0] == topic]
    assert row["events"] == "1234"
    assert int(row["size"]) > 1234
    assert (
        output.tabbed(["a\tb", "c\nd", None, True, 0.25, 1e9, "\x1b"]) == "a\\tb\tc\\nd\t\tyes\t0.25\t1000000000\t\\x1b"
    )


def test_a_file_with_tabs_is_read_by_its_ending(krappy: Krappy, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "people.tsv"
    path.write_text("id\tname\nu1\tAda, L.\n")
    assert krappy("produce", topic, str(path), "--key", "id").status == 0
    assert krappy("scan", topic, "--sep", ":").lines == ['u1:{"id":"u1","name":"Ada, L."}']


def test_a_wrong_setting_names_the_nearest(krappy: Krappy) -> None:
    result = krappy("topic", "create", "wrong", "-c", "cleanup.polcy=compact")
    assert result.status == 1
    assert "cleanup.policy" in result.err
    assert len(result.err.splitlines()) == 1


def test_deleting_asks_and_without_a_terminal_refuses(krappy: Krappy, topic: str) -> None:
    result = krappy("topic", "delete", topic)
    assert result.status == 1
    assert "--yes" in result.err
    assert topic in krappy("topic", "list").out


@pytest.mark.parametrize(
    "command",
    [["topic", "delete", "nowhere"], ["group", "delete", "nobody"], ["user", "delete", "nobody"]],
    ids=lambda command: command[0],
)
def test_what_is_not_there_cannot_be_deleted(krappy: Krappy, command: list[str]) -> None:
    failed = krappy(*command, "--yes")
    assert (failed.status, failed.out) == (1, "")
    assert f"'{command[-1]}'" in failed.err


def test_quotas_that_are_not_there_cannot_be_deleted(krappy: Krappy) -> None:
    for form in ([], ["--json"]):
        failed = krappy("quota", "delete", "--user", "nobody", *form)
        assert (failed.status, failed.out) == (1, "")
        assert "there are no such quotas" in failed.err


def test_altering_nothing_is_a_mistake(krappy: Krappy, topic: str) -> None:
    assert krappy("topic", "alter", topic).status == 2


def test_lines_come_back_as_they_went_in(krappy: Krappy, topic: str) -> None:
    sent = krappy("produce", topic, "--sep", ":", "--json", stdin=b"u1:Ada\nu2:Grace\nu1:Ada L.\n")
    assert sent.status == 0
    assert sent.json["events"] == 3
    assert sorted(krappy("consume", topic, "--to", "now", "--sep", ":").lines) == ["u1:Ada", "u1:Ada L.", "u2:Grace"]
    assert sorted(krappy("consume", topic, "--to", "now").lines) == ["Ada", "Ada L.", "Grace"]


def test_bytes_that_are_no_text_are_shown_as_base64(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--sep", ":", stdin=b"\xff:\x00\xfe\n")
    assert krappy("consume", topic, "--to", "now", "--sep", " ").lines == ["base64:/w== base64:AP4="]
    [event] = krappy("consume", topic, "--to", "now", "--json").objects
    assert event["key"] == {"base64": "/w=="}
    assert event["value"] == {"base64": "AP4="}
    assert krappy("get", topic, "base64:/w==").lines == ["base64:AP4="]


def test_no_key_passes_for_a_line_of_its_own(krappy: Krappy, topic: str) -> None:
    key, shown = "u1\n= u2\tforged\x1b[2J", "base64:dTEKPSB1Mglmb3JnZWQbWzJK"
    event = {"key": key, "value": "v", "headers": [["h", "\x9b\n"]]}
    krappy("produce", topic, "--format", "events", stdin=json.dumps(event).encode())
    read = ["consume", topic, "--to", "now"]
    assert krappy(*read, "--sep", " ").lines == [f"{shown} v"]
    assert krappy(*read, "--format", "{key} {headers}").lines == [shown + r' [["h","\u009b\n"]]']
    assert krappy(*read, "--json").json["key"] == key
    assert krappy("scan", topic).lines == [f"{shown}\tv"]
    assert krappy("scan", topic, "--keys").lines == [shown]
    assert krappy("watch", topic, "--max", "1").lines == [f"= {shown}\tv"]
    assert krappy("get", topic, shown).err.startswith(f"{shown}: {topic} partition ")
    assert krappy("get", topic, key).out == "v\n"


def test_the_name_of_a_group_stays_in_its_line(krappy: Krappy, broker: RunningBroker, topic: str) -> None:
    group = "mail\nforged\x1b[2J"
    krappy("produce", topic, stdin=b"x\n")
    make_kafka_group(broker, group, topic)
    [line] = [each for each in krappy("group", "list").lines if each.startswith("mail")]
    assert line.split("\t")[0] == r"mail\nforged\x1b[2J"
    assert krappy("group", "delete", group, "--yes").err == r"deleted the group mail\nforged\x1b[2J" + "\n"


def test_a_topic_is_copied_exactly(krappy: Krappy, topic: str) -> None:
    options = ("--sep", ":", "--key-optional", "--null", "-", "--header", "from=here")
    krappy("produce", topic, *options, stdin=b"a:1\nb:\xff\nc:-\n:4\n")
    events = krappy("consume", topic, "--to", "now", "--json").out
    assert krappy("produce", topic + "-copy", "--format", "events", stdin=events.encode()).status == 0
    copied = krappy("consume", topic + "-copy", "--to", "now", "--json").objects

    def facts(event: dict[str, object]) -> str:
        return json.dumps([event[name] for name in ("timestamp", "key", "value", "headers")])

    assert sorted(map(facts, copied)) == sorted(facts(json.loads(line)) for line in events.splitlines())
    assert len(copied) == 4
    assert copied[0]["headers"] == [["from", "here"]]
    krappy("topic", "delete", topic + "-copy", "--yes")


def test_a_packed_csv_file_is_keyed_by_a_column(krappy: Krappy, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "people.csv.gz"
    path.write_bytes(gzip.compress(b"id,name\nu1,Ada\n,Nobody\nu2,Grace\n"))
    optional = ("--key-optional", "--compression", "zstd", "--json")
    assert krappy("produce", topic, str(path), "--key", "id", *optional).json["events"] == 3
    assert json.loads(krappy("get", topic, "u2").out) == {"id": "u2", "name": "Grace"}
    keys = [event["key"] for event in krappy("consume", topic, "--to", "now", "--json").objects]
    assert sorted(keys, key=str) == [None, "u1", "u2"]


def test_tabs_between_columns(krappy: Krappy, topic: str) -> None:
    sent = krappy("produce", topic, "-f", "csv", "--key", "id", "--delimiter", "\\t", stdin=b"id\tn\nu1\t5\n")
    assert sent.status == 0, sent.err
    assert krappy("scan", topic, "--sep", ":").lines == ['u1:{"id":"u1","n":"5"}']


def test_many_lines_of_a_file(krappy: Krappy, topic: str, tmp_path: Path) -> None:
    path = tmp_path / "many.txt"
    path.write_text("".join(f"k{number % 100}:{number}\n" for number in range(5000)))
    assert krappy("produce", topic, str(path), "--sep", ":", "--json").json["events"] == 5000
    values = [int(line) for line in krappy("consume", topic, "--to", "now").lines]
    assert sorted(values) == list(range(5000))
    assert krappy("scan", topic, "--sep", "=", "--prefix", "k7").lines.count("k7=4907") == 1
    assert krappy("produce", topic, str(path), "--sep", ":", "--max", "10", "--json").json["events"] == 10


@pytest.mark.parametrize("name", [None, "lines.txt"], ids=["stdin", "file"])
def test_wrong_input_ends_at_its_line_and_keeps_what_came_before(
    krappy: Krappy, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    monkeypatch.setattr(produce_module, "CHUNK", 2)
    lines = b"a:1\na:2\na:3\nb\nc:3\n"
    if name is None:
        result = krappy("produce", topic, "--sep", ":", stdin=lines)
    else:
        (tmp_path / name).write_bytes(lines)
        result = krappy("produce", topic, str(tmp_path / name), "--sep", ":")
    assert result.status == 1
    where = f"krappy: {name or 'stdin'} line 4: has no ':' between key and value"
    assert result.err == f"{where}; 3 events before it are stored\n"
    assert krappy("consume", topic, "--to", "now").lines == ["1", "2", "3"]


def test_an_event_without_the_key_that_was_asked_for_is_refused(krappy: Krappy, topic: str) -> None:
    result = krappy("produce", topic, "--format", "json", "--key", "idd", stdin=b'{"id":1}\n')
    assert result.status == 1
    assert "line 1: no key in 'idd'; its fields are id." in result.err
    assert krappy("consume", topic, "--to", "now").out == ""


def test_optional_keys_that_are_missing_are_counted(krappy: Krappy, topic: str, tmp_path: Path) -> None:
    lines = b'{"id":1}\n{"no":1}\n{"id":null}\n'
    (tmp_path / "some.jsonl").write_bytes(lines)
    asked = ("--key", "id", "--key-optional")
    told = krappy("produce", topic, "--format", "json", *asked, "--json", stdin=lines).json
    assert (told["events"], told["without_key"]) == (3, 2)
    said = krappy("produce", topic, str(tmp_path / "some.jsonl"), *asked).err
    assert said.endswith(", 2 of them without a key\n")
    assert "without a key" not in krappy("produce", topic, stdin=b"none was asked for\n").err


def test_a_line_without_a_key_is_refused_unless_keys_are_optional(krappy: Krappy, topic: str) -> None:
    refused = krappy("produce", topic, "--sep", ":", stdin=b"k:v\n:w\n")
    assert refused.status == 1
    assert "line 2: has no key before ':'. With --key-optional" in refused.err
    assert krappy("consume", topic, "--to", "now").lines == ["v"]
    told = krappy("produce", topic, "--sep", ":", "--key-optional", "--json", stdin=b":w\n").json
    assert (told["events"], told["without_key"]) == (1, 1)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_comes_before_a_value_that_cannot_be_shown_is_printed(krappy: Krappy, topic: str, grouped: bool) -> None:
    krappy("produce", topic, "--partition", "0", stdin=b'{"n":1}\n{"n":2}\nno json\n{"n":4}\n')
    group = ("--group", f"{topic}-{grouped}") if grouped else ("--to", "now")
    shown = krappy("consume", topic, "--as", "json", *group)
    assert shown.status == 1
    assert shown.out.splitlines() == ['{"n":1}', '{"n":2}']
    assert "is not json" in shown.err
    if grouped:  # and is done: the next member begins at the bad one
        assert krappy("consume", topic, *group, "--max", "1").lines == ["no json"]


def test_an_event_that_is_too_large_is_refused(krappy: Krappy) -> None:
    krappy("topic", "create", "small", "-c", "max.message.bytes=1000")
    result = krappy("produce", "small", stdin=b"x" * 2000 + b"\n")
    assert result.status == 1
    assert "max.message.bytes" in result.err
    assert krappy("consume", "small", "--to", "now").out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["--key", "id"],
        ["--key-optional"],
        ["--format", "json", "--sep", ":"],
        ["--format", "csv", "--delimiter", "ab"],
        ["--header", "x"],
        ["--sep", ""],
        ["--format", "xml"],
    ],
)
def test_options_of_produce_that_go_nowhere_are_mistakes(krappy: Krappy, arguments: list[str]) -> None:
    result = krappy("produce", "nowhere", *arguments, stdin=b"a\n")
    assert result.status == 2
    assert len(result.err.splitlines()) == 1


def test_consume_from_an_offset_of_a_partition(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--partition", "1", stdin=b"a\nb\nc\nd\n")
    ranged = ["--partition", "1", "--from", "1", "--to", "3"]
    assert krappy("consume", topic, *ranged).lines == ["b", "c"]
    assert krappy("consume", topic, "--partition", "0", "--to", "now").lines == []
    assert krappy("consume", topic, "--partition", "1", "--max", "2").lines == ["a", "b"]
    assert krappy("consume", topic, "--partition", "1", "--from", "2", "--idle", "0.2").lines == ["c", "d"]


def test_consume_from_a_time(krappy: Krappy, topic: str) -> None:
    old, new = '{"value":"old","timestamp":1000}\n', '{"value":"new","timestamp":1893456000000}\n'
    krappy("topic", "alter", topic, "-c", f"message.timestamp.after.max.ms={2**63 - 1}")
    krappy("produce", topic, "-p", "0", "--format", "events", stdin=(old + new).encode())
    for start in ("2029-01-01", "@1893456000000", "2030-01-01T00:00:00Z"):
        assert krappy("consume", topic, "-p", "0", "--from", start, "--to", "now").lines == ["new"], start
    assert krappy("consume", topic, "-p", "0", "--from", "1h", "--to", "now").lines == ["new"]
    assert krappy("consume", topic, "--from", "latest", "--to", "now").lines == []


def test_consume_formats(krappy: Krappy, topic: str) -> None:
    event = '{"key":"k","value":null,"timestamp":0,"headers":[["h","1"],["h",{"base64":"/w=="}]]}'
    krappy("produce", topic, "-p", "2", "--format", "events", stdin=event.encode())
    shown = krappy(
        "consume",
        topic,
        "--to",
        "now",
        "--null",
        "NULL",
        "--format",
        r"{topic}\t{partition}/{offset} {time} {timestamp} {key}={value} {headers} {deliveries}",
    )
    headers = '[["h","1"],["h",{"base64":"/w=="}]]'
    assert shown.lines == [f"{topic}\t2/0 1970-01-01T00:00:00.000Z 0 k=NULL {headers} 1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--to", "later"],
        ["--from", "yesterday"],
        ["--group", "g", "--to", "now"],
        ["--group", "g", "--partition", "0"],
        ["--json", "--sep", ":"],
        ["--format", "{nothing}"],
        ["--format", "{key"],
        ["--format", "{key.x}"],
        ["--max", "0"],
    ],
)
def test_wrong_options_of_consume(krappy: Krappy, topic: str, arguments: list[str]) -> None:
    result = krappy("consume", topic, *arguments)
    assert result.status == 2
    assert len(result.err.splitlines()) == 1


def test_a_group_goes_on_where_it_was(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--partition", "0", stdin=b"a\nb\nc\nd\n")
    group = topic + "-group"
    assert krappy("consume", topic, "--group", group, "--max", "1").lines == ["a"]
    assert krappy("consume", topic, "--group", group, "--max", "2").lines == ["b", "c"]
    assert krappy("consume", topic, "--group", group, "--idle", "0.3").lines == ["d"]

    [row] = [row for row in krappy("group", "list", "--json").json if row["group"] == group]
    assert row["lag"] == 0
    assert row["topics"] == [topic]
    assert group in krappy("group", "list").out
    described = krappy("group", "describe", group, "--json").json
    assert next(partition["floor"] for partition in described["partitions"]) == 4
    head, *rows = [line.split("\t") for line in krappy("group", "describe", group).out.splitlines() if line]
    assert dict(zip(head, rows[0], strict=True))["lag"] == "0"

    dry = krappy("group", "reset", group, "--to", "1", "--topic", topic, "--partition", "0", "--dry-run", "--json")
    expected = {"topic": topic, "partition": 0, "old": 4, "new": 1}
    assert (dry.json["dry_run"], dry.json["positions"]) == (True, [expected])
    assert krappy("group", "describe", group, "--json").json["lag"] == 0
    krappy("group", "reset", group, "--to", "1", "--topic", topic, "--partition", "0")
    assert krappy("group", "describe", group, "--json").json["lag"] == 3
    assert krappy("group", "reset", group, "--to", "earliest").status == 0
    assert krappy("consume", topic, "--group", group, "--max", "4").lines == ["a", "b", "c", "d"]

    assert krappy("group", "delete", group).status == 1  # nobody is there to confirm it
    assert krappy("group", "delete", group, "--yes", "--json").json == {"group": group, "deleted": True}
    gone = krappy("group", "describe", group)
    assert (gone.status, len(gone.err.splitlines())) == (1, 1)


def test_the_oldest_events_of_a_topic_are_deleted(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--partition", "1", stdin=b"a\nb\nc\n")
    asked = krappy("topic", "delete-records", topic, "--before", "latest")
    assert asked.status == 1
    assert "--yes" in asked.err
    cut = krappy("topic", "delete-records", topic, "--before", "2", "--partition", "1", "--yes", "--json")
    assert cut.json == {"topic": topic, "partitions": [{"partition": 1, "start": 2}]}
    assert krappy("consume", topic, "--to", "now").lines == ["c"]
    late = krappy("topic", "delete-records", topic, "--before", "4", "--partition", "1", "--yes")
    assert late.status == 1
    assert "high watermark, 3" in late.err
    assert krappy("topic", "delete-records", topic, "--before", "latest", "--yes").status == 0
    assert krappy("consume", topic, "--to", "now").lines == []


def test_get_tells_absent_deleted_and_value_apart(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--sep", ":", "--null", "", stdin=b"here:1\ngone:1\ngone:\n")
    value = krappy("get", topic, "here")
    assert (value.status, value.out) == (0, "1\n")
    assert "offset" in value.err
    deleted = krappy("get", topic, "gone")
    assert (deleted.status, deleted.out) == (4, "")
    assert "deleted at" in deleted.err
    absent = krappy("get", topic, "never")
    assert (absent.status, absent.out) == (3, "")
    assert "absent" in absent.err

    several = krappy("get", topic, "here", "gone", "never", "--json")
    assert several.status == 3
    assert [each["state"] for each in several.objects] == ["value", "deleted", "absent"]
    assert several.objects[0]["value"] == "1"
    assert several.objects[1]["offset"] >= 1


def test_get_sees_what_was_just_written(krappy: Krappy, topic: str) -> None:
    for number in range(20):
        krappy("produce", topic, "--sep", ":", stdin=f"key:{number}\n".encode())
        assert krappy("get", topic, "key").out == f"{number}\n"


def test_the_history_of_a_key(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--sep", ":", "--null", "", stdin=b"k:1\nother:x\nk:2\nk:\nk:3\n")
    history = krappy("get", topic, "k", "--history", "--json")
    assert history.status == 0
    assert [each["value"] for each in history.objects] == ["1", "2", None, "3"]
    offsets = [each["offset"] for each in history.objects]
    assert offsets == sorted(offsets)
    assert krappy("get", topic, "k", "--history").lines == ["1", "2", "3"]
    assert krappy("get", topic, "never", "--history").status == 3


def test_scan_by_prefix_and_range(krappy: Krappy, topic: str) -> None:
    lines = "".join(f"{letter}{number}:{number}\n" for letter in "abc" for number in range(5))
    krappy("produce", topic, "--sep", ":", "--null", "4", stdin=lines.encode())
    assert sorted(krappy("scan", topic, "--prefix", "b", "--sep", "=").lines) == ["b0=0", "b1=1", "b2=2", "b3=3"]
    assert sorted(krappy("scan", topic, "--start", "a3", "--end", "b2", "--keys").lines) == ["a3", "b0", "b1"]
    assert len(krappy("scan", topic).lines) == 12
    assert krappy("scan", topic, "--prefix", "b", "--ordered", "--keys", "-n", "3").lines == ["b0", "b1", "b2"]
    assert len(krappy("scan", topic, "--max", "7").lines) == 7
    assert krappy("scan", topic, "--start", "b2", "--end", "b3", "--keys", "--json").objects == [{"key": "b2"}]
    tombstones = [each for each in krappy("scan", topic, "--tombstones", "--json").objects if each["deleted"]]
    assert sorted(each["key"] for each in tombstones) == ["a4", "b4", "c4"]
    assert krappy("scan", topic, "--prefix", "a", "--start", "a").status == 2
    by_partition = [krappy("scan", topic, "--partition", str(index), "--keys").lines for index in range(3)]
    assert sum(map(len, by_partition)) == 12
    assert all(keys == sorted(keys) for keys in by_partition)


def test_watch_shows_the_table_and_then_changes(krappy: Krappy, topic: str) -> None:
    krappy("produce", topic, "--sep", ":", stdin=b"a:1\nb:2\nc:3\n")
    watched = krappy("watch", topic, "--max", "3", "--json")
    assert sorted((each["event"], each["key"], each["value"]) for each in watched.objects) == [
        ("snapshot", "a", "1"),
        ("snapshot", "b", "2"),
        ("snapshot", "c", "3"),
    ]
    assert krappy("watch", topic, "--prefix", "b", "--max", "1").lines == ["= b\t2"]


def test_a_topic_without_a_view_says_so(krappy: Krappy) -> None:
    krappy("topic", "create", "plain", "-c", "view.enable=false")
    result = krappy("get", "plain", "k")
    assert result.status == 1
    assert "view.enable" in result.err


@pytest.mark.parametrize("arguments", [["get", "nowhere", "k"], ["scan", "nowhere"], ["topic", "describe", "nowhere"]])
def test_an_unknown_topic_is_one_clear_line(krappy: Krappy, arguments: list[str]) -> None:
    result = krappy(*arguments)
    assert result.status == 1
    assert len(result.err.splitlines()) == 1
    assert "nowhere" in result.err
    assert "krappy topic" in result.err


def test_acls_without_an_authorizer_tell_what_turns_them_on(krappy: Krappy) -> None:
    result = krappy("acl", "list")
    assert result.status == 1
    assert result.err.count("\n") == 1
    assert "--authorizer acl" in result.err


def test_added_partitions_are_told_for_what_they_do_to_lookups(krappy: Krappy, topic: str) -> None:
    assert krappy("topic", "alter", topic, "-p", "3").err == f"{topic} has 3 partitions already\n"
    assert krappy("topic", "alter", topic, "-p", "4").err == f"altered {topic}\n"
    krappy("produce", topic, stdin=b"v\n")
    altered = krappy("topic", "alter", topic, "-p", "5")
    assert "keys go to other partitions now" in altered.err
    assert (altered.status, altered.out) == (0, "")


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "userz", "k"],
        ["scan", "userz"],
        ["watch", "userz", "--max", "1"],
        ["consume", "userz", "--to", "now"],
        ["topic", "describe", "userz"],
        ["topic", "alter", "userz", "-p", "2"],
        ["topic", "delete", "userz", "--yes"],
        ["topic", "delete-records", "userz", "--before", "latest", "--yes"],
    ],
    ids=" ".join,
)
def test_a_misspelt_topic_is_told_the_nearest_and_never_to_create_it(krappy: Krappy, arguments: list[str]) -> None:
    krappy("topic", "create", "users", "--if-absent")
    result = krappy(*arguments)
    assert (result.status, result.err) == (1, "krappy: there is no topic 'userz'; did you mean 'users'?\n")


def test_errors_are_json_where_results_are(krappy: Krappy) -> None:
    told = krappy("get", "nowhere", "k", "--json")
    assert (told.status, told.out) == (1, "")
    error = json.loads(told.err)
    assert (error["name"], error["status"]) == ("UNKNOWN_TOPIC", 1)
    assert error["error"].startswith("there is no topic 'nowhere'")
    wrong = krappy("topic", "make", "--json")
    assert json.loads(wrong.err)["name"] is None
    assert (wrong.status, json.loads(wrong.err)["status"]) == (2, 2)
    assert krappy("get", "nowhere", "--", "--json").err.startswith("krappy: ")
