"""What travels, as PROTOCOL.md shows it: of each message at least one example, with its fields."""

# ruff: noqa: E501 - a record batch is as long as it is

from __future__ import annotations

from typing import Any

EXAMPLES: list[tuple[str, dict[str, Any]]] = [
    (
        "ProducerRegistration",
        {"id": 1, "topic": "users", "name": None, "idempotent": True, "producer_id": -1, "producer_epoch": -1},
    ),
    (
        "ProducerRegistered",
        {"id": 1, "handle": 1, "partitions": 3, "producer_id": 9, "producer_epoch": 0, "max_message_bytes": 1048588},
    ),
    (
        "ConsumerRegistration",
        {
            "id": 1,
            "topics": ["users"],
            "group": None,
            "partitions": [0],
            "start": "earliest",
            "start_at": None,
            "positions": None,
            "order": "none",
            "lease_ms": 30000,
            "max_deliveries": 10,
            "dead_letter": None,
        },
    ),
    (
        "ConsumerRegistered",
        {
            "id": 1,
            "handle": 2,
            "member": None,
            "positions": [["users", 0, 0]],
            "ends": [["users", 0, 42]],
            "topic_ids": [["users", "q4cdVq5eRzWm1Vh6zXw6Qw"]],
        },
    ),
    ("Unregister", {"id": 1, "handle": 2, "unseen": None, "polls": None}),
    ("Unregistered", {"id": 1}),
    (
        "Message",
        {
            "id": 1,
            "handle": 1,
            "payload": b"Ada",
            "key": b"u1",
            "timestamp": 1700000000000,
            "headers": [["lang", b"en"]],
            "partition": None,
            "expect": -1,
        },
    ),
    ("MessageStored", {"id": 1, "partition": 1, "offset": 42, "timestamp": 1700000000000}),
    (
        "Batch",
        {
            "id": 1,
            "handle": 1,
            "partition": 1,
            "records": b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00=\xff\xff\xff\xff\x02\xe0r\x8eK\x00\x00\x00\x00\x00\x00\x00\x00\x01\x8b\xcf\xe5h\x00\x00\x00\x01\x8b\xcf\xe5h\x00\x00\x00\x00\x00\x00\x00\x00\t\x00\x00\x00\x00\x00\x00\x00\x00\x00\x01\x16\x00\x00\x00\x04u1\x06Ada\x00",
            "expect": None,
        },
    ),
    ("BatchStored", {"id": 1, "offset": 42, "timestamp": 1700000000000}),
    ("Poll", {"id": 1, "handle": 2, "max_records": 500, "max_bytes": 1048576, "max_wait": 5000}),
    (
        "Polled",
        {
            "id": 1,
            "parts": [
                [
                    "users",
                    0,
                    41,
                    42,
                    b"\x00\x00\x00\x00\x00\x00\x00(\x00\x00\x00F\x00\x00\x00\x00\x02NN\x1c\x01\x00\x00\x00\x00\x00\x01\x00\x00\x01\x8b\xcf\xe5h\x00\x00\x00\x01\x8b\xcf\xe5h\x05\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x02\x16\x00\x00\x00\x04u1\x06Ada\x00\x10\x00\n\x02\x04u2\x01\x00",
                ]
            ],
            "leases": None,
            "waited": 0,
        },
    ),
    ("Seek", {"id": 1, "handle": 2, "topic": "users", "partition": 0, "start": "offset", "start_at": 7}),
    ("Sought", {"id": 1, "offset": 7}),
    ("Offsets", {"id": 1, "topic": "users", "start": "timestamp", "start_at": 1700000000000}),
    ("OffsetsFound", {"id": 1, "offsets": [[0, 40], [1, 42]]}),
    ("Ack", {"id": 1, "handle": 2, "ranges": [["users", 0, 40, 41]]}),
    ("Acked", {"id": 1}),
    ("Nack", {"id": 1, "handle": 2, "ranges": [["users", 0, 41, 41]], "delay_ms": 1000}),
    ("Nacked", {"id": 1}),
    ("Extend", {"id": 1, "handle": 2, "ranges": [["users", 0, 40, 41]], "lease_ms": 60000}),
    ("Extended", {"id": 1}),
    ("Commit", {"id": 1, "group": "mail", "offsets": [["users", 0, 42]]}),
    ("Committed", {"id": 1}),
    ("Positions", {"id": 1, "group": "mail"}),
    ("PositionsFound", {"id": 1, "offsets": [["users", 0, 42]]}),
    ("Groups", {"id": 1, "group": "mail"}),
    (
        "GroupsFound",
        {
            "id": 1,
            "groups": [
                {
                    "group": "mail",
                    "kind": "shared",
                    "order": "none",
                    "topics": ["users"],
                    "members": [{"name": "mail_0", "client": "127.0.0.1:50000", "leased": 2}],
                    "partitions": [
                        {
                            "topic": "users",
                            "partition": 0,
                            "floor": 40,
                            "end": 42,
                            "lag": 2,
                            "leased": 2,
                            "redelivering": 0,
                            "dead": 0,
                        }
                    ],
                }
            ],
        },
    ),
    (
        "ResetGroup",
        {
            "id": 1,
            "group": "mail",
            "topic": "users",
            "partitions": None,
            "start": "earliest",
            "start_at": None,
            "dry_run": False,
        },
    ),
    ("GroupReset", {"id": 1, "positions": [["users", 0, 42, 0]]}),
    ("DeleteGroup", {"id": 1, "group": "mail"}),
    ("GroupDeleted", {"id": 1}),
    ("Get", {"id": 1, "topic": "users", "key": b"u1", "partition": None, "min_offset": None}),
    ("Got", {"id": 1, "partition": 1, "entry": [[42, 1700000000000, b"Ada", [["lang", b"en"]]]]}),
    ("MultiGet", {"id": 1, "topic": "users", "keys": [b"u1", b"nobody"], "partition": None}),
    ("MultiGot", {"id": 1, "partitions": [1, 0], "entries": [[42, 1700000000000, b"Ada", None], None]}),
    (
        "Scan",
        {
            "id": 4,
            "topic": "users",
            "prefix": b"u",
            "start": None,
            "end": None,
            "partitions": None,
            "tombstones": False,
            "max_entries": 1000,
            "max_bytes": 1048576,
            "cursor": None,
        },
    ),
    (
        "Scanned",
        {
            "id": 4,
            "partition": 0,
            "cursor": 3,
            "offsets": [[0, 42], [1, 43]],
            "entries": [b"u2", [41, 1700000000000, b"Bob", None]],
        },
    ),
    (
        "Watch",
        {
            "id": 5,
            "topic": "users",
            "prefix": None,
            "start": None,
            "end": None,
            "partitions": [1],
            "tombstones": False,
            "offsets": None,
        },
    ),
    (
        "Watched",
        {
            "id": 5,
            "event": "snapshot",
            "handle": 4,
            "partition": 1,
            "next_offset": 43,
            "more": True,
            "offsets": None,
            "entries": [b"u1", [42, 1700000000000, b"Ada", None]],
            "scattered": False,
            "topic_id": "q4cdVq5eRzWm1Vh6zXw6Qw",
        },
    ),
    (
        "Watched",
        {
            "id": 5,
            "event": "end_of_snapshot",
            "handle": 4,
            "partition": 1,
            "next_offset": 43,
            "more": True,
            "offsets": [[1, 43]],
            "entries": [],
            "scattered": False,
            "topic_id": None,
        },
    ),
    (
        "Watched",
        {
            "id": 5,
            "event": "changes",
            "handle": 4,
            "partition": 1,
            "next_offset": 44,
            "more": True,
            "offsets": None,
            "entries": [b"u1", [43, 1700000000009, None, None]],
            "scattered": False,
            "topic_id": None,
        },
    ),
    (
        "History",
        {
            "id": 1,
            "topic": "users",
            "key": b"u1",
            "partition": None,
            "offset": 0,
            "max_records": 1000,
            "max_bytes": 1048576,
        },
    ),
    (
        "HistoryFound",
        {
            "id": 1,
            "partition": 1,
            "next_offset": None,
            "entries": [[42, 1700000000000, b"Ada", None], [43, 1700000000009, None, None]],
        },
    ),
    (
        "OpenSnapshot",
        {
            "id": 1,
            "topic": "users",
            "partitions": None,
            "splits": 2,
            "ttl_ms": 60000,
            "prefix": None,
            "start": None,
            "end": None,
            "tombstones": False,
            "topic_id": None,
            "measure": None,
        },
    ),
    (
        "SnapshotOpened",
        {
            "id": 1,
            "snapshot": "5f1c0e9a2b7d4c6e8a01f3b5",
            "offsets": [[0, 42]],
            "ranges": [[0, None, b"u2"], [0, b"u2", None]],
            "size": None,
        },
    ),
    (
        "ReadSnapshot",
        {
            "id": 1,
            "snapshot": "5f1c0e9a2b7d4c6e8a01f3b5",
            "partition": 0,
            "start": None,
            "end": b"u4",
            "columns": ["key", "value", "offset", "headers"],
            "tombstones": True,
            "max_bytes": 1048576,
        },
    ),
    (
        "SnapshotRead",
        {
            "id": 1,
            "next": None,
            "rows": 3,
            "keys": [b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00\x06\x00\x00\x00", b"u1u2u3", None],
            "values": [b"\x00\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00", b"Ada", b"\x05"],
            "offsets": b"&\x00\x00\x00\x00\x00\x00\x00)\x00\x00\x00\x00\x00\x00\x00(\x00\x00\x00\x00\x00\x00\x00",
            "timestamps": None,
            "headers": [
                b"\x00\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00\x01\x00\x00\x00",
                [b"\x00\x00\x00\x00\x02\x00\x00\x00", b"by", None],
                [b"\x00\x00\x00\x00\x02\x00\x00\x00", b"me", None],
            ],
        },
    ),
    ("KeepSnapshot", {"id": 1, "snapshot": "5f1c0e9a2b7d4c6e8a01f3b5", "ttl_ms": 300000}),
    ("SnapshotKept", {"id": 1}),
    ("CloseSnapshot", {"id": 1, "snapshot": "5f1c0e9a2b7d4c6e8a01f3b5"}),
    ("SnapshotClosed", {"id": 1}),
    (
        "GetColumns",
        {
            "id": 1,
            "topic": "users",
            "offsets": b"\x00\x00\x00\x00\x02\x00\x00\x00\x04\x00\x00\x00",
            "keys": b"u1u9",
            "partition": None,
            "columns": ["value", "offset"],
        },
    ),
    (
        "ColumnsGot",
        {
            "id": 1,
            "rows": 2,
            "found": b"\x01",
            "partitions": b"\x01\x00\x00\x00\x00\x00\x00\x00",
            "values": [b"\x00\x00\x00\x00\x03\x00\x00\x00\x03\x00\x00\x00", b"Ada", b"\x01"],
            "offsets": b"&\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
            "timestamps": None,
            "headers": None,
        },
    ),
    (
        "ReadLog",
        {
            "id": 1,
            "topic": "users",
            "partition": 0,
            "offset": 40,
            "end": 42,
            "max_bytes": 1048576,
            "topic_id": "q4cdVq5eRzWm1Vh6zXw6Qw",
        },
    ),
    (
        "LogRead",
        {
            "id": 1,
            "next_offset": 41,
            "records": b"\x00\x00\x00\x00\x00\x00\x00(\x00\x00\x00=\x00\x00\x00\x00\x02hg_\r\x00\x00\x00\x00\x00\x00\x00\x00\x01\x8b\xcf\xe5h\x00\x00\x00\x01\x8b\xcf\xe5h\x00\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x01\x16\x00\x00\x00\x04u1\x06Ada\x00",
        },
    ),
    (
        "Stage",
        {"id": 1, "topic": "orders", "job": "load-7", "task": "3", "attempt": "1", "ttl_ms": 3600000, "stage": None},
    ),
    (
        "Staged",
        {
            "id": 1,
            "handle": 1,
            "stage": "499a3654ffb8826f",
            "partitions": 4,
            "producer_id": 2000,
            "producer_epoch": 0,
            "max_message_bytes": 1048588,
        },
    ),
    ("SealStaged", {"id": 1, "job": "load-7", "stage": "499a3654ffb8826f", "records": 5000}),
    ("StagedSealed", {"id": 1, "token": "499a3654ffb8826f"}),
    ("CommitStaged", {"id": 1, "job": "load-7", "tokens": ["499a3654ffb8826f", "d3ff9aac28ea95d7"], "max_wait": 10000}),
    (
        "StagedCommitted",
        {"id": 1, "done": True, "bytes_done": 0, "bytes_total": 0, "published": [["orders", 0, 42, 5041, 5000]]},
    ),
    ("AbortStaged", {"id": 1, "job": "load-7", "stage": None}),
    ("StagedAborted", {"id": 1}),
    ("StagedJobs", {"id": 1}),
    (
        "StagedJobsFound",
        {
            "id": 1,
            "jobs": [
                {
                    "job": "load-7",
                    "state": "Open",
                    "attempts": 2,
                    "sealed": 1,
                    "size": 33752,
                    "expires_ms": 1700003600000,
                }
            ],
        },
    ),
    (
        "CreateTopic",
        {"id": 1, "topic": "users", "partitions": 3, "config": {"cleanup.policy": "compact"}, "if_absent": False},
    ),
    ("TopicCreated", {"id": 1, "created": True, "partitions": 3}),
    (
        "AlterTopic",
        {"id": 1, "topic": "users", "config": {"retention.ms": 86400000, "cleanup.policy": None}, "partitions": None},
    ),
    ("TopicAltered", {"id": 1}),
    ("DeleteTopic", {"id": 1, "topic": "users"}),
    ("TopicDeleted", {"id": 1}),
    ("DeleteRecords", {"id": 1, "topic": "users", "before": [[0, 42], [1, -1]]}),
    ("RecordsDeleted", {"id": 1, "starts": [[0, 42], [1, 17]]}),
    ("DescribeTopics", {"id": 1, "topics": ["users"]}),
    (
        "TopicsDescribed",
        {
            "id": 1,
            "topics": [
                {
                    "name": "users",
                    "id": "q4cdVq5eRzWm1Vh6zXw6Qw",
                    "config": {"cleanup.policy": "compact"},
                    "settings": {"cleanup.policy": "compact"},
                    "partitions": [
                        {
                            "partition": 0,
                            "leader": 1,
                            "replicas": [1],
                            "isr": [1],
                            "start": 0,
                            "end": 42,
                            "high_watermark": 42,
                            "applied": 42,
                            "size": 3210,
                            "segments": 1,
                        }
                    ],
                }
            ],
        },
    ),
    ("HoldBackup", {"id": 1}),
    (
        "BackupHeld",
        {"id": 1, "handle": 3, "folder": "/var/lib/krappy/backup/9f2c4e1a7b3d5068", "files": 412, "size": 1073741824},
    ),
    ("Ping", {"id": 1}),
    (
        "Pong",
        {
            "id": 1,
            "version": "0.1.0",
            "cluster": "q4cdVq5eRzWm1Vh6zXw6Qw",
            "time": 1700000000000,
            "max_frame": 67108864,
            "console": "127.0.0.1:8092",
            "brokers": 3,
        },
    ),
    ("Metadata", {"id": 1, "topics": ["users"]}),
    (
        "MetadataFound",
        {
            "id": 1,
            "cluster": "q4cdVq5eRzWm1Vh6zXw6Qw",
            "broker": 1,
            "controller": 1,
            "brokers": [
                {
                    "id": 1,
                    "native": "10.0.0.1:7092",
                    "kafka": {"PLAINTEXT": "10.0.0.1:9092"},
                    "http": "10.0.0.1:8092",
                    "rack": None,
                },
            ],
            "topics": [
                {
                    "name": "users",
                    "id": "q4cdVq5eRzWm1Vh6zXw6Qw",
                    "scattered": False,
                    "partitions": [{"leader": 1, "leader_epoch": 3, "replicas": [1, 2, 3], "isr": [1, 2]}],
                }
            ],
        },
    ),
]
