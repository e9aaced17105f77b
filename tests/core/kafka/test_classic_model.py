"""Random lives of a classic group, with clients that behave as Kafka's do, and some that die.

Checked at every step: the generation only grows, each request is answered once, and a member that is told
UNKNOWN_MEMBER_ID is unknown. Checked at the end, when everybody who is alive has had enough time: one stable generation
has all of them, the leader's assignment has reached everybody, and a static member that comes back then changes nothing
for the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.classic_member import GroupState, Join, Joined, Rules
from krappy.core.kafka.faults import Fault

SESSION, REBALANCE = 10_000, 30_000
WHO = st.integers(0, 4)


@dataclass
class Client:
    """Acts as librdkafka does: joins, syncs, sends heartbeats, and begins anew when it is told to."""

    number: int
    static: bool
    alive: bool = True
    member_id: str = ""
    generation: int = -1
    waits: str = ""  # for the answer to "join" or "sync"
    joins: bool = True  # it must join next
    assignment: bytes = b""


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.rules_ = Rules(initial_delay_ms=1000, max_members=10)
        self.group = ClassicGroup(self.rules_)
        self.clients: dict[int, Client] = {}
        self.tokens: dict[Any, Client] = {}
        self.count = 0
        self.seen = 0

    # --- what may happen

    @rule(who=WHO, static=st.booleans())
    def start(self, who: int, static: bool) -> None:
        if who not in self.clients:
            self.clients[who] = Client(who, static)
            self._act(self.clients[who])

    @rule(who=WHO)
    def act(self, who: int) -> None:
        if who in self.clients:
            self._act(self.clients[who])

    @rule(who=WHO)
    def die(self, who: int) -> None:
        self.clients.pop(who, Client(0, False)).alive = False

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        client = self.clients.pop(who, None)
        if client is not None:
            client.alive = False
            if client.member_id:
                self.group.leave(self.now, [(client.member_id, f"i{who}" if client.static else None)])
                self._deliver()

    @rule(ms=st.sampled_from([1, 500, 3000, 11_000, 31_000]))
    def time(self, ms: int) -> None:
        self._pass(ms)

    @precondition(lambda self: self.group.generation > 0)
    @rule()
    def restart(self) -> None:
        """The broker comes back. Clients that waited for an answer get none, and try again."""
        self.group = ClassicGroup.load(self.group.dump(), self.rules_, self.now)
        self.tokens.clear()
        for client in self.clients.values():
            if client.waits:
                client.waits, client.joins = "", True

    # --- how clients act

    def _act(self, client: Client) -> None:
        instance = f"i{client.number}" if client.static else None
        if client.waits:
            return
        if client.joins:
            self.count += 1
            client.waits = "join"
            self.tokens[self.count] = client
            ask = Join(client.member_id, instance, "consumer", (("range", b""),), SESSION, REBALANCE)
            self.group.join(self.now, self.count, ask._replace(fresh_id=f"m{self.count}", id_first=True))
        else:
            fault = self.group.heartbeat(self.now, client.member_id, client.generation, instance)
            self._fault(client, fault)
        self._deliver()

    def _fault(self, client: Client, fault: Fault) -> None:
        if fault in (Fault.UNKNOWN_MEMBER_ID, Fault.FENCED_INSTANCE_ID):
            assert client.member_id not in self.group.members
            client.member_id = ""
        client.joins = client.joins or fault is not Fault.NONE

    def _deliver(self) -> None:
        while self.group.out:
            out, self.group.out = self.group.out, []
            for token, answer in out:
                client = self.tokens.pop(token, None)
                assert client is not None, "an answer to nobody, or a second one"
                if not client.alive:
                    continue
                client.waits = ""
                if answer.fault is Fault.MEMBER_ID_REQUIRED:
                    assert isinstance(answer, Joined)
                    client.member_id = answer.member_id
                elif answer.fault:
                    self._fault(client, answer.fault)
                elif isinstance(answer, Joined):
                    assert answer.generation >= client.generation
                    client.member_id, client.generation, client.joins = answer.member_id, answer.generation, False
                    client.waits = "sync"
                    self.count += 1
                    self.tokens[self.count] = client
                    given = {each[0]: f"{answer.generation}:{each[0]}".encode() for each in answer.members}
                    instance = f"i{client.number}" if client.static else None
                    self.group.sync(
                        self.now, self.count, client.member_id, client.generation, instance, assignments=given
                    )
                else:
                    client.assignment = answer.assignment

    def _pass(self, ms: int) -> None:
        end = self.now + ms
        while self.group.wake is not None and self.group.wake <= end:
            self.now = max(self.now, self.group.wake)
            self.group.tick(self.now)
            self._deliver()
        self.now = end

    # --- what holds

    @invariant()
    def the_generation_only_grows(self) -> None:
        assert self.group.generation >= self.seen
        self.seen = self.group.generation

    @invariant()
    def a_stable_group_has_a_leader_among_its_members(self) -> None:
        assert (self.group.state is GroupState.EMPTY) == (
            not self.group.members
        ) or self.group.state is GroupState.PREPARING
        if self.group.state in (GroupState.STABLE, GroupState.COMPLETING):
            assert self.group.leader in self.group.members

    def teardown(self) -> None:
        for _ in range(400):
            for client in self.clients.values():
                self._act(client)
            self._pass(500)
        alive = {client.member_id for client in self.clients.values()}
        assert {*self.group.members} == alive
        assert self.group.state is (GroupState.STABLE if alive else GroupState.EMPTY)
        for client in self.clients.values():
            assert client.generation == self.group.generation
            assert client.assignment.endswith(f":{client.member_id}".encode()) or client.static
        self._static_members_come_back()

    def _static_members_come_back(self) -> None:
        for client in [client for client in self.clients.values() if client.static]:
            before, had = self.group.generation, client.assignment
            client.member_id, client.joins = "", True
            self._act(client)
            assert not client.waits
            assert (self.group.generation, self.group.state) == (before, GroupState.STABLE)
            assert client.assignment == had


Lives.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
