"""A process that was forked off: its client says so at once, and leaves the parent's connection alone."""

from __future__ import annotations

import subprocess
import sys

FORK = """
import os, sys
from krappy import blocking
from krappy.errors import KrappyError

address, topic = sys.argv[1:]


def refused(call):
    try:
        call()
    except KrappyError as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("it went on with the parent's connection")


with blocking.connect(address) as client:
    client.create_topic(topic)
    with client.consumer(topic, group=topic) as consumer, client.producer(topic) as producer:
        producer.send("before", key="k").result()
        event = next(consumer)
        child = os.fork()
        if not child:
            status = 1
            try:
                refused(client.ping)
                refused(lambda: client.table(topic).get("k"))
                refused(client.table(topic).watch)
                refused(lambda: producer.send("child"))
                refused(lambda: consumer.poll(0.1))
                refused(lambda: consumer.ack(event))
                producer.__exit__(None, None, None)
                refused(lambda: consumer.__exit__(None, None, None))  # what it noted is not sent
                client.__exit__(None, None, None)
                with blocking.connect(address) as own, own.producer(topic) as another:
                    another.send("child", key="k").result()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(child, 0)[1] == 0
        consumer.ack(event)  # the lease is still the parent's: the child took nothing with it when it left
        producer.send("after", key="k").result()
        assert [event.value for event in client.table(topic).history("k")] == [b"before", b"child", b"after"]
        consumer.ack(next(consumer))
        assert consumer.member == topic + "_0"
"""


def test_a_fork_leaves_the_connection_to_its_parent(address: str, topic: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORK, address, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
