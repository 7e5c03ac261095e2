"""Thousands of damaged files: a picture, sound or our error comes of each, in bounded memory, and the process lives."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

COUNT = 2_000


def test_mutated_files_become_media_or_our_errors():
    command = [sys.executable, str(Path(__file__).with_name("fuzz.py")), str(COUNT)]
    done = subprocess.run(command, capture_output=True, timeout=170)
    assert done.returncode == 0, done.stderr[-2000:]
    results = json.loads(done.stdout)
    assert set(results) == {"Image", "Audio", "refused"}, results
    assert sum(results.values()) == COUNT
    # Neither is all of it so damaged that nothing gets through, nor so little that nothing is refused.
    assert min(results.values()) > COUNT // 20, results
