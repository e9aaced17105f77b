"""What a stream does when events are gone before it has read them: the option failOnDataLoss."""

from __future__ import annotations

import logging

from krappy.errors import OffsetOutOfRange

log = logging.getLogger(__name__)


class Losses:
    """`fail`: they are an error; else they are told of in the log, and the stream goes on with what is there."""

    def __init__(self, fail: bool) -> None:
        self.fail = fail

    def tell(self, what: str) -> None:
        """`what`: a sentence. Raises OffsetOutOfRange."""
        if self.fail:
            raise OffsetOutOfRange(
                f"{what}. Events were lost to this query, by retention or because a topic was deleted. The option "
                "failOnDataLoss=false goes on with what is there, and reads a topic that was made anew from its first "
                "event on."
            )
        log.warning("%s. Going on with what is there (failOnDataLoss=false).", what)
