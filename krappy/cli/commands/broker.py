"""`krappy broker ID HOST PORT ZOOKEEPER`: runs a broker of a cluster in the foreground."""

from __future__ import annotations

from pathlib import Path

import click

from krappy.cli.serving import SettingsCommand, run_in_foreground, serve_options

NATIVE_BELOW, CONSOLE_BELOW = 2000, 1000  # so 9092 has 7092 and 8092 beside it, as a broker alone


@click.command(cls=SettingsCommand)
@click.argument("id", type=click.IntRange(min=0, max=2**31 - 1))
@click.argument("host")
@click.argument("port", type=click.IntRange(min=NATIVE_BELOW + 1, max=65535))
@click.argument("zookeeper")
@serve_options
def broker(
    id: int,
    host: str,
    port: int,
    zookeeper: str,
    file: Path | None,
    as_json: bool,
    until_eof: bool,
    **flags: str | None,
) -> None:
    """Run a broker of a cluster: with this ID, at HOST, with Kafka's protocol on PORT.

    ZOOKEEPER is where the brokers of the cluster meet: the PORT of a ZooKeeper on HOST, or HOST:PORT,HOST:PORT/PATH.
    Without a path it is /krappy.

    The native protocol gets PORT - 2000, the console gets PORT - 1000, and the data is in ./krappy-ID, unless a flag
    says otherwise; variables, --config and the defaults below do not count for these. All other settings are those of
    `krappy serve`.

    \b
    Examples:
      krappy broker 1 localhost 9091 2181
      krappy broker 2 localhost 9092 2181
      krappy broker 3 localhost 9093 2181
      krappy broker 1 10.0.0.1 9092 10.0.0.7:2181,10.0.0.8:2181,10.0.0.9:2181/events --insecure-listeners allow
    """
    short = settings(id, host, port, zookeeper)
    run_in_foreground(
        file, {**flags, **{name: flags[name] or value for name, value in short.items()}}, as_json, until_eof
    )


def settings(id: int, host: str, port: int, zookeeper: str) -> dict[str, str]:
    """The settings that the arguments stand for, by name."""
    at = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return {
        "broker_id": str(id),
        "listen_kafka": f"{at}:{port}",
        "listen_native": f"{at}:{port - NATIVE_BELOW}",
        "listen_http": f"{at}:{port - CONSOLE_BELOW}",
        "data": f"krappy-{id}",
        "zookeeper_connect": f"{at}:{zookeeper}" if zookeeper.isdecimal() else zookeeper,
    }
