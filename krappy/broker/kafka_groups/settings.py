"""Settings of single Kafka groups (GROUP resources of KIP-848): their session timeout and heartbeat interval; and of
share groups (KIP-932), how they read.

What is not set for a group is what the broker has for all groups. A group need not exist to have settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from krappy.broker.name_locks import whole
from krappy.broker.overrides import OverrideStore
from krappy.core.cluster.paths import GROUP_CONFIG
from krappy.core.kafka.modern import ModernGroup, ModernRules
from krappy.core.kafka.share import ShareGroup, ShareRules
from krappy.core.kafka.share_start import share_start, start_of
from krappy.core.kafka.share_state import MAX_LOCKS
from krappy.errors import InvalidConfig, InvalidRequest
from krappy.settings.server import ServerConfig
from krappy.settings.topic_table import Changes, Given, Setting, boolean, changes_of, choice, integer, nearest

if TYPE_CHECKING:
    from krappy.broker.kafka_groups.group import KafkaGroup
    from krappy.broker.runtime import Runtime

SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"
SHARE_SESSION, SHARE_HEARTBEAT = "share.session.timeout.ms", "share.heartbeat.interval.ms"
LOCK, DELIVERIES, LOCKS = (
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)
RESET, ISOLATION, RENEW = "share.auto.offset.reset", "share.isolation.level", "share.renew.acknowledge.enable"
COMMITTED = "read_committed"
MAX_GROUPS = 50_000  # groups that have settings
MAX_NAMES = 8 << 20  # characters of their names together


def _known(config: ServerConfig) -> dict[str, Setting]:
    """The settings that a group can have (KIP-848, KIP-932), with their defaults at this broker."""
    longest = config.group_max_session_timeout_ms

    def number(name: str, default: int, low: int, high: int, doc: str) -> Setting:
        return Setting(name, str(default), integer(low, max(high, default)), "INT", doc, "group." + name)

    session, heartbeat = "ms without a heartbeat after which a member is out", "ms between two heartbeats of a member"
    rows = [
        number(SESSION, config.group_consumer_session_timeout_ms, 1, longest, session),
        number(HEARTBEAT, config.group_consumer_heartbeat_interval_ms, 1, longest, heartbeat),
        number(SHARE_SESSION, config.group_share_session_timeout_ms, 1, longest, session),
        number(SHARE_HEARTBEAT, config.group_share_heartbeat_interval_ms, 1, longest, heartbeat),
        number(LOCK, config.group_share_record_lock_duration_ms, 1000, 3_600_000, "ms for which a record is acquired"),
        number(DELIVERIES, config.group_share_delivery_count_limit, 2, 100, "how often a record is delivered at most"),
        number(
            LOCKS,
            config.group_share_partition_max_record_locks,
            *(100, MAX_LOCKS),
            "most records of a partition that are acquired, or to be delivered again",
        ),
        Setting(RESET, "latest", share_start, "STRING", "where a group begins to read a partition"),
        Setting(
            ISOLATION, "read_uncommitted", choice("read_uncommitted", COMMITTED), "STRING", "which records it reads"
        ),
        Setting(RENEW, "true", boolean, "BOOLEAN", "whether members may renew what they have acquired"),
    ]
    return {row.name: row for row in rows}


class GroupSettings:
    def __init__(self, runtime: Runtime, get: Callable[[str], KafkaGroup | None], store: OverrideStore) -> None:
        """`get`: finds a group by name."""
        self._runtime, self._config = runtime, runtime.config
        self._audit = runtime.audit
        self.known: Mapping[str, Setting] = _known(runtime.config)
        self._get = get
        self._store = store
        self._seen = self._held
        self._lock = trio.Lock()
        runtime.store.changed.subscribe(self._look)

    @property
    def _held(self) -> Mapping[str, Mapping[str, str]]:
        """What is set in the cluster, by group: another broker may have changed it."""
        return self._runtime.image.configs.get(GROUP_CONFIG, {})

    def _look(self) -> None:
        """Gives groups with members the rules that are in force now."""
        before, self._seen = self._seen, self._held
        if before is self._seen:
            return
        for name in before.keys() | self._seen.keys():
            found = self._get(name) if before.get(name) is not self._seen.get(name) else None
            if found is not None and isinstance(found.membership, ModernGroup):
                found.membership.rules = self.rules(name, found.membership.kind)

    def names(self) -> list[str]:
        """The groups that have settings of their own."""
        return sorted(self._held)

    def held(self, group: str) -> Mapping[str, str]:
        return self._held.get(group, {})

    def effective(self, group: str) -> Mapping[str, str]:
        return {**{name: setting.default for name, setting in self.known.items()}, **self.held(group)}

    def _number(self, group: str, name: str) -> int:
        return int(self.held(group).get(name, self.known[name].default))

    def rules(self, group: str, kind: str = "consumer") -> ModernRules:
        """The rules for the membership of a group."""
        if kind == ShareGroup.kind:
            return ModernRules(self._number(group, SHARE_SESSION), self._config.group_share_max_size)
        return ModernRules(self._number(group, SESSION), self._config.group_max_members)

    def heartbeat_ms(self, group: str, kind: str = "consumer") -> int:
        return self._number(group, SHARE_HEARTBEAT if kind == ShareGroup.kind else HEARTBEAT)

    def share_rules(self, group: str) -> ShareRules:
        """How a share group reads."""
        held = self.held(group)
        return ShareRules(
            self._number(group, LOCK),
            self._number(group, DELIVERIES),
            self._number(group, LOCKS),
            start_of(held.get(RESET, self.known[RESET].default)),
            held.get(ISOLATION) == COMMITTED,
            held.get(RENEW, "true") == "true",
        )

    def check(self, group: str, changes: Mapping[str, Given]) -> dict[str, str]:
        """The settings that the group would have after these changes. None removes a setting. Raises InvalidRequest,
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
        for session, heartbeat in ((SESSION, HEARTBEAT), (SHARE_SESSION, SHARE_HEARTBEAT)):
            if changes.keys() & {session, heartbeat} and int(whole[heartbeat]) >= int(whole[session]):
                raise InvalidConfig(f"{session} must be greater than {heartbeat}", setting=session)
        if after and group not in self._held:
            names = sum(map(len, self._held)) + len(group)
            if len(self._held) >= MAX_GROUPS or names > MAX_NAMES:
                raise InvalidRequest(f"{len(self._held)} groups have settings: as many as are possible")
        return after

    async def alter(self, group: str, wanted: Changes) -> None:
        """Changes settings. Durable on return, and in force from the members' next heartbeats on. Raises as `check`,
        StorageError."""
        async with whole(self._lock):
            after = self.check(group, changes_of(wanted, self.held(group), self.effective(group)))
            with self._audit.change("group", [group], lambda _: dict(self.held(group))) as told:
                told.after[group] = after
                await self._store.save(group, self.held(group), after)
