"""A member may name a topic for dead letters when it joins a group. This shows it no events that it may not read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from krappy import errors
from krappy.core.security.operations import Op, Resource
from krappy.testing.running import run_broker
from krappy.wire import messages as m
from tests.handlers.raw import Raw as Native
from tests.process import wait_until
from tests.security.guarded import ADMIN, Guarded, guarded_broker, rule

HERS = {"dead_letter": "hers", "max_deliveries": 1}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    """A broker with three topics: "open", which Eve may read, "secret", which she may not, and "hers", where she may do
    everything. Eve is the client with the address USER."""
    with guarded_broker(tmp_path) as made:
        with made.native(ADMIN) as admin:
            for topic in ("hers", "open", "secret"):
                admin.call(m.CreateTopic(topic))
            for topic in ("open", "secret"):
                producer = admin.producer(topic)
                for number in range(3):
                    admin.call(m.Message(producer.handle, b"%s %d" % (topic.encode(), number)))
        made.allow(rule(Resource.TOPIC, "open", Op.READ), rule(Resource.TOPIC, "hers", Op.ALL))
        made.allow(rule(Resource.GROUP, "g", Op.READ))
        yield made


def join(member: Native, *topics: str, **more: Any) -> m.ConsumerRegistered:
    joined: m.ConsumerRegistered = member.call(
        m.ConsumerRegistration(list(topics), group="g", start="earliest", **more)
    )
    return joined


def reject(member: Native, handle: int) -> int:
    """Polls, and nacks all events that were leased. Returns how often the first of them was delivered."""
    leases = member.call(m.Poll(handle, max_records=10, max_wait=60_000)).leases
    member.call(m.Nack(handle, [tuple(lease[:4]) for lease in leases]))
    return int(leases[0][4])


def test_a_member_that_may_not_read_a_topic_decides_nothing_about_it(guarded: Guarded) -> None:
    with guarded.native(ADMIN) as worker, guarded.native() as eve:
        works = join(worker, "secret")
        with pytest.raises(errors.TopicAuthorizationFailed):
            join(eve, "secret", **HERS)
        hers = join(eve, "open", **HERS)
        assert [reject(worker, works.handle) for _ in range(3)] == [1, 2, 3]
        reject(eve, hers.handle)
        wait_until(lambda: len(guarded.admin.values("hers")) == 3, "her own are there")
        assert reject(worker, works.handle) == 4
    assert guarded.admin.values("hers") == [b"open 0", b"open 1", b"open 2"]


def test_what_a_member_wants_counts_while_it_is_a_member_and_may_read(guarded: Guarded) -> None:
    """After that, the wishes of the other members count again."""
    guarded.allow(rule(Resource.TOPIC, "secret", Op.READ))
    with guarded.native(ADMIN) as worker, guarded.native() as eve, guarded.native() as other:
        works = join(worker, "secret")
        registered = join(eve, "secret", **HERS)
        eve.call(m.Unregister(registered.handle))
        assert [reject(worker, works.handle) for _ in range(2)] == [1, 2]
        hers = join(other, "secret", "open", dead_letter="hers")
        guarded.take_away()

        def ended() -> bool:
            try:
                other.call(m.Poll(hers.handle))
            except errors.AuthorizationFailed:
                return True
            return False

        wait_until(ended, "she is no member any more")
        last = 0
        while last < 3:  # an event comes alone in its last delivery; there are 3 events
            last += reject(worker, works.handle) == 10
        wait_until(lambda: len(guarded.admin.values("secret.g.dead")) == 3, "they are where the worker looks")
    assert guarded.admin.values("hers") == []


def test_who_loses_his_rights_sends_nothing_any_more(guarded: Guarded) -> None:
    """Also not what he has leased by then, though no other member is there."""
    with guarded.native() as eve:
        hers = join(eve, "open", **HERS)
        assert eve.call(m.Poll(hers.handle, max_records=10, max_wait=60_000)).leases
        guarded.allow(rule(Resource.TOPIC, "hers", Op.WRITE, deny=True))
        with pytest.raises(errors.TopicAuthorizationFailed):
            eve.call(m.Poll(hers.handle))
    with guarded.native(ADMIN) as worker:
        works = join(worker, "open")
        assert reject(worker, works.handle) == 2
        assert guarded.admin.values("hers") == []


DEFAULT = "open.g.dead"


def test_the_default_topic_needs_the_right_to_make_it_and_to_write_there(guarded: Guarded) -> None:
    with guarded.native() as raw:
        with pytest.raises(
            errors.TopicAuthorizationFailed, match=f"WRITE on the topic '{DEFAULT}', where the group's dead"
        ):
            join(raw, "open")
        guarded.allow(rule(Resource.TOPIC, DEFAULT, Op.WRITE))
        with pytest.raises(errors.TopicAuthorizationFailed, match=f"CREATE on the topic '{DEFAULT}'"):
            join(raw, "open", max_deliveries=1)
        with guarded.native(ADMIN) as admin, pytest.raises(errors.UnknownTopic):
            admin.call(m.Offsets(DEFAULT, "latest"))
        guarded.allow(rule(Resource.TOPIC, DEFAULT, Op.CREATE))
        member = join(raw, "open", max_deliveries=1)
        reject(raw, member.handle)
        wait_until(lambda: len(guarded.admin.values(DEFAULT)) == 3, "they are there")


def test_a_member_that_may_write_to_the_topic_need_not_create_it(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.TOPIC, DEFAULT, Op.WRITE))
    with guarded.native(ADMIN) as admin, guarded.native() as raw:
        admin.call(m.CreateTopic(DEFAULT))
        member = join(raw, "open", max_deliveries=1)
        reject(raw, member.handle)
        wait_until(lambda: len(guarded.admin.values(DEFAULT)) == 3, "they are there")
        guarded.allow(rule(Resource.TOPIC, DEFAULT, Op.WRITE, deny=True))
        with pytest.raises(errors.TopicAuthorizationFailed, match="WRITE"):
            raw.call(m.Poll(member.handle))


def test_each_topic_that_a_member_reads_has_its_own_topic_for_dead_letters(guarded: Guarded) -> None:
    guarded.allow(rule(Resource.TOPIC, DEFAULT, Op.ALL), rule(Resource.TOPIC, "secret", Op.READ))
    with guarded.native() as raw:
        with pytest.raises(errors.TopicAuthorizationFailed, match=r"secret\.g\.dead"):
            join(raw, "open", "secret")
        join(raw, "open")


def test_a_member_needs_no_acl_where_everybody_may_do_everything_without_one(tmp_path: Path) -> None:
    with guarded_broker(tmp_path, allow_everyone_if_no_acl_found=True) as made:
        made.take_away(ADMIN)  # some of these were for *, so an ACL was found for everything
        with made.native() as raw:
            raw.call(m.CreateTopic("open"))
            raw.call(m.Message(raw.producer("open").handle, b"e"))
            reject(raw, join(raw, "open", max_deliveries=1).handle)
            wait_until(lambda: made.admin.values(DEFAULT) == [b"e"], "it is there")


def test_each_topics_rules_outlive_the_broker(tmp_path: Path) -> None:
    with run_broker(tmp_path, durability="os") as broker, Native(broker.address) as native:
        for topic in ("a", "b", "grave"):
            native.call(m.CreateTopic(topic))
        for topic in ("a", "b"):
            native.call(m.Message(native.producer(topic).handle, topic.encode()))
        join(native, "a", dead_letter="grave", max_deliveries=2)
        join(native, "b", max_deliveries=3)
    with run_broker(tmp_path, durability="os") as broker, Native(broker.address) as native:
        readers = {topic: join(native, topic, dead_letter="grave", max_deliveries=2) for topic in "a"}
        readers["b"] = join(native, "b", max_deliveries=3)
        assert [reject(native, readers["a"].handle) for _ in range(2)] == [1, 2]
        assert [reject(native, readers["b"].handle) for _ in range(3)] == [1, 2, 3]
        wait_until(lambda: value(broker, "grave") == b"a" and value(broker, "b.g.dead") == b"b", "both are there")


def value(broker: Any, topic: str) -> bytes | None:
    """The value of the topic's first event; None: the topic or the event is not there."""
    with (
        suppress(errors.UnknownTopic),
        broker.connect() as client,
        client.consumer(topic, end="now") as consumer,
    ):
        return next((event.value for event in consumer), None)
    return None
