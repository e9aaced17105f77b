"""A data folder is for its owner alone, unless a group was given access on purpose."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from krappy.store.privacy import close_to_others
from krappy.testing.running import run_broker


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (0o755, 0o700),
        (0o775, 0o700),
        (0o777, 0o700),
        (0o701, 0o700),
        (0o700, 0o700),
        (0o750, 0o750),
        (0o770, 0o770),
        (0o2775, 0o2770),
        (0o2770, 0o2770),
    ],
)
def test_others_are_let_in_no_more(tmp_path: Path, before: int, after: int) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    folder.chmod(before)
    assert close_to_others(folder) == (None if before == after else before)
    assert mode(folder) == after


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o000, 0o027])
def test_a_new_folder_is_its_owners_and_an_old_one_becomes_so(tmp_path: Path, umask: int) -> None:
    folder = tmp_path / "deep" / "data"
    told: list[tuple[str, dict[str, Any]]] = []

    def report(event: str, **facts: Any) -> None:
        if event.startswith("data_folder"):
            told.append((event, facts))

    old = os.umask(umask)
    try:
        with run_broker(folder, report=report):
            assert mode(folder) == 0o700
        assert not told
        folder.chmod(0o755)
        for _ in range(2):
            with run_broker(folder, report=report):
                assert mode(folder) == 0o700
    finally:
        os.umask(old)
    assert told == [("data_folder_closed_to_others", {"folder": str(folder), "mode_before": "0755"})]


def test_a_folder_that_is_not_ours_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    tmp_path.chmod(0o755)

    def refuse(self: Path, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    with run_broker(tmp_path, report=lambda event, **facts: told.append(event)):
        assert "data_folder_open_to_others" in told
