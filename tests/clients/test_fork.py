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


WAITING = """
import os, sys, time
from krappy import blocking
from krappy.errors import KrappyError

address, topic = sys.argv[1:]
with blocking.connect(address) as client:
    client.create_topic(topic)
    with client.producer(topic, batch_bytes=5000) as producer:
        producer.send_many([(f"{number}", "v" * 1000) for number in range(100)])
    table = client.table(topic)
    watch = table.watch()
    while hasattr(next(watch), "key"):
        pass
    started = [watch, table.scan(page_entries=1), client.read_log(topic, 0, 0, 100, block_bytes=1)]
    for each in started[1:]:
        next(iter(each))
    child = os.fork()
    if not child:
        began = time.monotonic()
        ended = 0
        for each in started:
            try:
                for _ in each:
                    pass
            except KrappyError:
                ended += 1
        os._exit(0 if ended == 3 and time.monotonic() - began < 60 else 1)
    assert os.waitpid(child, 0)[1] == 0
    with client.producer(topic, batch_bytes=5000) as producer:
        producer.send("new", key="new").result()
    assert next(watch).key == b"new"
"""


def test_what_was_being_read_ends_in_a_forked_process(address: str, topic: str) -> None:
    """In a forked process, a watch used to wait for ever, and a scan until its timeout."""
    command = [sys.executable, "-W", "ignore", "-c", WAITING, address, topic]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
