"""One connection of Kafka's protocol: passes requests to handlers, and sends answers in the order of the requests.

Rules, kept here:

- Requests begin in the order they came. While a request waits for a Later (a publish), the next may begin. While one
  runs as a task, the next may not: Kafka mutes the channel likewise. A request with many elements is a task, too: it is
  read in several turns. The socket is read meanwhile, so the server notices when the peer leaves.
- Answers leave in the order of the requests. One that is ready early waits for those ahead of it.
- Kafka has no answer for a request that can't be understood. A frame that can't be read, or an API or version that is
  not served, ends the connection, once earlier requests are answered. Only an unknown version of ApiVersions gets an
  answer: in version 0, which every client reads.
"""

from __future__ import annotations

import math
import socket
from collections import deque
from collections.abc import Coroutine, Generator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from krappy.core.security.quota import Payer
from krappy.core.security.quota_entities import QuotaKey
from krappy.errors import AuthenticationFailed, FrameTooLarge, KrappyError, ProtocolError, RequestTimeout
from krappy.handlers.kafka.api_versions import what_is_served
from krappy.handlers.kafka.registry import Answer, Handler, KafkaRegistry, Now
from krappy.ports import NodeInfo, SessionFacts
from krappy.ports.audit import ASKED, AskedFor
from krappy.server.authentication import Admission
from krappy.server.channel import LATER, TASK, Channel
from krappy.server.kafka_session import KafkaSession
from krappy.server.outbox import Part
from krappy.server.pace import OUTBOX
from krappy.server.sockets import endpoint
from krappy.server.turns import SMALL
from krappy.settings.listeners import parse_address
from krappy.types import FilePart
from krappy.waiting import Later
from krappy.wire import mistaken
from krappy.wire.kafka import encode_request, encode_response, parse_header, read_request
from krappy.wire.kafka.apis import ApiKey
from krappy.wire.kafka.codec import LONGEST_CLIENT_ID, MOST_ELEMENTS, Header, read_in_steps, wants_no_answer
from krappy.wire.kafka.codes import Code

if TYPE_CHECKING:
    from krappy.server.server import Server

