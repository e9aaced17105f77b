"""`krappy serve`: runs a broker in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from krappy.cli.serving import SettingsCommand, run_in_foreground, serve_options


@click.command(cls=SettingsCommand)
@serve_options
def serve(file: Path | None, as_json: bool, until_eof: bool, **flags: str | None) -> None:
    """Run a broker until SIGTERM, Ctrl-C or SIGHUP (the terminal is closed; ignored under nohup).

    A setting is taken from its flag, else from its environment variable, else from the --config file, else it has its
    default. When the broker is ready it prints its addresses on stdout. Its log goes to stderr. On SIGTERM it finishes
    the requests in flight, flushes, and exits with 0. A SIGTERM during the recovery from a crash ends it at once with
    0; the next start recovers. It exits with 2 when a setting is refused, and with 1 for other errors.

    Sizes and durations may have units: --memory-bytes 256M, --log-retention-ms 7d. Without, they are bytes,
    and the ms or seconds of their names.

    \b
    Examples:
      krappy serve --data /var/lib/krappy
      krappy serve --listen-native 0.0.0.0:7092 --insecure-listeners allow    # open to everybody who reaches it
      krappy serve --config krappy.toml    # TLS and users: krappy/docs/howto/security.md
      KRAPPY_CONSOLE_TOKEN=$(openssl rand -hex 16) krappy serve --listen-http 0.0.0.0:8092
      krappy serve --listen-http 0.0.0.0:8092 --console-token-file /etc/krappy/token
      krappy serve --data ./data --listen-native 127.0.0.1:0 --json    # a free port
      KRAPPY_DURABILITY=os krappy serve --config krappy.toml
      krappy serve --listen-kafka IN://127.0.0.1:9092,OUT://127.0.0.1:9094 --advertised-listeners OUT://localhost:9094
    """
    run_in_foreground(file, flags, as_json, until_eof)
