"""Runs commands at the same time and prints a JSON object: the status and the output of each.

    run_together.py FILE

FILE has a JSON object: for each name the command (`argv`), variables (`env`), and optionally a signal that the command
gets when it has printed READY. Two commands run at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

AT_A_TIME = 2


def run(job: dict) -> tuple[int, str]:
    """Runs one command to its end."""
    process = subprocess.Popen(
        job["argv"],
        env={**os.environ, **job.get("env", {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    output = []
    for line in process.stdout:
        output.append(line)
        if "READY" in line and "signal" in job:
            process.send_signal(job["signal"])
    return process.wait(), "".join(output)


jobs = json.loads(Path(sys.argv[1]).read_text())
with ThreadPoolExecutor(AT_A_TIME) as pool:
    print("RESULTS", json.dumps(dict(zip(jobs, pool.map(run, jobs.values())))))
