"""The examples of API.md, and the how-to's: each is run."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import httpx

import krappy.console
from krappy.console.api import MAX_BODY, MAX_EVENT
from krappy.console.events import MAX_PAGE
from krappy.console.metrics import TOPICS
from krappy.console.shown import WHOLE
from krappy.server.http import HEAD_SECONDS, MAX_HEAD
from krappy.testing.running import run_broker

DOCUMENT = Path(krappy.console.__file__).with_name("API.md")
HOWTO = Path(__file__).parents[2] / "krappy" / "docs" / "howto" / "console.md"


def examples(document: Path) -> list[str]:
    return [line.strip() for line in document.read_text("utf-8").splitlines() if line.startswith("    curl ")]


def asked(example: str) -> tuple[dict[str, Any], bool]:
    """The request that curl would send, for httpx; and whether its answer has no end."""
    words = shlex.split(example)[1:]
    options: dict[str, list[str]] = {}
    places: list[str] = []
    while words:
        word = words.pop(0)
        if word in ("-H", "-d", "-X"):
            options.setdefault(word, []).append(words.pop(0))
        elif word in ("-s", "-N"):
            options[word] = []
        else:
            places.append(word)
    [place] = places
    host, slash, path = place.partition("/")
    assert host == "localhost:8092"
    method = options.get("-X", ["POST" if "-d" in options else "GET"])[0]
    headers = dict(header.split(": ", 1) for header in options.get("-H", []))
    return {
        "method": method,
        "url": slash + path,
        "headers": headers,
        "content": options["-d"][0] if "-d" in options else None,
    }, "-N" in options


def test_every_example_is_answered(tmp_path: Path) -> None:
    found, short = examples(DOCUMENT), examples(HOWTO)
    assert len(found) > 20
    assert short
    makes_the_topic = next(number for number, each in enumerate(found) if '"name":"users"' in each)
    found[makes_the_topic + 1 : makes_the_topic + 1] = short
    with (
        run_broker(tmp_path, listen_http="127.0.0.1:0", durability="os") as broker,
        httpx.Client(base_url=f"http://{broker.http_address}", timeout=60.0, trust_env=False) as client,
    ):
        for example in found:
            request, endless = asked(example)
            with client.stream(**request) as answer:
                if endless:
                    assert next(answer.iter_text()).startswith("event: "), example
                else:
                    answer.read()
                assert answer.is_success, f"{example}\n{answer.text}"


def test_the_document_tells_the_bounds_that_are() -> None:
    text = DOCUMENT.read_text()
    for kib in (MAX_BODY, MAX_HEAD):
        assert f"{kib >> 10} KiB" in text
    for mib in (MAX_EVENT, MAX_PAGE, WHOLE):
        assert f"{mib >> 20} MiB" in text
    assert f"{TOPICS:,}" in text
    assert f"{HEAD_SECONDS:g} s" in text
