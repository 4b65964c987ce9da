"""The sandbox of the tests: the directory that it keeps is visible wherever it lies, and is no leftover."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import harness
import pytest


@pytest.mark.parametrize("top", ["/tmp", "/run", "/dev/shm"])
def test_kept_directory_may_lie_in_an_emptied_one(top: str) -> None:
    """A clone below /tmp, /run or /dev/shm: its files are seen, and those of its neighbours are not."""
    harness.need_sandbox()
    with tempfile.TemporaryDirectory(dir=top) as outer:
        keep = Path(outer, "clone")
        keep.mkdir()
        (keep / "file").write_text("seen\n")
        Path(outer, "neighbour").touch()
        report = keep / "report.json"
        script = f"cat {keep}/file; ls {outer}; touch {keep}/own /tmp/left"
        command = [sys.executable, str(harness.SUPPORT / "sandbox.py"), str(keep), str(report), "sh", "-c", script]
        done = subprocess.run([*harness.UNSHARE, *command], capture_output=True, text=True, timeout=30, check=False)
        assert (done.returncode, done.stdout) == (0, "seen\nclone\n"), done.stderr
        found = json.loads(report.read_text())
        assert (found["files"], found["processes"]) == (["/tmp/left"], []), found
        assert (keep / "own").exists()
