"""What a stream does if events are gone before it has read them: the option failOnDataLoss."""

from __future__ import annotations

import logging

from krappy.errors import OffsetOutOfRange

log = logging.getLogger(__name__)


class Losses:
    """`fail`: a loss is an error. Otherwise it is logged, and the stream goes on with the events that are left."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail

    def tell(self, what: str) -> None:
        """Reports a loss. `what`: a sentence without its full stop. Raises OffsetOutOfRange if `fail`."""
        if self.fail:
            raise OffsetOutOfRange(
                f"{what}. Events were lost to this query, by retention or because a topic was deleted. The option "
                "failOnDataLoss=false goes on with what is there, and reads a topic that was made anew from its first "
                "event on."
            )
        log.warning("%s. Going on with what is there (failOnDataLoss=false).", what)
