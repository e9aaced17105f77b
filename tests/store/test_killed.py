"""A real process with a real disk, killed at a moment of nobody's choosing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from krappy.settings.topic import TopicConfig
from tests.process import child
from tests.store.logs import opened, rows

CONFIG = TopicConfig(segment_bytes=1 << 20, index_interval_bytes=4096)
WRITER = """
import sys
from pathlib import Path
from krappy.records import batch
from krappy.store import log as logs
from krappy.settings.topic import TopicConfig

logs.CHECKPOINT_BYTES = 3 << 20
log = logs.Log.open(Path(sys.argv[1]), TopicConfig(segment_bytes=1 << 20, index_interval_bytes=4096))
assert not log.recovery.damage and not log.recovery.lost_offsets
while True:
    batches = []
    for number in range(log.end_offset, log.end_offset + 8):
        data = batch.encode([b"k"], [b"%d " % number + b"x" * (number * 7919 % 30000)], timestamps=number)
        batches.append((batch.check(data), data))
    log.append(batches, 0, 1)
    log.sync()
    sys.stdout.write(f"{log.end_offset}\\n")
    sys.stdout.flush()
"""


def test_what_was_synced_survives_a_sigkill(tmp_path: Path) -> None:
    acknowledged = 0
    for cycle in range(8):
        with child(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(0.02 + cycle * 0.013)
            writer.send_signal(signal.SIGKILL)
            lines = writer.stdout.read().split("\n")
        acknowledged = max([acknowledged, *[int(line) for line in lines[:-1] if line]])
        log = opened(tmp_path, CONFIG)
        assert not log.recovery.damage
        assert not log.recovery.set_aside
        assert log.recovery.cut_bytes < 8 * 30100  # one write, in the middle of which the kill came
        assert log.end_offset >= acknowledged
        found = rows(log, max_bytes=1 << 20)
        assert [row.offset for row in found] == list(range(log.end_offset))
        assert all(row.value and int(row.value.split()[0]) == row.offset for row in found)
        log.close()
    assert acknowledged > 100
