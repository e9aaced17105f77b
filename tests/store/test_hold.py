"""The files that a broker links aside for a backup, while it goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krappy.store.hold import hold_staged
from krappy.store.staging import StagedFiles


def test_a_staged_file_that_goes_in_the_middle_is_not_missed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its removal began before the backup did, so nothing that the backup holds needs it."""
    files = StagedFiles(tmp_path / "staging")
    files.open(set())
    for id in ("kept", "gone"):
        files.append(id, 0, [b"bytes"])
    link = os.link

    def late(source: Path, target: Path) -> None:
        if source.stem == "gone":
            source.unlink()
        link(source, target)

    monkeypatch.setattr(os, "link", late)
    hold_staged(files, tmp_path / "held")
    assert [path.stem for path in (tmp_path / "held").iterdir()] == ["kept"]
