"""Starts the two processes of peer_death.c, exchanges their names, kills one, and prints the other one's
output.

The output is one JSON object: `killed_ns` (CLOCK_MONOTONIC), `lines` (the survivor's output after the kill),
`status` (its exit status), and `extra` (its standard error).
"""

import json
import os
import signal
import subprocess
import sys
import time

LIMIT_S = 20  # the survivor gives each operation 3 s
program, who = sys.argv[1], sys.argv[2:]
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
survivor, victim = (subprocess.Popen([*who, program, role], **pipes) for role in ("survivor", "victim"))


def expect(process: subprocess.Popen, word: str) -> str:
    """Returns the rest of the line, which must begin with `word`."""
    line = process.stdout.readline()
    if not line.startswith(word):
        victim.kill()
        survivor.kill()
        sys.exit(f"expected {word!r}, found {line!r}; {survivor.stderr.read()} {victim.stderr.read()}")
    return line[len(word) :].strip()


names = {process: expect(process, "name") for process in (survivor, victim)}
for process, other in ((survivor, victim), (victim, survivor)):
    process.stdin.write(names[other] + "\n")
    process.stdin.flush()
expect(victim, "ready")
expect(survivor, "ready")
time.sleep(0.1)
killed_ns = time.monotonic_ns()
os.kill(victim.pid, signal.SIGKILL)
victim.wait()
try:
    output, errors = survivor.communicate(timeout=LIMIT_S)
except subprocess.TimeoutExpired:
    survivor.kill()
    output, errors = survivor.communicate()
print(json.dumps({"killed_ns": killed_ns, "lines": output.splitlines(), "status": survivor.returncode, "extra": errors}))
