"""How values are shown: `--as text|json|hex|long|msgpack|avro`.

A form decodes the bytes of a value as a program has encoded them, and shows the result. Text and hex fit all bytes; the
others raise Failure for a value that they can't read.
"""

from __future__ import annotations

import io
import json
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from krappy.cli import output
from krappy.cli.errors import Failure

F = TypeVar("F", bound=Callable[..., Any])
FORMS = ("text", "json", "hex", "long", "msgpack", "avro")
SECONDS = 10.0  # timeout of a request to a schema registry
HEADER = 5  # bytes of Confluent's wire format before the value: 0, and the schema's number


class Form:
    """Shows values in one way. `schema`, `registry`: see `form_options`. Raises Failure if it lacks what it needs."""

    def __init__(self, name: str, schema: str | None = None, registry: str | None = None) -> None:
        if (schema or registry) and name != "avro":
            raise click.UsageError("--schema and --registry are for --as avro")
        self._name = name
        self._read = Avro(schema, registry).read if name == "avro" else READERS[name]

    def plain(self, value: bytes | None) -> Any:
        """The value for JSON output. Raises Failure."""
        if value is None:
            return None
        try:
            found = self._read(value)
            output.to_json(found)
        except Failure:
            raise
        except Exception as error:  # the readers raise whatever they like for wrong bytes
            raise Failure(
                f"a value is not {self._name}: {error or type(error).__name__}; it begins with {value[:20].hex()} (hex)"
            ) from None
        return found

    def text(self, value: bytes | None, null: str = "") -> str:
        """The value for a line of text. Raises Failure."""
        if value is None or self._name == "text":
            return output.text(value, null)
        found = self.plain(value)
        return str(found) if self._name in ("hex", "long") else output.to_json(found)

    def lines(self, value: bytes) -> list[str]:
        """The value alone; on a terminal, what is structured is indented. Raises Failure."""
        line = self.text(value)
        if self._name in ("text", "hex", "long") or not sys.stdout.isatty():
            return [line]
        return json.dumps(json.loads(line), ensure_ascii=False, indent=2).split("\n")


def form_options(command: F) -> F:
    """--as, --schema and --registry, which become the argument `form`."""

    def made(ctx: click.Context, param: click.Parameter, name: str) -> Form:
        return Form(name, ctx.params.pop("schema", None), ctx.params.pop("registry", None))

    for option in (
        click.option(
            "--as",
            "form",
            type=click.Choice(FORMS),
            default="text",
            callback=made,
            help="How values are shown.  [default: text, or base64 if a value is not text]",
        ),
        # They are eager so that --as has them.
        click.option("--schema", is_eager=True, metavar="FILE", help="--as avro: the schema, instead of a registry's."),
        click.option("--registry", is_eager=True, metavar="URL", help="--as avro: the schema registry."),
    ):
        command = option(command)
    return command


def _long(value: bytes) -> int:
    """As Kafka's serializers of numbers write it: 1 to 8 bytes, the highest first."""
    if len(value) not in (1, 2, 4, 8):
        raise ValueError(f"it has {len(value)} bytes, not 8, 4, 2 or 1")
    return int.from_bytes(value, "big", signed=True)


def _msgpack(value: bytes) -> Any:
    import msgpack

    return _with_text_keys(msgpack.unpackb(value, strict_map_key=False, timestamp=3))


def _with_text_keys(value: Any) -> Any:
    """The value, with the keys of maps as JSON has them."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else json.dumps(key, default=str): _with_text_keys(item)
            for key, item in value.items()
        }
    return [_with_text_keys(item) for item in value] if isinstance(value, list) else value


READERS: dict[str, Callable[[bytes], Any]] = {
    "text": output.plain,
    "json": json.loads,
    "hex": bytes.hex,
    "long": _long,
    "msgpack": _msgpack,
}


class Avro:
    """Reads Avro: after Confluent's header, or also without one if the schema is given by --schema."""

    def __init__(self, schema: str | None, registry: str | None) -> None:
        if (schema is None) == (registry is None):
            raise click.UsageError("--as avro needs --schema FILE or --registry URL")
        try:
            import fastavro
        except ModuleNotFoundError:
            raise Failure("--as avro needs fastavro, which is not installed: pip install 'krappy[avro]'") from None
        self._avro = fastavro
        self._registry = (registry or "").rstrip("/")
        self._own = self._parsed(Path(schema).read_text("utf-8")) if schema is not None else None
        self._schemas: dict[int, Any] = {}  # of the registry, by number

    def read(self, value: bytes) -> Any:
        headed = len(value) > HEADER and value[0] == 0
        if self._own is not None:
            return self._bare(value[HEADER:], self._own) if headed else self._bare(value, self._own)
        if not headed:
            raise ValueError("it has no schema's number")
        number = int.from_bytes(value[1:HEADER], "big")
        if number not in self._schemas:
            self._schemas[number] = self._parsed(self._fetched(number))
        return self._bare(value[HEADER:], self._schemas[number])

    def _bare(self, value: bytes, schema: Any) -> Any:
        stream = io.BytesIO(value)
        found = self._avro.schemaless_reader(stream, schema, None)
        if stream.read(1):
            raise ValueError("something follows the value")
        return found

    def _fetched(self, number: int) -> str:
        try:
            with urllib.request.urlopen(f"{self._registry}/schemas/ids/{number}", timeout=SECONDS) as answer:
                return str(json.load(answer)["schema"])
        except (OSError, ValueError, KeyError) as error:
            raise Failure(f"the registry at {self._registry} gives no schema {number}: {error}") from None

    def _parsed(self, schema: str) -> Any:
        try:
            return self._avro.parse_schema(json.loads(schema))
        except Exception as error:
            raise Failure(f"not an Avro schema: {error}") from None
