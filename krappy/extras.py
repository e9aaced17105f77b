"""The packages of the extras `console` and `oauth`: which settings need them, and what is missing."""

from __future__ import annotations

import importlib.util

from krappy.errors import Unavailable
from krappy.settings.server import ServerConfig

CONSOLE_NEEDS = ("h11", "starlette", "msgspec", "prometheus_client")
TOKENS_NEED = ("jwt", "cryptography")


def missing_for_console() -> list[str]:
    """The packages of the extra `console` that are not installed."""
    return _missing(CONSOLE_NEEDS)


def check(config: ServerConfig) -> None:
    """Raises Unavailable when a package that these settings need is not installed."""
    if (config.listen_http is not None or config.listen_health) and (missing := missing_for_console()):
        raise Unavailable(
            f"the console needs {', '.join(missing)}, which is not installed: pip install 'krappy[console]', "
            "or set listen_http to none, and no listen_health"
        )
    if config.needs_tokens and (missing := _missing(TOKENS_NEED)):
        raise Unavailable(f"tokens need {', '.join(missing)}, which is not installed: pip install 'krappy[oauth]'")


def _missing(names: tuple[str, ...]) -> list[str]:
    return [name for name in names if importlib.util.find_spec(name) is None]
