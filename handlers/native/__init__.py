"""The native protocol's handlers, and the list of them all."""

from __future__ import annotations

from krappy.handlers.native import backup, columns, consume, groups, publish, staging, table, topics
from krappy.handlers.registry import Registry
from krappy.wire import messages


def registry() -> Registry:
    """Every message of the native protocol with its handler."""
    found = Registry()
    register = found.register
    register(messages.ProducerRegistration, publish.register_producer)
    register(messages.Message, publish.message)
    register(messages.Batch, publish.batch)
    register(messages.ConsumerRegistration, consume.register_consumer)
    register(messages.Poll, consume.poll)
    register(messages.Seek, consume.seek)
    register(messages.Offsets, consume.offsets)
    register(messages.Ack, groups.ack)
    register(messages.Nack, groups.nack)
    register(messages.Extend, groups.extend)
    register(messages.Commit, groups.commit)
    register(messages.Positions, groups.positions)
    register(messages.Groups, groups.groups)
    register(messages.DeleteGroup, groups.delete_group)
    register(messages.ResetGroup, groups.reset_group)
    register(messages.Get, table.get)
    register(messages.MultiGet, table.multi_get)
    register(messages.Scan, table.scan)
    register(messages.Watch, table.watch, streams=True)
    register(messages.History, table.history)
    register(messages.OpenSnapshot, columns.open_snapshot)
    register(messages.ReadSnapshot, columns.read_snapshot)
    register(messages.KeepSnapshot, columns.keep_snapshot)
    register(messages.CloseSnapshot, columns.close_snapshot)
    register(messages.GetColumns, columns.get_columns)
    register(messages.ReadLog, columns.read_log)
    register(messages.Stage, staging.stage)
    register(messages.SealStaged, staging.seal)
    register(messages.CommitStaged, staging.commit)
    register(messages.AbortStaged, staging.abort)
    register(messages.StagedJobs, staging.jobs)
    register(messages.CreateTopic, topics.create_topic)
    register(messages.AlterTopic, topics.alter_topic)
    register(messages.DeleteTopic, topics.delete_topic)
    register(messages.DeleteRecords, topics.delete_records)
    register(messages.DescribeTopics, topics.describe_topics)
    register(messages.HoldBackup, backup.hold)
    register(messages.Ping, topics.ping)
    register(messages.Unregister, topics.unregister)
    return found
