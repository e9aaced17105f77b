"""Elections and moves of replicas, as `krappy cluster elect` and `krappy cluster balance` ask a broker for them."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from krappy.cli import output
from krappy.cli.errors import Failure
from krappy.cli.figures import ConsoleFigures
from krappy.errors import UNCHANGED

MOST_AT_ONCE = 1000  # as many as one request may name
LOOK_S = 1.0  # between two looks at how far the moves are
Row = Mapping[str, Any]


def parse_topic(text: str) -> tuple[str, int | None]:
    """TOPIC or TOPIC:PARTITION. Raises BadParameter."""
    topic, colon, partition = text.partition(":")
    if not topic or (colon and not (partition.isascii() and partition.isdigit())):
        raise click.BadParameter(f"'{text}' is neither TOPIC nor TOPIC:PARTITION")
    return topic, int(partition) if colon else None


def elect(console: ConsoleFigures, wanted: Iterable[str], *, unclean: bool) -> list[Row]:
    """The result for each partition. `wanted`: each TOPIC or TOPIC:PARTITION. Raises BadParameter, Failure."""
    chosen: dict[str, list[int] | None] = {}
    for topic, partition in [parse_topic(each) for each in wanted]:
        known = chosen.setdefault(topic, [])
        if partition is None:
            chosen[topic] = None
        elif known is not None:
            known.append(partition)
    found: list[Row] = []
    for topic, partitions in chosen.items():
        body = {"topic": topic, "partitions": partitions, "unclean": unclean}
        found += console.post("cluster/elections", body)["elections"]
    return found


def print_elections(rows: Sequence[Row], as_json: bool) -> None:
    """Prints the results. Ends the command with status 1 if an election was needed, and not possible."""
    if as_json:
        output.emit_json({"elections": rows})
    else:
        columns = ["topic", "partition", "result", "why"]
        shown = columns if any(each.get("why") for each in rows) else columns[:-1]
        output.table(shown, [[each.get(name) for name in shown] for each in rows])
    if any(each["result"] not in ("elected", "not needed") for each in rows):
        raise click.exceptions.Exit(1)


def print_proposal(proposal: Row) -> None:
    """Prints the brokers before and after the moves, and the moves."""
    columns = ["broker", "rack", "replicas", "after", "preferred to lead", "after"]
    rows = [
        [
            each["id"] if each["alive"] else f"{each['id']} (away)",
            each["rack"],
            *(each[name] for name in ("replicas_before", "replicas_after", "preferred_before", "preferred_after")),
        ]
        for each in proposal["brokers"]
    ]
    output.table(columns, rows)
    if proposal["moving"]:
        output.write_lines(["", f"{proposal['moving']} partitions are being moved already, and stay out of it"])
    output.write_lines([""])
    if not proposal["moves"]:
        output.write_lines(["no moves: it is balanced"])
        return
    moves = [
        [each["topic"], each["partition"], each["before"], each["after"], each["copies"] or None]
        for each in proposal["moves"]
    ]
    output.table(["topic", "partition", "replicas", "after", "is copied to"], moves)
    output.write_lines(["", f"{len(moves)} moves, {sum(len(each['copies']) for each in proposal['moves'])} copies"])


class MoveProgress:
    """Tells how far the moves are: a line each time that this has changed."""

    def __init__(self, total: int, as_json: bool) -> None:
        self._total, self._as_json = total, as_json
        self._last: object = None

    def tell(self, moved: int, moving: Sequence[Row]) -> None:
        left = sum(lag or 0 for each in moving for lag in each["lags"].values())
        if (moved, len(moving), left) == self._last:
            return
        self._last = moved, len(moving), left
        if self._as_json:
            output.emit_json({"moved": moved, "of": self._total, "moving": moving})
        else:
            going = f", {len(moving)} under way ({left:,} events to copy)" if moving else ""
            output.write_lines([f"{moved} of {self._total} moved{going}"])


def move(console: ConsoleFigures, moves: Sequence[Row], at_once: int, as_json: bool) -> None:
    """Makes the moves, `at_once` partitions at a time, and tells how far they are. Then the preferred leaders are
    elected. Raises Failure; moves that have begun go on all the same."""
    waiting, going = deque(moves), dict[tuple[str, int], Row]()
    progress = MoveProgress(len(moves), as_json)
    while waiting or going:
        if waiting and len(going) < at_once:
            begun = [waiting.popleft() for _ in range(min(len(waiting), at_once - len(going)))]
            rows = [
                {"topic": each["topic"], "partition": each["partition"], "replicas": each["after"]} for each in begun
            ]
            try:
                console.post("cluster/reassignments", {"moves": rows})
            except Failure as failure:
                if not (before := len(moves) - len(waiting) - len(begun)):
                    raise
                why = failure.message.removesuffix(UNCHANGED)
                raise Failure(f"{before} of {len(moves)} moves were begun, and no more than that: {why}") from None
            going |= {(each["topic"], each["partition"]): each for each in begun}
        moving = console.get("cluster/reassignments")["reassignments"]
        still = {(each["topic"], each["partition"]) for each in moving}
        going = {at: each for at, each in going.items() if at in still}
        mine = [each for each in moving if (each["topic"], each["partition"]) in going]
        progress.tell(len(moves) - len(waiting) - len(going), mine)
        if going:
            time.sleep(LOOK_S)
    if moves:
        elected = elect(console, [f"{each['topic']}:{each['partition']}" for each in moves], unclean=False)
        done = sum(each["result"] == "elected" for each in elected)
        if as_json:
            output.emit_json({"moved": len(moves), "of": len(moves), "elected": done})
        else:
            output.write_lines([f"{done} partitions are led by another broker now"])
