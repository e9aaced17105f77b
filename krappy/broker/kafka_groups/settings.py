"""Settings of single Kafka groups (GROUP resources of KIP-848): their session timeout and heartbeat interval.

What is not set for a group is as the broker has it for all groups. A group need not exist to have settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from krappy.broker.name_locks import whole
from krappy.broker.overrides import OverrideStore
from krappy.core.kafka.modern import ModernGroup, ModernRules
from krappy.errors import InvalidConfig, InvalidRequest
from krappy.settings.topic_table import Changes, Given, Setting, changes_of, integer, nearest

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.group import KafkaGroup
    from krappy.broker.runtime import Runtime

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
MAX_GROUPS = 50_000  # groups that have settings
MAX_NAMES = 8 << 20  # characters of their names together


class GroupSettings:
    def __init__(
        self, runtime: Runtime, rules: ModernRules, get: Callable[[str], KafkaGroup | None], store: OverrideStore
    ) -> None:
        """`rules`: those of a group without settings. `get`: finds a group by name."""
        config = runtime.config
        longest = config.group_max_session_timeout_ms
        session, heartbeat = config.group_consumer_session_timeout_ms, config.group_consumer_heartbeat_interval_ms
        self.known: Mapping[str, Setting] = {
            SESSION: Setting(
                SESSION,
                str(session),
                integer(1, max(longest, session)),
                "INT",
                "ms without a heartbeat after which a member is out",
                "group." + SESSION,
            ),
            HEARTBEAT: Setting(
                HEARTBEAT,
                str(heartbeat),
                integer(1, max(longest, heartbeat)),
                "INT",
                "ms between two heartbeats of a member",
                "group." + HEARTBEAT,
            ),
        }
        self._runtime = runtime
        self._rules = rules
        self._get = get
        self._heartbeat_ms = heartbeat
        self._store = store
        self._held = store.load()
        self._lock = trio.Lock()

    def names(self) -> list[str]:
        """The groups that have settings of their own."""
        return sorted(self._held)

    def held(self, group: str) -> Mapping[str, str]:
        return self._held.get(group, {})

    def effective(self, group: str) -> Mapping[str, str]:
        return {**{name: setting.default for name, setting in self.known.items()}, **self.held(group)}

    def rules(self, group: str) -> ModernRules:
        held = self._held.get(group)
        rules = self._rules
        return rules if held is None or SESSION not in held else rules._replace(session_ms=int(held[SESSION]))

    def heartbeat_ms(self, group: str) -> int:
        held = self._held.get(group)
        return self._heartbeat_ms if held is None else int(held.get(HEARTBEAT, self._heartbeat_ms))

    def check(self, group: str, changes: Mapping[str, Given]) -> dict[str, str]:
        """What would be held for the group after these changes. None removes a setting. Raises InvalidRequest,
        InvalidConfig."""
        if not group:
            raise InvalidRequest("Default group resources are not allowed.")
        after = {name: value for name, value in self.held(group).items() if name not in changes}
        for name, value in changes.items():
            setting = self.known.get(name)
            if setting is None:
                raise InvalidConfig(f"there is no group setting '{name:.80}'{nearest(name, self.known)}", setting=name)
            if value is not None:
                try:
                    after[name] = setting.read(value)
                except ValueError as error:
                    raise InvalidConfig(f"{name} = {value!r:.80}: {error}", setting=name) from None
        whole = {**{name: setting.default for name, setting in self.known.items()}, **after}
        if changes and int(whole[HEARTBEAT]) >= int(whole[SESSION]):
            raise InvalidConfig(f"{SESSION} must be greater than {HEARTBEAT}", setting=SESSION)
        if after and group not in self._held:
            names = sum(map(len, self._held)) + len(group)
            if len(self._held) >= MAX_GROUPS or names > MAX_NAMES:
                raise InvalidRequest(f"{len(self._held)} groups have settings: as many as are possible")
        return after

    async def alter(self, group: str, wanted: Changes) -> None:
        """Changes settings. Durable on return, and in force from the members' next heartbeats on. Raises as `check`,
        StorageError."""
        async with whole(self._lock):  # threads may overtake each other: what is stored last must be what is in force
            after = self.check(group, changes_of(wanted, self.held(group), self.effective(group)))
            await self._store.save(group, after)
            if after:
                self._held[group] = after
            else:
                self._held.pop(group, None)
            found = self._get(group)
            if found is not None and isinstance(found.membership, ModernGroup):
                found.membership.rules = self.rules(group)
