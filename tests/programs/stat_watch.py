"""Starts a job of two ranks and observes it with the weft command. Prints the outputs as one JSON object.

    stat_watch.py WEFT COMMAND ARGUMENT...

COMMAND is the job's. Its last argument is the name of the file that ends it.
- `looks`: two outputs of `weft stat --json` for each rank, half a second apart
- `top`, `table`: the outputs of `weft top --once` and `weft stat`
- `stranger`: status and output of `weft stat` as another user
- `after`: status and output after the job has ended
- `silent`: status and output for a process without weft
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

weft, *command = sys.argv[1:]
place = Path(tempfile.mkdtemp())
stop = place / "stop"
# Another user can read it there, too.
place.chmod(0o755)
weft = shutil.copy(weft, place)


def ask(*argv: str, **how: object) -> tuple[int, str, str]:
    """Runs the command. Returns its status, its output and its errors."""
    done = subprocess.run([weft, *argv], capture_output=True, text=True, timeout=30, check=False, **how)
    return done.returncode, done.stdout, done.stderr


def watch(job: subprocess.Popen) -> dict:
    """Observes a running job, then ends it."""
    pids: dict[int, int] = {}
    said = []
    while len(pids) < 2:
        line = job.stdout.readline()
        if not line:
            sys.exit(f"the job has ended: {said}")
        said.append(line)
        # The output of both ranks may arrive in one line.
        pids |= {int(rank): int(pid) for rank, pid in re.findall(r"rank (\d) process (\d+)", line)}
    time.sleep(0.5)
    looks = []
    for _ in range(2):
        answers = [ask("stat", str(pids[rank]), "--json") for rank in (0, 1)]
        looks.append([json.loads(out) if status == 0 else words for status, out, words in answers])
        time.sleep(0.5)
    found = {
        "pids": [pids[0], pids[1]],
        "looks": looks,
        "table": ask("stat", str(pids[0]))[1],
        "top": ask("top", "--once", "--interval", "0.3")[1],
        "stranger": ask("stat", str(pids[0]), user=65534, group=65534, extra_groups=[]) if os.geteuid() == 0 else None,
        "silent": ask("stat", str(os.getpid())),
    }
    stop.touch()
    said += job.stdout.readlines()
    return found | {"status": job.wait(), "after": ask("stat", str(pids[0])), "said": said}


job = subprocess.Popen([*command, str(stop)], stdout=subprocess.PIPE, text=True)
try:
    print(json.dumps(watch(job)))
finally:
    # The job ends, whatever went wrong here.
    job.kill()
    shutil.rmtree(place)
