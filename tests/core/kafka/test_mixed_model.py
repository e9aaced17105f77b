"""Random lives of a group that members of both protocols come to and leave, eager and cooperative, static or not.

Checked at every step: no partition is with two clients that are alive and in the group. Checked at the end: each
partition is with exactly one client, and the group is of the kind of its members.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from krappy.core.kafka.classic import ClassicGroup
from krappy.core.kafka.modern import ModernGroup
from krappy.core.kafka.subscription import assignment
from tests.core.kafka.test_mixed_scenarios import Player, named
from tests.core.kafka.test_modern_scenarios import read

SESSION = 10_000
SIZES = {"t": 4, "u": 3}
WHO = st.integers(0, 2)


@dataclass
class Client:
    name: str
    modern: bool
    eager: bool
    instance: str | None
    in_group: bool = False
    owned: set[str] = field(default_factory=set)  # as t0: topic t, partition 0
    told: set[str] | None = None  # what it is to have once it has given up the rest
    last: int = 0


def text(owned: set[str]) -> str:
    return "+".join(sorted(owned)) or "nothing"


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.player = Player()
        self.player.run_topics([f"{name}:{size}" for name, size in SIZES.items()], {})
        self.clients: dict[int, Client] = {}
        self.count = 0

    # --- what may happen

    @rule(who=WHO, modern=st.booleans(), eager=st.booleans(), static=st.booleans())
    def start(self, who: int, modern: bool, eager: bool, static: bool) -> None:
        if who not in self.clients:
            self.count += 1
            self.clients[who] = Client(f"m{self.count}", modern, eager, f"i{who}" if static else None)
            self._act(self.clients[who])

    @rule(who=WHO)
    def act(self, who: int) -> None:
        if who in self.clients:
            self._act(self.clients[who])

    @rule(order=st.permutations(range(3)))
    def all_act(self, order: list[int]) -> None:
        for who in order:
            self.act(who)

    @rule(who=WHO)
    def die(self, who: int) -> None:
        self.clients.pop(who, None)

    @rule(who=WHO)
    def leave(self, who: int) -> None:
        client = self.clients.pop(who, None)
        if client is not None and client.in_group:
            said = (
                self.player.run_quit([client.name], {}) if client.modern else self.player.run_leave([client.name], {})
            )
            self._hear(said)

    @rule(ms=st.sampled_from([100, 4000, SESSION]))
    def time(self, ms: int) -> None:
        self._hear(self.player.run_time([str(ms)], {}))
        for client in self.clients.values():
            if self.player.now - client.last >= SESSION:
                self._out(client)

    @rule()
    def restart(self) -> None:
        if isinstance(self.player.group, ModernGroup):
            self.player.run_restart([], {})
            for client in self.clients.values():
                client.last = self.player.now if self._is_member(client) else client.last

    # --- how clients act

    def _is_member(self, client: Client) -> bool:
        return self.player.ids.get(client.name, client.name) in self.player.group.members

    def _out(self, client: Client) -> None:
        client.owned, client.told, client.in_group = set(), None, False

    def _static(self, client: Client) -> dict[str, str]:
        return {} if client.instance is None else {"instance": client.instance}

    def _act(self, client: Client) -> None:
        client.last = self.player.now
        if client.modern:
            self._step(client)
        elif not client.in_group:
            self._join(client)
        elif client.told is not None:
            client.owned, client.told = client.told, None
            self._join(client)
        else:
            (said, *more) = self.player.run_beat([client.name], self._static(client))
            self._hear(more)
            if said.endswith("REBALANCE_IN_PROGRESS"):
                self._join(client)
            elif not said.endswith("NONE"):
                self._out(client)

    def _join(self, client: Client) -> None:
        if client.eager:
            client.owned = set()
        options = self._static(client) | {"topics": "t+u", "owns": text(client.owned), "session": str(SESSION)}
        options |= {
            "id": self.player.ids.get(client.name, "") if client.in_group else "",
            "rebalance": str(3 * SESSION),
        }
        self._hear(self.player.run_join([client.name], options))

    def _step(self, client: Client) -> None:
        options = self._static(client) | {"topics": "t+u"}
        if client.in_group:
            said = self.player.run_step([client.name], options | {"owns": text(client.owned)})
        else:
            said = self.player.run_enter([client.name], options)
        self._hear(said)

    def _hear(self, said: list[str]) -> None:
        """Passes every answer on to its client; an answer may make others go on."""
        for line in said:
            name, _, told = line.partition(" < ")
            client = next((each for each in self.clients.values() if each.name == name), None)
            if client is None or not told:
                continue
            if told.startswith("epoch"):
                client.in_group = True
                if ", has " in told:
                    client.told = {*told.partition(", has ")[2].split()} - {"nothing"}
                if client.told is not None:
                    client.owned = client.told if client.owned <= client.told else client.owned & client.told
            elif told.startswith("joined"):
                client.in_group, client.last = True, self.player.now
                self._sync(client, told.partition(", leads ")[2].split())
            elif told.startswith("synced"):
                given = {*told.split()[1:]} - {"nothing"}
                client.last = self.player.now
                if client.owned - given:  # it gives these up in a while, and then joins again
                    client.told = given
                    client.owned |= given
                else:
                    client.owned = given
            elif told == "REBALANCE_IN_PROGRESS":
                client.in_group = client.in_group and self._is_member(client)
            else:
                self._out(client)

    def _sync(self, client: Client, members: list[str]) -> None:
        options = self._static(client)
        if members and isinstance(self.player.group, ClassicGroup) and "skips" not in members:
            options["give"] = self._assign(members)
        self._hear(self.player.run_sync([client.name], options))

    def _assign(self, members: list[str]) -> str:
        """Assigns as the cooperative-sticky assignor does: nobody is given what another member still owns."""
        names = {id: name for name, id in self.player.ids.items()}
        owners = {at: each.name for each in self.clients.values() for at in each.owned if self._is_member(each)}
        given: dict[str, list[str]] = {names[id]: [] for id in members if id in names}
        for topic, size in SIZES.items():
            for index in range(size):
                at = f"{topic}{index}"
                name = [*given][index % len(given)]
                if owners.get(at, name) == name:
                    given[name].append(at)
        return ",".join(f"{name}:{'+'.join(each)}" for name, each in given.items())

    # --- what holds

    @invariant()
    def no_partition_is_with_two(self) -> None:
        owned = [at for each in self.clients.values() if self._is_member(each) for at in each.owned]
        assert len(owned) == len({*owned}), self.clients

    def teardown(self) -> None:
        for _ in range(3 * (3 * SESSION // 1000)):
            for client in [*self.clients.values()]:
                self._act(client)
            self.time(1000)
        if not self.clients:
            assert self.player.group.empty
            return
        modern = any(client.modern for client in self.clients.values())
        assert isinstance(self.player.group, ModernGroup if modern else ClassicGroup)
        if modern:
            assert sorted(at for client in self.clients.values() for at in client.owned) == sorted(
                f"{topic}{index}" for topic, size in SIZES.items() for index in range(size)
            ), self.clients
            assert self.player.group.state == "Stable"


def test_the_helpers_agree() -> None:
    assert {(chr(topic[0]), index) for topic, index in read("t0+u1")} == {*named("t0+u1")}
    assert assignment(b"") is not None


Lives.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLives = Lives.TestCase
