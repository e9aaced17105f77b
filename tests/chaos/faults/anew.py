"""A topic that is deleted and made anew under its old name, while brokers may be away."""

from __future__ import annotations

import threading

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import NewTopic

from tests.chaos.faults.base import Fault, fault
from tests.chaos.world import World

NAME, PARTITIONS, EVENTS = "anew", 2, 20
SECONDS = 8.0
_gone = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)


@fault("made-anew", "a topic is deleted and made anew, while brokers may be away", (12,))
class MadeAnew(Fault):
    """`world.anew`: what its topic must have at the end."""

    def begin(self, world: World) -> str:
        if not world.anew.taking.acquire(blocking=False):
            return ""
        self._told = "it did not come to an end"
        self._thread = threading.Thread(target=self._run, args=(world,), daemon=True)
        self._thread.start()
        return f"topic {NAME} is deleted and made anew"

    def end(self, world: World) -> str:
        self._thread.join(4 * SECONDS)
        return self._told

    def _run(self, world: World) -> None:
        try:
            self._told = self._renew(world)
        finally:
            world.anew.taking.release()

    def _renew(self, world: World) -> str:
        anew = world.anew
        error = _done(world.admin.delete_topics([NAME], request_timeout=SECONDS)[NAME]) if anew.number else None
        if error is not None and error.code() not in _gone:
            anew.certain = False  # the topic may still be deleted at any later time
            return f"the deletion was not answered: {error}"
        anew.acked = []
        made = world.admin.create_topics([NewTopic(NAME, PARTITIONS, 3)], request_timeout=SECONDS)[NAME]
        if (error := _done(made)) is not None:
            if error.code() == KafkaError.TOPIC_ALREADY_EXISTS and anew.certain and not anew.doubtful:
                anew.wrong.append(f"{NAME} was deleted, and making it anew was refused: it exists")
            anew.doubtful = True  # nobody knows whether the topic is there
            return f"making it was not answered: {error}"
        anew.doubtful = False
        anew.number += 1
        producer = Producer({"bootstrap.servers": world.kafka, "log_level": 0, "delivery.timeout.ms": 8000})
        for number in range(EVENTS):
            value = f"{anew.number}:{number}".encode()
            producer.produce(NAME, value, partition=number % PARTITIONS, on_delivery=anew.told)
        producer.flush(SECONDS)
        return f"topic {NAME} is there for time {anew.number}, with {len(anew.acked)} events"


def _done(future) -> KafkaError | None:  # type: ignore[no-untyped-def]
    try:
        future.result(3 * SECONDS)
    except KafkaException as error:
        told: KafkaError = error.args[0]
        return told
    return None
