"""What opening a log found, for the broker's log and for `krappy doctor`."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class RecoveryReport:
    """What opening a log found. `str()` of it is one line for the broker's log."""

    folder: str
    start_offset: int = 0
    end_offset: int = 0
    checked_bytes: int = 0  # read behind the recovery point
    cut_bytes: int = 0  # removed from the segment's file and from files behind it
    cut_file: str = ""
    cut_position: int = 0
    cut_reason: str = ""  # "torn" | "zeros" | "checksum" | "structure" | "offsets"
    cut_text: str = ""
    set_aside: list[str] = field(default_factory=list)  # files that keep a copy of the removed bytes
    lost_offsets: int = 0  # offsets of events that are gone; they stay empty
    lost: list[str] = field(default_factory=list)  # which offsets, and why
    damage: list[str] = field(default_factory=list)  # damage that was left as it is; reads of it fail
    start_unknown: bool = False  # no checkpoint tells whether segments are missing before the first one
    notes: list[str] = field(default_factory=list)  # what was repaired: a bad checkpoint, an interrupted cleaning

    @property
    def clean(self) -> bool:
        """Nothing was cut, lost, damaged or repaired."""
        return not (self.cut_bytes or self.lost_offsets or self.damage or self.notes)

    @property
    def why(self) -> str:
        """What was cut, in words."""
        if not self.cut_bytes:
            return ""
        return f"{self.cut_file} at position {self.cut_position}: {self.cut_reason} ({self.cut_text})"

    def __str__(self) -> str:
        parts = [f"{self.folder}: offsets {self.start_offset} to {self.end_offset}"]
        if self.checked_bytes:
            parts.append(f"{self.checked_bytes} bytes checked")
        if self.cut_bytes:
            parts.append(f"{self.cut_bytes} bytes cut from {self.why}")
        if self.set_aside:
            parts.append("kept aside: " + ", ".join(self.set_aside))
        if self.lost_offsets:
            parts.append(f"{self.lost_offsets} OFFSETS LOST that had been given to events: " + ", ".join(self.lost))
        parts += [f"DAMAGE: {text}" for text in self.damage]
        return "; ".join(parts + self.notes)