ELEMENT = 600  # about how many bytes an element of a request's arrays takes until the request is answered
PRODUCE = int(ApiKey.PRODUCE).to_bytes(2, "big")  # the first bytes of a Produce request, whose records are not decoded
READS = (ApiKey.FETCH, ApiKey.SHARE_FETCH)  # whose answers count for consumer_byte_rate
API_NAMES = {key: key.name.lower() for key in ApiKey}
LOGGING_IN = (ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
HEAVY = 16 << 10  # bytes of a request that may have so many elements that it is read in several turns
MAX_PLAIN = 16 << 20  # bytes of any other request: decoded it takes many times as much memory


Steps = Generator[None, None, tuple[dict[str, Any], int]]  # of `read_in_steps`


class Advertised(NamedTuple):
    """This broker as a listener advertises it to clients. `listener`: the listener's name. `address`: HOST:PORT, or
    empty for the address that the client used."""

    listener: str
    node_id: int
    address: str
    rack: str | None

    def node(self, sock: socket.socket) -> NodeInfo:
        host, port = parse_address(self.address) if self.address else endpoint(sock.getsockname())
        return NodeInfo(self.node_id, host, port, self.rack)


class Kafka:
    """Kafka's protocol on a listener."""

    protocol = "kafka"

    def __init__(self, registry: KafkaRegistry, advertised: Advertised, admission: Admission | None = None) -> None:
        self.registry = registry
        self.advertised = advertised
        self.admission = admission or Admission(advertised.listener)

    def connect(self, server: Server, sock: socket.socket, client: str) -> KafkaConnection:
        return KafkaConnection(server, sock, client, self)

    def refusal(self, error: KrappyError) -> bytes:
        return b""


class AnswerSlot:
    """The place of one request's answer among those of its connection."""

    __slots__ = ("charged", "correlation_id", "done", "key", "lost", "parts", "payer", "since", "size", "version")

    def __init__(
        self, key: ApiKey, version: int, correlation_id: int, since: float, payer: Payer | None = None
    ) -> None:
        self.key = key
        self.version = version
        self.correlation_id = correlation_id
        self.since = since  # when the request came, on perf_counter
        self.payer = payer  # if there are quotas
        self.size = 0  # bytes that the request counts for until it is answered
        self.done = False
        self.lost = False  # it will not be sent: there is none to this request, or to one before it
        self.parts: Sequence[Part] = ()
        self.charged = 0  # bytes charged for an answer that waits for those ahead of it


class KafkaConnection(Channel):
    session: KafkaSession
    protocol = "kafka"

    def __init__(self, server: Server, sock: socket.socket, client: str, speech: Kafka) -> None:
        super().__init__(server, sock, client)
        self._speech = speech
        told = speech.advertised
        self.session = KafkaSession(server.broker, client, told.listener, told.node(sock), self)
        self._enter(speech.admission, self.session)
        self._slots: deque[AnswerSlot] = deque()  # of requests whose answers were not passed on yet
        self._muted = False  # a request runs as a task
        self._bare = False  # messages of the login have no head
        self._early = 0  # bytes of answers that wait for those ahead of them
        self._lossy = False  # a request has ended without an answer: those behind it can't be sent either

    # --- what the channel asks

    def _broken(self, error: KrappyError) -> None:
        if not isinstance(error, RequestTimeout):  # that a peer was idle is not worth a report
            self._server.report("kafka_connection_ended", client=self.client, reason=str(error))
        if answer := mistaken.answer(error.details.get("spoken"), mistaken.KAFKA):
            self._send(answer)

    def _tell(self) -> SessionFacts:
        return self.session.describe()

    def _close_session(self) -> None:
        self.session.close()
        if self._ended:
            self._server.budget.credit(self._early)
            self._early = 0
            self._slots.clear()

    def _hold(self) -> None:
        """Called when `_muted` or `_early` has changed: works out whether the next request may begin."""
        self._keeping_back = self._muted or self._early > OUTBOX

    @property
    def _waited_for(self) -> bool:
        return bool(self._slots)

    # --- requests

    def _weigh(self, frame: memoryview) -> int:
        return 0 if frame[:2] == PRODUCE else len(frame)

    def _may_begin(self) -> bool:
        """A large request waits while others need much memory: how much it needs is known only once it is decoded."""
        waits = self._due and self._server.budget.laden_for(self.whose) and not self._finishing
        return not waits and super()._may_begin()

    def _dispatch(self, frame: memoryview, size: int, lent: bool) -> None:
        """Begins one request. Every request of every Kafka connection passes here, and nowhere else."""
        self.requests += 1
        if self._finishing:
            return
        if lent:
            frame = memoryview(bytes(frame))
        if self.requests == 1 and (spoken := mistaken.framed(frame)) == mistaken.NATIVE:
            raise ProtocolError(f"no request of Kafka's{mistaken.told(spoken)}", spoken=spoken)
        if self._bare:
            body = {"auth_bytes": bytes(frame)}
            frame = memoryview(encode_request(ApiKey.SASL_AUTHENTICATE, 0, 0, self.session.client_id, body))[4:]
        header = parse_header(frame)
        key, version = header.api_key, header.version
        if self._until < math.inf and not self._locked and not self.proved_for:
            self._time_is_over()  # the server may not have looked yet
        if self._locked and key not in LOGGING_IN:
            self._tell_ended("a request came before its sender had logged in again")
            raise ProtocolError("a request before its sender has logged in")
        if key != ApiKey.PRODUCE and size > MAX_PLAIN:
            raise FrameTooLarge(f"a request of {size} bytes to API {key}; the limit is {MAX_PLAIN}", limit=MAX_PLAIN)
        ASKED.set(AskedFor(self.session, API_NAMES[key], header.client_id))
        handler = self._speech.registry.find(key, version)
        slot = AnswerSlot(key, version, header.correlation_id, self._since, self._paying)
        slot.lost = self._lossy
        if handler is None:
            if key != ApiKey.API_VERSIONS:
                raise ProtocolError(f"version {version} of API {key} is not served")
            slot.version = 0
            self._slots.append(slot)
            self._answer(slot, what_is_served(Code.UNSUPPORTED_VERSION))
            return
        told = frame[header.body_at :]
        if size > HEAVY and key != ApiKey.PRODUCE:  # which has few elements for its size
            steps = read_in_steps(key, version, told)
            read = _step(steps)
            if read is None:
                self._slots.append(slot)
                work = self._read_and_serve(slot, size, header, handler, steps)
                self._run(slot, size, min(MOST_ELEMENTS, len(told)), work)
                return
            request, elements = read
        else:
            request, elements = read_request(key, version, told)
        if key == ApiKey.SASL_HANDSHAKE:
            self._bare = self._locked and version == 0
        answer = self._serve(slot, header, handler, request)
        if answer is None:
            return
        self._slots.append(slot)
        if type(answer) is dict:
            self._answer(slot, answer)
            counted = self._answered_at_once
            counted[key] = counted.get(key, 0) + 1
        elif isinstance(answer, Later):
            slot.size = size + LATER + answer.cost
            self.in_flight += slot.size
            self._server.budget.charge(slot.size)
            answer.then(lambda value, error: self._finished(slot, value, error))
        else:
            assert isinstance(answer, Coroutine)
            self._run(slot, size, elements if size > SMALL else 0, answer)

    def _serve(self, slot: AnswerSlot, header: Header, handler: Handler, request: dict[str, Any]) -> Answer:
        self.session.client_id = header.client_id
        if slot.payer is not None:
            self.session.knows_quotas = True  # unless the handler finds that this version does not
        try:
            return handler(self.session, request, header.version)
        except KrappyError:
            raise
        except Exception as error:
            raise self._server.fault(error, header.api_key) from error

    async def _read_and_serve(self, slot: AnswerSlot, size: int, header: Header, handler: Handler, steps: Steps) -> Now:
        """Serves a request once the rest of it is read. Until then it counts for the most elements that it may have."""
        await self.pause()
        while (read := _step(steps)) is None:
            await self.pause()
        request, elements = read
        self._charge(slot, size + TASK + elements * ELEMENT)
        answer = self._serve(slot, header, handler, request)
        if isinstance(answer, Later):
            return await answer.wait()
        return answer if answer is None or isinstance(answer, dict) else await answer

    def _run(
        self, slot: AnswerSlot, size: int, elements: int, work: Coroutine[Any, Any, dict[str, Any] | None]
    ) -> None:
        """Runs a request as a task."""
        self._charge(slot, size + TASK + elements * ELEMENT)
        self._muted = True
        self._hold()
        assert self._nursery is not None
        self._nursery.start_soon(self._wait_for, slot, self._timed(work))

    def _charge(self, slot: AnswerSlot, size: int) -> None:
        """Counts `size` bytes for a request that runs as a task, in place of those before."""
        self.in_flight += size - slot.size
        if slot.size:
            self._park(-slot.size)
        slot.size = size
        self._park(size)

    async def _wait_for(self, slot: AnswerSlot, answer: Coroutine[Any, Any, dict[str, Any] | None]) -> None:
        with self._until_it_leaves():
            try:
                if (turns := self._server.turns).crowded and slot.size > TASK + turns.small:
                    await self.pause()
                value = await answer
            except Exception as error:
                self._park(-slot.size)
                self._settle(slot, None, error)
            except BaseException:
                self._park(-slot.size)
                self.in_flight -= slot.size
                self._send_none_from(slot)
                raise
            else:
                self._park(-slot.size)
                self._settle(slot, value, None)
            finally:
                answer.close()  # it may not have begun
                self._muted = False
                self._hold()
                self.changed.fire()

    def _finished(self, slot: AnswerSlot, value: dict[str, Any] | None, error: Exception | None) -> None:
        self._server.budget.credit(slot.size)
        self._settle(slot, value, error)

    def _settle(self, slot: AnswerSlot, value: dict[str, Any] | None, error: Exception | None) -> None:
        """Called when a request that did not answer at once has ended."""
        self._times.observe(slot.key, perf_counter() - slot.since)
        self.in_flight -= slot.size
        if error is not None:
            self._fail(slot, error)
        elif value is None:
            slot.done = True
            self._pass_on()
        else:
            self._answer(slot, value)
        self.changed.fire()

    def _fail(self, slot: AnswerSlot, error: Exception) -> None:
        """Ends the connection for an error, as the read loop would, once earlier requests are answered: Kafka's
        protocol has no answer for it."""
        if not isinstance(error, KrappyError):
            error = self._server.fault(error, slot.key)
        if not self._ended:
            self._broken(error)
            self._send_none_from(slot)
            self.finish()
            self._waits.end()

    def _send_none_from(self, slot: AnswerSlot) -> None:
        """Sends neither the answer to this request nor those to requests behind it."""
        self._lossy = True
        for each in reversed(self._slots):
            each.lost = True
            if each is slot:
                break

    # --- answers

    def _answer(self, slot: AnswerSlot, value: dict[str, Any]) -> None:
        if self._ended or slot.lost:
            return
        try:
            if self._bare and slot.key == ApiKey.SASL_AUTHENTICATE:
                parts = self._without_head(value)
            else:
                parts = encode_response(slot.key, slot.version, slot.correlation_id, value)
            slot.parts = parts if slot.payer is None else self._paid(slot, slot.payer, value, parts)
        except Exception as error:
            self._fail(slot, error)
            return
        slot.done = True
        if self._slots[0] is slot:
            self._pass_on()
        else:
            slot.charged = sum(len(part) for part in slot.parts if not isinstance(part, FilePart))
            self._server.budget.charge(slot.charged)
            self._early += slot.charged
            self._hold()

    def _without_head(self, value: dict[str, Any]) -> list[Part]:
        """An answer to a message that had no head. Raises AuthenticationFailed: then there is none."""
        if value["error_code"]:
            raise AuthenticationFailed(value["error_message"])
        self._bare = self._locked
        data = value["auth_bytes"]
        return [len(data).to_bytes(4, "big") + data]

    def _paid(self, slot: AnswerSlot, payer: Payer, value: dict[str, Any], parts: Sequence[Part]) -> Sequence[Part]:
        """Counts an answer in quotas. Returns it with the time for which its client is to be silent."""
        if self._exempt:
            return parts
        if slot.key in READS:
            self._spend(QuotaKey.CONSUME, payer, sum(map(len, parts)))
        self._spend_time()
        if self._throttled_until and (silence := self._silence()) < math.inf:
            told = {**value, "throttle_time_ms": min(int(1000 * silence) + 1, 2**31 - 1)}
            return encode_response(slot.key, slot.version, slot.correlation_id, told)
        return parts

    @property
    def _exempt(self) -> bool:
        return self.session.is_broker

    def _payer(self, frame: memoryview) -> Payer:
        size = int.from_bytes(frame[8:10], "big", signed=True)
        client_id = str(frame[10 : 10 + size], "utf-8", "replace")[:LONGEST_CLIENT_ID] if size > 0 else ""
        principal = self.session.principal
        return Payer("", client_id, principal.host) if self._locked else Payer(principal.name, client_id)

    def _limit_of(self, frame: memoryview) -> QuotaKey | None:
        return QuotaKey.PRODUCE if frame[:2] == PRODUCE else None

    def _is_unanswered(self, frame: memoryview) -> bool:
        return wants_no_answer(frame)

    def _refuse(self, frame: memoryview, size: int, lent: bool, error: KrappyError) -> None:
        # Not the error's own code: producers that do not expect that code for a Produce give up.
        self.session.refusal = RequestTimeout(error.text)
        try:
            self._dispatch(frame, size, lent)
        finally:
            self.session.refusal = None

    def _pass_on(self) -> None:
        """Sends the answers at the head of `_slots` that are done."""
        slots = self._slots
        while slots and slots[0].done:
            slot = slots.popleft()
            if slot.charged:
                self._server.budget.credit(slot.charged)
                self._early -= slot.charged
                self._hold()
            for part in slot.parts:
                self._send(part)


def _step(steps: Steps) -> tuple[dict[str, Any], int] | None:
    """Reads on. Returns the request and how many elements it has, once it is read."""
    try:
        next(steps)
    except StopIteration as end:
        read: tuple[dict[str, Any], int] = end.value
        return read
    return None
