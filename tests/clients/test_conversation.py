"""Requests and answers of a connection, without a connection."""

from __future__ import annotations

from typing import Any

import pytest

from krappy.clients.conversation import Conversation
from krappy.errors import (
    AuthenticationFailed,
    ConnectionLost,
    FrameTooLarge,
    InvalidRequest,
    OffsetMismatch,
    ProtocolError,
    ShuttingDown,
)
from krappy.wire import messages as m
from krappy.wire.frames import frame
from krappy.wire.messages import error_frame


class Told(list[Any]):
    __call__ = list.append


def test_answers_find_their_requests_in_any_order() -> None:
    conversation = Conversation()
    told = [Told() for _ in range(5)]
    ids = []
    for number, each in enumerate(told):
        id, data = conversation.ask(m.Seek(number, "t", 0, "latest"), m.Sought, each)
        assert data == m.Seek(number, "t", 0, "latest").frame(id)
        ids.append(id)
    assert len(set(ids)) == 5
    for number in (3, 0, 4, 1, 2):
        conversation.receive(m.Sought(number).frame(ids[number]))
    assert told == [[m.Sought(number)] for number in range(5)]
    assert conversation.waiting == 0


@pytest.mark.parametrize("wrong", [2**64, object(), "\udcff"])
def test_what_msgpack_can_t_have_is_refused(wrong: Any) -> None:
    conversation, told = Conversation(), Told()
    with pytest.raises(InvalidRequest, match="a Seek with a value that can't be sent"):
        conversation.ask(m.Seek(0, "t", wrong, "latest"), m.Sought, told)
    assert (conversation.waiting, told) == (0, [])


def test_an_error_is_the_answer_to_its_request() -> None:
    conversation, told, other = Conversation(), Told(), Told()
    id, _ = conversation.ask(m.Ping(), m.Pong, told)
    conversation.ask(m.Ping(), m.Pong, other)
    conversation.receive(error_frame(id, OffsetMismatch("no", current=3)))
    [error] = told
    assert (type(error), error.current, other) == (OffsetMismatch, 3, [])


def test_a_stream_is_told_until_its_last_answer() -> None:
    conversation, told = Conversation(), Told()
    id, _ = conversation.ask(m.Watch("t"), m.Watched, told)
    for more in (True, True, False, True):
        conversation.receive(m.Watched("changes", 1, 0, 0, more, None, []).frame(id))
    assert [answer.more for answer in told] == [True, True, False]


def test_an_answer_to_nobody_is_dropped() -> None:
    conversation, told = Conversation(), Told()
    id, _ = conversation.ask(m.Ping(), m.Pong, told)
    conversation.forget(id)
    conversation.receive(m.Pong("1", "c", 0, 0).frame(id) + error_frame(99, ShuttingDown()))
    assert told == []


def test_when_it_ends_everyone_gets_an_error_of_their_own() -> None:
    conversation, told = Conversation(), [Told(), Told()]
    for each in told:
        conversation.ask(m.Ping(), m.Pong, each)
    conversation.end(lambda: ConnectionLost("gone"))
    [one], [two] = told
    assert (type(one), type(two)) == (ConnectionLost, ConnectionLost)
    assert one is not two
    conversation.end(lambda: ConnectionLost("gone"))
    assert [len(each) for each in told] == [1, 1]


@pytest.mark.parametrize(
    "data",
    [
        m.Sought(1).frame(1),  # to another request
        m.Ping().frame(1),  # no answer at all
        frame(m.Pong.kind | 0x80000000, b"\x90"),
        b"HTTP/1.1 400 Bad Request\r\n",
        b"\x00\x00\x00\x03abc",
    ],
)
def test_what_is_no_answer_is_a_protocol_error(data: bytes) -> None:
    conversation = Conversation()
    conversation.ask(m.Ping(), m.Pong, Told())
    with pytest.raises(ProtocolError):
        conversation.receive(data)


def test_an_error_in_answer_to_nothing_is_a_farewell() -> None:
    with pytest.raises(ConnectionLost, match="the broker ended the connection: bye"):
        Conversation().receive(error_frame(0, ShuttingDown("bye")))


def test_a_request_after_the_end_of_a_session_is_lost_with_the_connection() -> None:
    """It may be sent again on another one, which logs in."""
    conversation, told, login = Conversation(), Told(), Told()
    id, _ = conversation.ask(m.Seek(1, "t", 0, "latest"), m.Sought, told)
    with pytest.raises(ConnectionLost, match="ended the connection: log in first"):
        conversation.receive(error_frame(id, AuthenticationFailed("log in first")))
    assert not told
    conversation.end(lambda: ConnectionLost("over"))
    assert [type(error) for error in told] == [ConnectionLost]
    id, _ = conversation.ask(m.Authenticate("PLAIN", b""), m.Authenticated, login)
    conversation.receive(error_frame(id, AuthenticationFailed("no such user")))
    assert [type(error) for error in login] == [AuthenticationFailed]


def test_a_larger_limit_is_allowed_and_a_smaller_one_is_not() -> None:
    conversation = Conversation(limit=120)
    conversation.allow(20)
    id, _ = conversation.ask(m.Ping(), m.Pong, Told())
    conversation.receive(m.Pong("1", "c", 0, 0).frame(id))
    large = m.Pong("x" * 100, "c", 0, 0).frame(id)
    with pytest.raises(FrameTooLarge):
        conversation.receive(large)
    conversation = Conversation(limit=120)
    conversation.allow(200)
    conversation.receive(large)
