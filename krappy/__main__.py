"""The command line: the installed script `krappy`, and `python -m krappy` without one."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """`krappy` on the command line. Ctrl-C ends it quietly, even while the rest is imported."""
    try:
        from krappy.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
