"""The broker's settings as `--help` and the documents show them: one row for each, under headings."""

from __future__ import annotations

from typing import NamedTuple

from krappy.settings import units
from krappy.settings.server import KINDS, PREFIX, SPECS, TOPICS, kind_of
from krappy.settings.topic_table import OF_BROKER, Setting

# The headings under which `--help` shows the settings, by the first setting of each.
SECTIONS = {
    "data": "Where it stores and listens",
    "memory_bytes": "Memory and connections",
    "auto_create_topics": "Topics and tables",
    "retention_check_ms": "Retention and compaction",
    "group_max_members": "Groups",
    "max_transactional_ids": "Transactions, staged writes and producers",
    "log_level": "The log",
    "group_share_session_timeout_ms": "Share groups",
    "zookeeper_connect": "Clusters: ZooKeeper",
    "inter_broker_listener_name": "Clusters: how brokers reach each other",
    "authorizer": "ACLs, TLS and users",
    "oauth_issuer": "Users of an identity provider",
    next(iter(TOPICS)): "Defaults of topics",
}


class DescribedSetting(NamedTuple):
    """One setting for `--help` and the documents."""

    name: str
    flag: str
    variable: str
    kind: str
    default: str
    doc: str
    section: str = ""  # the heading under which it stands


def describe() -> list[DescribedSetting]:
    """A row for each setting, in the order of `ServerConfig`; then one for each default of topics."""
    own = [
        DescribedSetting(
            name=spec.name,
            flag="--" + spec.name.replace("_", "-"),
            variable=PREFIX + spec.name.upper(),
            kind="|".join(spec.metadata["choices"] or (kind_of(spec),)),
            default=str(spec.default).lower() if isinstance(spec.default, bool) else str(spec.default),
            doc=spec.metadata["doc"],
        )
        for spec in SPECS.values()
    ]
    section, rows = "", []
    for row in own + [_described(name, OF_BROKER[kafka]) for name, kafka in TOPICS.items()]:
        section = SECTIONS.get(row.name, section)
        rows.append(row._replace(section=section))
    return rows


def _described(name: str, setting: Setting) -> DescribedSetting:
    kind = {"BOOLEAN": "true|false", "STRING": "text", "LIST": "text"}.get(setting.kind, KINDS[units.of(setting.name)])
    flag, variable = "--" + name.replace("_", "-"), PREFIX + name.upper()
    return DescribedSetting(name, flag, variable, kind, setting.default, f"{setting.name} of topics: {setting.doc}")
