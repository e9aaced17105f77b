"""The cluster as `krappy cluster` prints it: tables of a state, and lines of changes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from krappy.cli import output

COUNTS = ("offline", "under_replicated", "under_min_isr")
UNKNOWN = "?"
MARKS = "lag: of each follower, in events; ? where its leader does not answer; - where the broker is away"


def print_state(state: Mapping[str, Any]) -> None:
    """Brokers, counts and partitions, as tables."""
    output.table(
        ["broker", "controller", "epoch", "since", "rack", "leads", "replicas", "address"],
        [
            [
                each["id"],
                each["id"] == state["controller"],
                each["epoch"],
                None if each["since_ms"] is None else output.when(each["since_ms"]),
                each["rack"],
                each["leads"],
                each["replicas"],
                [f"{name} {address}" for name, address in each["endpoints"].items()],
            ]
            for each in state["brokers"]
        ],
        title=f"cluster {state['cluster_id']}, as broker {state['told_by']} sees it",
    )
    output.write_lines(["", counts(state)])
    if state["controller"] is None:
        output.write_lines(["no broker is the controller: leaders stay as they are"])
    rows = [_row(topic["name"], each) for topic in state["topics"] for each in topic["partitions"]]
    if rows:
        output.write_lines([""])
        output.table(["topic", "partition", "leader", "epoch", "replicas", "isr", "elr", "lag", "trouble"], rows)


def counts(state: Mapping[str, Any]) -> str:
    """How many partitions there are, and how many of them are in trouble, in a line."""
    told = [f"{state[name]:,} {name.replace('_', ' ').replace('isr', 'ISR')}" for name in COUNTS]
    number = state["partitions"]
    return f"{number:,} partition{'s' * (number != 1)}: {', '.join(told)}"


def _row(topic: str, partition: Mapping[str, Any]) -> list[Any]:
    replicas = partition["replicas"]
    trouble = [name.replace("_", " ").replace("isr", "ISR") for name in COUNTS if partition[name]]
    trouble += [f"{each['broker']} {each['healing']}" for each in replicas if each.get("healing")]
    return [
        topic,
        partition["partition"],
        partition["leader"],
        partition["leader_epoch"],
        [each["broker"] for each in replicas],
        partition["isr"],
        partition["elr"] or None,
        [_lag(each) for each in replicas if each["broker"] != partition["leader"]] or None,
        ", ".join(trouble) or None,
    ]


def _lag(replica: Mapping[str, Any]) -> str:
    if not replica["alive"]:
        return f"{replica['broker']}: -"
    return f"{replica['broker']}: {UNKNOWN if replica['lag'] is None else format(replica['lag'], ',')}"


def change_line(change: Mapping[str, Any]) -> str:
    """A change with its time."""
    return output.visible(f"{output.when(change['at_ms'])}  {change['text']}")
