"""What is known of the topic that is deleted and made anew again and again.

The value of an event is `TOPIC:NUMBER`; TOPIC says how often the topic had been made by then."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tests.chaos.checker import Replicas, Violation, shortened


class AckedAnew(NamedTuple):
    partition: int
    offset: int
    value: bytes


@dataclass
class Renewed:
    """`number`: how often the topic was made. `certain`: no deletion may be under way whose answer was lost.
    `doubtful`: the answer to the last creation was lost, so nobody knows whether the topic is there."""

    number: int = 0
    acked: list[AckedAnew] = field(default_factory=list)
    certain: bool = True
    doubtful: bool = False
    wrong: list[str] = field(default_factory=list)
    taking: threading.Lock = field(default_factory=threading.Lock)

    def told(self, error: Any, message: Any) -> None:
        if error is None:
            self.acked.append(AckedAnew(message.partition(), message.offset(), message.value()))

    def check(self, logs: Replicas) -> list[Violation]:
        """Checks that no event of an earlier topic of this name is there. If it is certain that the present topic is
        there, checks that all its acknowledged events are."""
        found = [Violation("anew", text) for text in self.wrong]
        for partition, replicas in logs.items():
            for broker, replica in replicas.items():
                for offset, value in replica.values.items():
                    if not self.doubtful and value.partition(b":")[0] != b"%d" % self.number:
                        where = f"partition {partition} of broker {broker}, offset {offset}"
                        found.append(Violation("anew", f"{where} has {value!r}, and this is topic {self.number}"))
                if self.certain and not self.doubtful:
                    for each in self.acked:
                        if each.partition == partition and replica.values.get(each.offset) != each.value:
                            text = f"{each} was acknowledged, and broker {broker} does not have it"
                            found.append(Violation("anew", text))
        return shortened(found)
