"""`krappy demo bank`: computes account balances from deposits and withdrawals, for now and as of an earlier offset.

The topic `transfers` is the journal. A bookkeeper folds it into the topic `balances`, whose table has the current
balances. Each balance is written with the condition that nobody has changed it since it was read, and contains the
offset of the journal that it includes. So two bookkeepers at once can't spoil a balance; the demo lets a second one
try.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from typing import TYPE_CHECKING

from krappy.cli.errors import Failure
from krappy.demos.show import Show
from krappy.errors import OffsetMismatch

if TYPE_CHECKING:
    from krappy.blocking import Client
    from krappy.types import Event

JOURNAL, BALANCES = "transfers", "balances"
ACCOUNTS = [f"account-{number}" for number in range(8)]
EVENTS = 400


def run(client: Client, address: str, show: Show) -> None:
    """Runs the demo. Raises Failure when a balance of the table is not the fold of the journal."""
    show.heading(f"{EVENTS} deposits and withdrawals on {len(ACCOUNTS)} accounts")
    client.create_topic(JOURNAL)
    client.create_topic(BALANCES, config={"cleanup.policy": "compact"})
    chance = random.Random(7)
    with client.producer(JOURNAL) as producer:
        for _ in range(EVENTS):
            producer.send(str(chance.choice([50, 20, 10, -5, -15, -30])), key=chance.choice(ACCOUNTS))
    _keep_books(client)
    journal = _journal(client)
    show.check("the journal holds every transfer, in order", [e.offset for e in journal] == list(range(EVENTS)))

    show.heading("now")
    table = {entry.key.decode(): json.loads(entry.value or b"") for entry in client.table(BALANCES).scan()}
    fold = _fold(journal, EVENTS)
    show.table(
        ["account", "balance", "as of offset"], [[name, *state.values()] for name, state in sorted(table.items())]
    )
    show.check("the table is the fold of the journal", {k: v["balance"] for k, v in table.items()} == fold)
    show.check("money is neither made nor lost", sum(fold.values()) == sum(int(e.value or 0) for e in journal))

    half = EVENTS // 2
    show.heading(f"as of offset {half} of the journal")
    then = _as_of(client, half)
    show.table(["account", "balance"], sorted(then.items()))
    show.check("the balances' history gives the same fold", then == _fold(journal, half))

    show.heading("a second bookkeeper, who read a balance before the first one changed it")
    show.check("is refused", _stale_write_is_refused(client))
    show.fact("transfers", EVENTS)
    show.fact("balances", fold)
    show.fact("as_of", {"offset": half, "balances": then})


def _journal(client: Client) -> list[Event]:
    with client.consumer(JOURNAL, end="now") as consumer:
        return list(consumer)


def _keep_books(client: Client) -> None:
    """Reads the journal and writes the new balance after each transfer."""
    table, balances = client.table(BALANCES), dict[str, tuple[int, int]]()  # account -> (balance, offset of its entry)
    with client.consumer(JOURNAL, end="now") as consumer, client.producer(BALANCES) as producer:
        for event in consumer:
            account = (event.key or b"").decode()
            if account not in balances and table.get(account) is not None:
                raise Failure("this demo needs a broker where it has not run before")
            balance, at = balances.get(account, (0, None))
            balance += int(event.value or 0)
            value = json.dumps({"balance": balance, "offset": event.offset})
            receipt = producer.send(value, key=account, expect="absent" if at is None else at).result()
            balances[account] = balance, receipt.offset


def _fold(journal: list[Event], before: int) -> dict[str, int]:
    """The balances after the events before an offset of the journal."""
    sums: dict[str, int] = defaultdict(int)
    for event in journal:
        if event.offset < before:
            sums[(event.key or b"").decode()] += int(event.value or 0)
    return dict(sums)


def _as_of(client: Client, before: int) -> dict[str, int]:
    """The balances as of an offset of the journal: the last one in each account's history from an event before it."""
    found = {}
    for account in ACCOUNTS:
        states = [json.loads(entry.value or b"") for entry in client.table(BALANCES).history(account)]
        known = [state for state in states if state["offset"] < before]
        if known:
            found[account] = known[-1]["balance"]
    return found


def _stale_write_is_refused(client: Client) -> bool:
    with client.producer(BALANCES) as producer:
        before = client.table(BALANCES).get(ACCOUNTS[0])
        if before is None:
            raise Failure("an account is gone")
        producer.send(before.value, key=ACCOUNTS[0], expect=before.offset).result()
        try:
            producer.send('{"balance": 0, "offset": 0}', key=ACCOUNTS[0], expect=before.offset).result()
        except OffsetMismatch as refused:
            return bool(refused.current > before.offset)
    return False
