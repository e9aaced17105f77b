"""The broker's settings that can be changed while it runs, as Kafka's tools do it (KIP-226). A value is set for all
brokers (under the name "") or for this one (under its id); the value for this one wins. Values are stored, and are in
force again after a restart.

These are settings that take effect at once: the defaults of topics' settings, and a few of the broker's own. All other
settings are read when the broker starts. For topics' defaults, the values that the broker was started with rank lowest.
A start with other values than before is a change too, and is made once everything is open (`take_static`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from krappy.broker.name_locks import NameLocks, everything
from krappy.broker.overrides import FOR_ALL, STATIC, OverrideStore, topic_defaults
from krappy.broker.runtime import DISK_THREADS, Runtime
from krappy.core.cluster import paths
from krappy.errors import ConfigError, InvalidConfig, InvalidRequest, KrappyError, StorageError
from krappy.ports import Layer
from krappy.settings.kafka_names import KAFKA_NAMES
from krappy.settings.server import ServerConfig, default_of, read_value
from krappy.settings.topic_table import FOREVER, OF_BROKER, Changes, Given, Setting, changes_of, integer
from krappy.waiting import wait_any

THREADS = "background.threads"
LEADER_RATE, FOLLOWER_RATE = "leader.replication.throttled.rate", "follower.replication.throttled.rate"
RETRY_S = 1.0  # after another broker's change that could not be followed
_OWN = (  # fields of ServerConfig
    "log.cleaner.backoff.ms",
    "log.cleaner.io.max.bytes.per.second",
    "max.connections",
    "max.connections.per.ip",
    "producer.id.expiration.ms",
)
# Lower values would lock everybody out, even after a restart. A stored value that is lower counts as the one here.
_FLOORS = {"max.connections": 100, "max.connections.per.ip": 10}
_UNUSED = Setting(
    "sasl.kerberos.min.time.before.relogin", "60000", integer(0, 2**63 - 1), "LONG", "taken and not used: no Kerberos"
)


def _rate(name: str, doc: str) -> Setting:
    return Setting(name, str(FOREVER), integer(0, FOREVER), "LONG", doc)


RATES = (
    _rate(LEADER_RATE, "most bytes a second that this broker sends to throttled replicas that are not in sync"),
    _rate(FOLLOWER_RATE, "most bytes a second that this broker copies for its throttled replicas not in sync"),
)


def _of_config(name: str) -> Setting:
    field = KAFKA_NAMES[name]
    default, doc = default_of(field)

    def read(given: Given) -> str:
        value = read_value(field, given)
        if value < _FLOORS.get(name, value):
            raise ValueError(f"at least {_FLOORS[name]} is needed; less can be set when the broker is started")
        return str(value)

    return Setting(name, str(default), read, "LONG", doc)


KNOWN: Mapping[str, Setting] = {
    **{name: each._replace(name=name) for name, each in OF_BROKER.items()},
    **{name: _of_config(name) for name in _OWN},
    THREADS: Setting(THREADS, str(DISK_THREADS), integer(1, 128), "INT", "threads that wait for the disk"),
    **{each.name: each for each in RATES},
    _UNUSED.name: _UNUSED,
}


Sees = Callable[[str], bool] | None


class DynamicSettings:
    """`static`: the settings that the broker started with; `changed`: fired after every change."""

    known = KNOWN

    def __init__(self, runtime: Runtime, store: OverrideStore, topics: NameLocks) -> None:
        self._runtime = runtime
        self._store = store
        self._topics = topics  # all held during a change, so that no topic is created or deleted meanwhile
        self.static: ServerConfig = runtime.config
        self.changed = runtime.settings_changed
        self._held = store.load()
        self._apply()

    # --- as they are

    def held(self, name: str) -> Mapping[str, str]:
        """What was set for this broker (its id), or for all (the name "")."""
        return self._held.get(name, {})

    def layers(self, setting: str) -> list[Layer]:
        """The values given for a setting, the one in force first. "static" is there only for topics' defaults."""
        names = ((str(self.static.broker_id), "broker"), (FOR_ALL, "all"), (STATIC, "static"))
        return [Layer(held[setting], by) for name, by in names if setting in (held := self.held(name))]

    def effective(self, name: str) -> Mapping[str, str]:
        """The values in force for `name` of all settings that can be changed."""
        layers = (STATIC, FOR_ALL) if name == FOR_ALL else (STATIC, FOR_ALL, name)
        found = {setting.name: setting.default for setting in KNOWN.values()}
        found |= {setting: str(getattr(self.static, KAFKA_NAMES[setting])) for setting in _OWN}
        for layer in layers:
            found |= self.held(layer)
        return found

    def topic_layers(self) -> dict[str, list[Layer]]:
        """The layers of the topic settings whose defaults were given, by the topic setting's name."""
        found = {setting.name: self.layers(name) for name, setting in OF_BROKER.items()}
        return {topic: layers for topic, layers in found.items() if layers}

    @property
    def topic_defaults(self) -> dict[str, str]:
        return self._defaults(self._held)

    def _defaults(self, held: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
        return topic_defaults(held, str(self.static.broker_id))

    # --- as they are to be

    def check(self, name: str, changes: Mapping[str, Given], sees: Sees = None) -> dict[str, str]:
        """The settings that `name` would have after these changes. None removes a setting, which may be unset or
        unknown: Kafka's tools remove throttles that nobody has set. `sees`: whether an error may name this topic; None:
        any. Raises InvalidRequest, as Kafka does."""
        fixed = sorted({setting for setting, value in changes.items() if value is not None} - set(KNOWN))
        if fixed:
            raise InvalidRequest(
                f"Cannot update these configs dynamically: {', '.join(fixed):.300} (they are read when the broker "
                f"starts, see `krappy serve --help`; while it runs these can be changed: {', '.join(sorted(KNOWN))})"
            )
        after = {setting: value for setting, value in self.held(name).items() if setting not in changes}
        for setting, value in changes.items():
            if value is not None:
                try:
                    after[setting] = KNOWN[setting].read(value)
                except ValueError as error:
                    raise InvalidRequest(f"Invalid value {value!r:.80} for configuration {setting}: {error}") from None
        self._check_topics(name, after, sees)
        return after

    def _check_topics(self, name: str, after: Mapping[str, str], sees: Sees = None) -> None:
        """Raises InvalidRequest when a topic could not have the defaults that it would get."""
        defaults = self._defaults({**self._held, name: after})
        for topic in self._runtime.topics.values():
            try:
                topic.parse(topic.given, defaults)
            except InvalidConfig as error:
                which = f"the topic '{topic.name}'" if sees is None or sees(topic.name) else "a topic"
                raise InvalidRequest(f"{which} could not have these defaults: {error.text}") from None

    async def alter(self, name: str, wanted: Changes, sees: Sees = None) -> None:
        """Changes settings. On return they are in force and durable. `sees`: as in `check`. Raises InvalidRequest,
        StorageError."""
        async with everything(self._runtime.shrinking, self._topics):
            with self._runtime.audit.change("broker", [name or paths.DEFAULT], lambda _: dict(self.held(name))):
                changes = changes_of(wanted, self.held(name), self.effective(name))
                await self._take(name, self.check(name, changes, sees))
        self.changed.fire()

    async def take_static(self) -> None:
        """Puts the topic defaults that the broker was started with in force, once its topics are open. When the disk
        refuses, the earlier ones stay until the next start. Raises ConfigError when a topic can't have them."""
        given = dict(self.static.topic_defaults)
        if given == self.held(STATIC):
            return
        async with everything(self._runtime.shrinking, self._topics):
            try:
                self._check_topics(STATIC, given)
            except InvalidRequest as error:
                raise ConfigError(f"the defaults of topics: {error.text}") from None
            try:
                await self._take(STATIC, given)
            except StorageError as error:
                self._runtime.report("topic_defaults_wait", error=str(error))

    async def follow(self) -> None:
        """Puts in force what other brokers of the cluster change. Until cancelled."""
        runtime = self._runtime
        while True:
            seen = runtime.image.configs.get(paths.BROKER_CONFIG)
            done = True
            try:
                await self._catch_up()
            except KrappyError as error:  # the disk refuses, or a topic of this broker can't have this default
                runtime.report("settings_wait", error=str(error))
                done = False
            changed = partial(self._differs, seen)
            await wait_any([runtime.store.changed], changed, float("inf") if done else RETRY_S)

    def _differs(self, seen: object) -> bool:
        return self._runtime.image.configs.get(paths.BROKER_CONFIG) is not seen

    async def _catch_up(self) -> None:
        if _without_empty(self._store.load()) == _without_empty(self._held):
            return
        async with everything(self._runtime.shrinking, self._topics):
            found = self._store.load()
            for name in {*found, *self._held}:
                if found.get(name, {}) != self.held(name):
                    await self._take(name, found.get(name, {}), save=False)
        self.changed.fire()

    async def _take(self, name: str, after: dict[str, str], *, save: bool = True) -> None:
        defaults = self._defaults({**self._held, name: after})
        topics = [topic for topic in self._runtime.topics.values() if topic.inherited != defaults]
        if any(topic.switches_view(topic.given, defaults) for topic in topics):
            self._runtime.views.check()
        for topic in topics:
            await topic.prepare(topic.given, defaults)
        if save:
            await self._store.save(name, self.held(name), after)
        self._held[name] = after
        self._apply()
        for topic in topics:
            await topic.configure(topic.given, defaults)

    def _apply(self) -> None:
        changed: dict[str, Any] = {
            KAFKA_NAMES[name]: max(int(layers[0].value), _FLOORS.get(name, 0))
            for name in _OWN
            if (layers := self.layers(name)) and layers[0].by != "static"
        }
        self._runtime.config = replace(self.static, **changed)
        threads: Sequence[Layer] = self.layers(THREADS)
        self._runtime.disk_threads.most = int(threads[0].value) if threads else DISK_THREADS
        self._runtime.disk_threads.set_limit()
        self._runtime.quotas.leader.rate = self._rate(LEADER_RATE)
        self._runtime.quotas.follower.rate = self._rate(FOLLOWER_RATE)

    def _rate(self, name: str) -> int | None:
        layers = self.layers(name)
        return int(layers[0].value) if layers and int(layers[0].value) != FOREVER else None


def _without_empty(held: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    return {name: settings for name, settings in held.items() if settings}
