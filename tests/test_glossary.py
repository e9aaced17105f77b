"""The glossary: its terms stand once, and the files that it names are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "krappy" / "GLOSSARY.md").read_text("utf-8")


def test_each_term_stands_once() -> None:
    terms = re.findall(r"\*\*([^*]+)\*\*", TEXT)
    assert len(terms) == len(set(terms)) >= 40


def test_the_files_that_it_names_are_there() -> None:
    named = re.findall(r"`([\w/]+\.py)`", TEXT)
    assert len(named) > 20
    assert [path for path in named if not (ROOT / path).is_file()] == []
