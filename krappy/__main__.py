"""`python -m krappy`: the command line without an installed script."""

from __future__ import annotations

from krappy.cli.main import main

main()
