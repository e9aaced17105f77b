"""Kafka's clients of Python. Each is imported when it is made: every process of tests loads the fixtures that make
them, and few use them."""

from __future__ import annotations

from tests.compat.clients.base import Client


def confluent() -> Client:
    from tests.compat.clients.confluent import Confluent

    return Confluent()


def kafka_python() -> Client:
    from tests.compat.clients.kafka_python import KafkaPython

    return KafkaPython()


def aiokafka() -> Client:
    from tests.compat.clients.aio import AioKafka

    return AioKafka()


OF_PYTHON = {"confluent-kafka": confluent, "kafka-python": kafka_python, "aiokafka": aiokafka}
