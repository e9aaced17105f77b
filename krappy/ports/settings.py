"""Settings that can be changed while the broker runs, and those of the broker as Kafka's tools see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from krappy.settings.topic_table import Changes, Given, Setting


class SettingsPort(Protocol):
    """Settings that can be changed while the broker runs: of a broker (by its id, "" for all), or of a group."""

    @property
    def known(self) -> Mapping[str, Setting]: ...
    def held(self, name: str, /) -> Mapping[str, str]: ...
    def effective(self, name: str, /) -> Mapping[str, str]: ...
    def check(self, name: str, changes: Mapping[str, Given], /) -> Mapping[str, str]: ...
    async def alter(self, name: str, wanted: Changes, /) -> None: ...


class Layer(NamedTuple):
    """A setting as it was given. `by`: "broker" or "all": it was changed for the broker, or for all brokers; "static":
    the broker was started with it."""

    value: str
    by: str


class DynamicPort(SettingsPort, Protocol):
    """The settings of brokers. The defaults of topics are among them."""

    def check(
        self, name: str, changes: Mapping[str, Given], sees: Callable[[str], bool] | None = None, /
    ) -> Mapping[str, str]:
        """`sees`: whether an error may name a topic; None: any."""

    async def alter(self, name: str, wanted: Changes, sees: Callable[[str], bool] | None = None, /) -> None: ...
    @property
    def topic_defaults(self) -> Mapping[str, str]: ...
    def layers(self, setting: str) -> Sequence[Layer]: ...
    def topic_layers(self) -> Mapping[str, Sequence[Layer]]: ...


class BrokerSetting(NamedTuple):
    """`kind`: Kafka's type of the setting. `given`: whether the broker was started with another value than the
    `default`."""

    name: str
    value: str | None
    kind: str
    doc: str
    given: bool
    default: str | None = None
