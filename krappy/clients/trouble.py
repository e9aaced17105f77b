"""Why there is no connection to a broker, in words for the user."""

from __future__ import annotations

import ssl
from collections.abc import Sequence

from krappy.clients.values import Address

NO_GREETING = " instead of answering: is that the port of Krappy's native protocol? (Kafka's clients use another port)"


def reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    return error.strerror or str(error) or type(error).__name__


def no_broker(addresses: Sequence[Address], error: OSError) -> str:
    return (
        f"no broker at {', '.join(map(str, addresses))} ({reason(error)}): is one running? `krappy serve` starts one; "
        "to use another address, give it to connect(), or to --address, or set $KRAPPY_ADDRESS"
    )
